-- The update has replaced all functions in the sources; the other functions of the extension are obsolete.
-- If a user's view or function depends on one, the update fails here with an error that names it.

DO $body$
DECLARE
    gone regprocedure;
BEGIN
    FOR gone IN
        SELECT p.oid FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        WHERE d.refclassid = 'pg_extension'::regclass
              AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'madlib_mop')
              -- below savepoints, an update has transaction numbers above that of the transaction
              AND age(p.xmin) NOT BETWEEN -1000000000 AND 0
        ORDER BY p.prokind = 'a' DESC
    LOOP
        EXECUTE format('DROP ROUTINE %s', gone);
    END LOOP;
END
$body$;
