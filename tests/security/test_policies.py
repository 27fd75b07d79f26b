"""A policy is a user's query: it has the caller's rights, in a session without secrets, and reaches no other run."""

import sys

import psycopg2
import pytest

from tests.helpers.faults import newest_run
from tests.helpers.security.attacks import user
from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, pack, select_configurations

ALICE, MALLORY = "alice", "mallory"
OPTIONS = {"source_table": "train_2", "seed": 3, "metrics_every": "visit", "metrics_sample_rows": 10, "role": ALICE}


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, 2, suffix="_2")
    select_configurations(db, "mst", ALIKE[:1])
    for role in (ALICE, MALLORY):
        user(db, role)
    for table in ("train_2", "train_2_summary", "arch", "mst", "mst_summary"):
        db.rows(f"GRANT SELECT ON {table} TO {ALICE}")
    return db


def notices(bench, name: str, expression: str) -> str:
    """Run a policy of Alice's with a value as its action, which is told because there is no such action."""
    policy = f"SELECT 1 AS mst_key, {expression} AS action"
    return fit(bench, f"alice.{name}", "mst", 1, policy=policy, **OPTIONS).notices


@pytest.mark.slow
def test_it_has_the_rights_of_the_caller(bench):
    """It is logged in as the run's role, which is no superuser, and acts as the caller."""
    here = "(SELECT concat_ws(' ', session_user, current_user, rolsuper) FROM pg_roles WHERE rolname = session_user)"
    told = notices(bench, "whoami", here)
    received = told.partition("or NULL for none. Received: '")[2].partition("'")[0]
    login, role, is_superuser = received.split()
    assert login.startswith("madlib_mop_run_") and (role, is_superuser) == (ALICE, "f")


@pytest.mark.one_case
@pytest.mark.parametrize(
    "statement, refused",
    [
        ("RESET ROLE; INSERT INTO madlib_mop.metric VALUES (1, 1, 1, 'training', 0, 'loss', 0, 0, 0)", "table metric"),
        ("RESET ROLE; PERFORM madlib_mop_internal.writer_open(1, 0)", "schema madlib_mop_internal"),
        ("RESET ROLE; PERFORM key FROM madlib_mop.host", "table host"),
    ],
)
def test_its_code_writes_no_record_and_reads_no_key(bench, statement, refused):
    bench.rows(
        "CREATE OR REPLACE FUNCTION alice.tries() RETURNS text LANGUAGE plpgsql AS $$"
        f"BEGIN {statement}; RETURN 'succeeded'; END$$", role=ALICE,
    )  # fmt: skip
    told = notices(bench, f"tries_{abs(hash(statement))}", "alice.tries()")
    assert f"the policy failed: permission denied for {refused}" in told and "succeeded" not in told


def test_it_sees_no_other_run(bench):
    fit(bench, "public.of_postgres", "mst", 1, **{**OPTIONS, "role": None})
    told = notices(bench, "looks", f"(SELECT count(*)::text FROM madlib_mop.model WHERE run_id = {newest_run(bench)})")
    assert "Received: '0'" in told


def test_a_role_without_the_right_to_train_cannot_use_it(bench):
    bench.rows("SELECT madlib_mop.revoke_use('mallory')")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        fit(bench, "mallory.m", "mst", 1, policy="SELECT 1 AS mst_key, 'a' AS action",
            **{**OPTIONS, "role": MALLORY})  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize(
    "policy, told",
    [
        # the code of a policy can replace its statement
        ("SELECT 1 AS mst_key, alice.replaces('SELECT 5') AS action", "the policy failed: its result has values"),
        ("SELECT 1 AS mst_key, alice.replaces('INSERT INTO pg_temp.t VALUES (1)') AS action", "no value that can be"),
        ("SELECT 1 AS mst_key, alice.latin() AS action", "the policy failed: the statement returned no value"),
        ("SELECT 1 AS mst_key, 'extend' AS action, (repeat('[', 3000) || repeat(']', 3000))::json AS arguments",
         "the policy failed: its result has values that cannot be read" if sys.version_info < (3, 12) else
         "policy: a row is nested more than 100 levels deep"),
        ("SELECT 1 AS mst_key, 'extend' AS action, (repeat('[', 300) || repeat(']', 300))::json AS arguments",
         "policy: a row is nested more than 100 levels deep"),
        (r"""SELECT 1 AS mst_key, 'stop_model' AS action, '"\u0000"'::json AS reason""", "cannot store"),
        (r"""SELECT 1 AS mst_key, 'extend' AS action, '{"\ud800": 1}'::json AS arguments""", "cannot store"),
        ("""SELECT 1 AS mst_key, 'extend' AS action, '{"num_iterations": 1e400}'::json AS arguments""", "cannot store"),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be_used_is_told_and_the_run_ends(bench, policy, told):
    bench.rows(
        "CREATE OR REPLACE FUNCTION alice.replaces(statement text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " CREATE TEMP TABLE IF NOT EXISTS t (a integer); DEALLOCATE policy;"
        " EXECUTE 'PREPARE policy (int8) AS ' || statement; RETURN NULL; END $$", role=ALICE,
    )  # fmt: skip
    bench.rows(
        "CREATE OR REPLACE FUNCTION alice.latin() RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM set_config('client_encoding', 'LATIN1', false); RETURN 'é'; END $$", role=ALICE,
    )  # fmt: skip
    run = fit(bench, f"alice.told_{abs(hash(policy))}", "mst", 2, policy=policy, **OPTIONS)
    assert told in run.notices
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [newest_run(bench)]) == "finished"
