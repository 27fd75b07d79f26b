"""Promise 7: users' code in a reader cannot keep a session, role or lock after the run."""

import pytest

from madlib_mop.catalog.names import quote
from tests.helpers.faults import assert_nothing_left, wait_for
from tests.helpers.security.attacks import fingerprint
from tests.helpers.security.scenario import ALICE, CAROLS_RUN, MALLORY, Fit, X, Y, lay_out
from tests.helpers.training import script

COLUMNS = ", ".join(map(quote, ("__dist_key__", X, f"{X}_shape", Y, f"{Y}_shape", "buffer_id")))
STAY = f"""
CREATE FUNCTION mallory.stay(object boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF session_user NOT LIKE 'madlib\\_mop\\_run\\_%' THEN
        RETURN true;
    END IF;
    PERFORM set_config('application_name', 'nobody', false), set_config('client_connection_check_interval', '0', false);
    RESET ROLE;
    PERFORM pg_advisory_lock(4711);
    IF object THEN -- it locks the run's role
        PERFORM lo_create(0);
    END IF;
    LISTEN madlib_mop_cancel;
    LOOP
        BEGIN
            PERFORM pg_sleep(600);
        EXCEPTION WHEN query_canceled OR OTHERS THEN
            NULL;
        END;
    END LOOP;
END $$;
CREATE VIEW mallory.holds_nothing AS SELECT {COLUMNS} FROM mallory.train WHERE mallory.stay(false);
CREATE TABLE mallory.holds_nothing_summary AS TABLE mallory.train_summary;
CREATE VIEW mallory.holds_an_object AS SELECT {COLUMNS} FROM mallory.train WHERE mallory.stay(true);
CREATE TABLE mallory.holds_an_object_summary AS TABLE mallory.train_summary;
GRANT SELECT ON mallory.holds_nothing, mallory.holds_nothing_summary, mallory.holds_an_object,
    mallory.holds_an_object_summary TO alice;
"""
SLEEPERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'nobody'"


@pytest.fixture(scope="module")
def stuck(db):
    lay_out(db)
    script(db, STAY, role=MALLORY)
    return db


@pytest.mark.one_case
@pytest.mark.parametrize("view", ["holds_nothing", "holds_an_object"])
def test_a_reader_that_takes_no_cancel_ends_with_the_run(stuck, view):
    before = fingerprint(stuck, CAROLS_RUN)
    call = Fit(stuck, f"mallory.{view}", "alice.never")
    wait_for(lambda: call.error or len(stuck.rows(SLEEPERS)) == 2, what="two readers")
    assert call.error is None, call.error
    run_id = stuck.value("SELECT max(run_id) FROM madlib_mop.run WHERE owner = 'alice'::regrole")
    stuck.rows(SLEEPERS.replace("pid", "pg_cancel_backend(pid)", 1))
    assert stuck.value("SELECT madlib_mop.cancel(%s)", [run_id], ALICE) is True
    call.join(60)
    assert "was cancelled by alice" in str(call.error)
    assert_nothing_left(stuck, within_s=5.0)
    assert stuck.rows("SELECT oid FROM pg_largeobject_metadata") == []
    assert fingerprint(stuck, CAROLS_RUN) == before
