"""Promise 7: a user's run has the user's rights, whatever code is in the data, and users cannot choose programs."""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest
from mop_backend.forkserver import ENVIRONMENT
from psycopg2.extensions import encrypt_password

from madlib_mop.catalog.names import Relation, quote
from madlib_mop.driver.data.packed import shard_query
from tests.helpers.faults import alive, assert_nothing_left, trainers, wait_for
from tests.helpers.security.attacks import fingerprint, refusal_of
from tests.helpers.security.scenario import (
    ALICE,
    CAROLS_RUN,
    MALLORY,
    OUTPUT,
    SELECTION,
    Fit,
    X,
    Y,
    lay_out,
    lay_traps,
    of,
    opens,
    processes,
)
from tests.helpers.training import digests

NEWEST = "SELECT max(run_id) FROM madlib_mop.run WHERE owner = 'alice'::regrole"
WORKER = "login LIKE 'madlib\\_mop\\_run\\_%%'"
ROLES = """
SELECT r.rolname, r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls, r.rolcanlogin,
       extract(epoch FROM r.rolvaliduntil - now())::float, a.rolpassword,
       ARRAY(SELECT roleid::regrole::text FROM pg_auth_members WHERE member = r.oid)
FROM pg_roles r JOIN pg_authid a USING (oid) WHERE r.rolname LIKE 'madlib\\_mop\\_run\\_%'
"""
# Steps of traps.sql that a role may do in its own session; their effects are tested below.
HARMLESS = {
    "look around", "reset the session", "reset the role", "leave a table", "choose the password", "stay a member",
}  # fmt: skip
SITES = {"view", "cast", "operator", "trigger", "deferred trigger", "policy", "index"}


@dataclass
class Seen:
    """Observations of alice's run while it was in progress."""

    run_id: int
    login: tuple
    activity: str
    commands: dict[int, str]
    environments: dict[int, str]
    driver: int
    trainers: list[int]
    log: str = ""
    record: str = ""


@pytest.fixture(scope="module")
def bench(db):
    lay_out(db)
    db.rows("INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0')")  # test_idle_trainers.py tests others
    db.rows(f"ALTER DATABASE {quote(db.name)} SET log_statement = 'all'")
    return db


@pytest.fixture(scope="module")
def seen(bench):
    """A run of alice's on mallory's tables, before mallory adds traps."""
    log = Path(bench.cluster.control("logfile"))
    begun = log.stat().st_size
    call = Fit(bench, "mallory.train", of(ALICE, OUTPUT))
    wait_for(lambda: len(trainers(bench)) == 2 or not call.is_alive(), what="two trainers")
    assert call.is_alive(), call.error
    (login,) = bench.rows(ROLES)
    seen = Seen(
        bench.value(NEWEST),
        login,
        repr(bench.rows("SELECT * FROM pg_stat_activity")),
        processes("cmdline"),
        processes("environ"),
        call.drivers[0],
        trainers(bench),
    )
    seen.record = fingerprint(bench, seen.run_id)
    call.end()
    with log.open("rb") as file:
        file.seek(begun)
        seen.log = file.read().decode(errors="replace")
    return seen


@pytest.fixture(scope="module")
def trapped(bench, seen):
    """A run of alice's on the same rows, after mallory has added traps; the value is its run_id."""
    lay_traps(bench)
    before = fingerprint(bench, CAROLS_RUN)
    call = Fit(bench, "trap", "alice.trapped", search_path="mallory, alice, pg_catalog")
    call.end()
    assert fingerprint(bench, CAROLS_RUN) == before
    return bench.value(NEWEST)


def test_the_login_role_is_a_member_of_the_caller_and_nothing_else(seen):
    name, is_mighty, can_login, valid_s, _, memberships = seen.login
    assert re.fullmatch(rf"madlib_mop_run_\d+_{seen.run_id}_[0-9a-f]{{8}}", name)
    assert not is_mighty and can_login and memberships == [ALICE]
    assert 0 < valid_s <= 60


def test_the_password_is_nowhere_to_be_seen(bench, seen):
    verifier = seen.login[4]
    known = secrets.token_urlsafe(32)
    with bench.connect() as connection:
        assert opens(encrypt_password(known, "x", connection, "scram-sha-256"), f"so it would be found: '{known}'")
    assert "CREATE ROLE" in seen.log and "writer_open" in seen.log and seen.login[0] in seen.activity
    for text in (seen.activity, seen.log, seen.record, *seen.commands.values(), *seen.environments.values()):
        assert not opens(verifier, text)


def test_nothing_is_left_of_it(bench, seen, trapped):
    assert_nothing_left(bench, [seen.driver, *seen.trainers])


def test_no_setting_chooses_what_is_run_or_where(bench, seen):
    plan = bench.value("SELECT plan FROM madlib_mop.run WHERE run_id = %s", [seen.run_id])
    assert plan["worker_host"] == "127.0.0.1" and plan["trainer"]["sandbox"] is True
    library = Path(bench.value("SELECT prosrc FROM pg_proc WHERE proname = '_call'").split('"')[1]).parent
    for pid, module in ((seen.driver, "driver"), *((pid, "trainer") for pid in seen.trainers)):
        command = seen.commands[pid].rstrip("\0").split("\0")
        assert command[:3] == [f"{library}/venv/bin/python", "-I", "-m"]
        if command[3:] != ["madlib_mop.driver"]:  # the first call's driver is not forked
            assert command[3] == f"madlib_mop.{module}.forkserver" and int(command[-1]) == bench.cluster.server_pid
        environment = dict(item.split("=", 1) for item in seen.environments[pid].rstrip("\0").split("\0"))
        assert environment == ENVIRONMENT
        assert not alive(pid)


def test_odd_names_are_quoted_once(bench, seen):
    assert bench.value("SELECT count(*) FROM public.victim") == 0
    tables = bench.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'alice' AND tablename LIKE 'out%'")
    assert sorted(name for (name,) in tables) == [OUTPUT, f"{OUTPUT}_info", f"{OUTPUT}_summary"]
    summary = of(ALICE, f"{OUTPUT}_summary")
    assert bench.rows(f"SELECT dependent_varname, independent_varname FROM {summary}", role=ALICE) == [([Y], [X])]
    classes = bench.value(f"SELECT {quote(f'{Y}_class_values')} FROM {summary}", role=ALICE)
    assert classes == list(range(10))


def test_a_user_sees_his_run_and_mallory_does_not(bench, seen):
    for view in ("progress", "leaderboard", "timeline", "visit", "metric", "evaluation", "model_state"):
        query = f"SELECT count(*) > 0 FROM madlib_mop.{view} WHERE run_id = %s"
        assert bench.value(query, [seen.run_id], ALICE) is True
        assert bench.value(query, [seen.run_id], MALLORY) is False


def test_only_what_the_user_may_read_is_trained_on(bench, seen):
    n_runs = bench.value("SELECT count(*) FROM madlib_mop.run")
    call = "SELECT madlib.madlib_keras_fit_multiple_model(%s, 'alice.never', %s, 1)"
    bench.rows("REVOKE SELECT ON mallory.train FROM alice")
    error = refusal_of(bench, call, ["mallory.train", of(ALICE, SELECTION)], ALICE)
    bench.rows("GRANT SELECT ON mallory.train TO alice")
    assert (error.sqlstate, "permission denied for table train" in error.message) == ("42501", True)
    error = refusal_of(bench, call, ["mallory.train", of(ALICE, SELECTION)], MALLORY)
    assert (error.sqlstate, "permission denied for schema alice" in error.message) == ("42501", True)
    assert bench.value("SELECT count(*) FROM madlib_mop.run") == n_runs


def test_the_traps_were_sprung_in_the_readers(bench, trapped):
    sites = bench.rows(f"SELECT site, count(DISTINCT step) FROM mallory.log WHERE {WORKER} GROUP BY 1")
    assert {site for site, _ in sites} == SITES
    assert {n for _, n in sites} == {bench.value("SELECT count(*) FROM mallory.step")}


def test_no_trap_got_more_rights_than_the_caller_has(bench, trapped):
    rows = bench.rows(f"SELECT DISTINCT is_superuser, {WORKER}, role, login FROM mallory.log")
    assert {is_superuser for is_superuser, *_ in rows} == {"off"}
    assert {ALICE} < {role for _, in_worker, role, _ in rows if in_worker}  # until a trap resets the role
    for _, in_worker, role, login in rows:
        assert role in ((ALICE, login) if in_worker else (login,))
    done = bench.rows("SELECT DISTINCT step FROM mallory.log WHERE outcome = 'done'")
    assert {step for (step,) in done} <= HARMLESS


def test_no_trap_changed_a_record(bench, seen, trapped):
    assert digests(bench, trapped) == digests(bench, seen.run_id)
    visits = "SELECT mst_key, epoch, position, segment_id FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1, 2, 3"
    assert bench.rows(visits, [trapped]) == bench.rows(visits, [seen.run_id])
    assert bench.value("SELECT state FROM madlib_mop.run WHERE run_id = %s", [trapped]) == "finished"


def test_look_alikes_in_the_callers_search_path_are_not_called(bench, trapped):
    assert bench.value("SELECT count(*) FROM mallory.log WHERE site = 'look-alike'") == 0


def test_what_traps_left_behind_is_gone_with_the_login_role(bench, trapped):
    left = bench.value("SELECT count(*) FROM mallory.log WHERE step = 'leave a table' AND outcome = 'done'")
    assert left > 0
    assert bench.rows("SELECT relname FROM pg_class WHERE relname LIKE 'left\\_%%'") == []
    for (login,) in bench.rows(f"SELECT DISTINCT login FROM mallory.log WHERE {WORKER}"):
        dsn = {"host": "127.0.0.1", "port": bench.cluster.port, "dbname": bench.name, "user": login}
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(**dsn, password="chosen by mallory", connect_timeout=10)


def test_a_view_over_a_packed_table_reads_one_partition_a_segment(bench, trapped):
    query = shard_query(Relation(MALLORY, "trap"), [X, Y], True).replace("$1", "1")
    plan = "\n".join(line for (line,) in bench.rows(f"EXPLAIN {query}"))
    assert len(re.findall(r"Scan on train", plan)) == 1, plan
