-- The end of every update: roles with a right also get it on the new functions of the same class. Each class has a
-- function that tells who has the right. Its arguments stay the same: with others, it would be a new function.

DO $body$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT r.rolname, marks.rights::text[] AS rights
        FROM (VALUES ('madlib_mop.replay', '{train, predict, read}'), ('madlib_mop.predict', '{predict}'),
                     ('madlib_mop.higher_is_better', '{read}')) AS marks (function, rights)
        JOIN pg_proc p ON p.proname = split_part(marks.function, '.', 2)
            AND p.pronamespace = split_part(marks.function, '.', 1)::regnamespace
        CROSS JOIN LATERAL aclexplode(p.proacl) AS acl
        JOIN pg_roles r ON r.oid = acl.grantee
        WHERE acl.grantee <> p.proowner
    LOOP
        PERFORM madlib_mop_calls._grant(held.rights, held.rolname);
    END LOOP;
END
$body$;
