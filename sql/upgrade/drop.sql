-- Functions of the extension that this update has not replaced are in the sources no more.
-- Where a user's view or function needs one, the update ends here with an error that names it.

DO $body$
DECLARE
    gone regprocedure;
BEGIN
    FOR gone IN
        SELECT p.oid FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
        WHERE d.refclassid = 'pg_extension'::regclass
              AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'madlib_mop')
              AND p.xmin::text::bigint <> txid_current() % 4294967296
        ORDER BY p.prokind = 'a' DESC
    LOOP
        EXECUTE format('DROP ROUTINE %s', gone);
    END LOOP;
END
$body$;
