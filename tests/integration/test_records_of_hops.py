"""The record of a run whose states stay at hosts, as its driver reads and writes it."""

import json
from dataclasses import replace

import psycopg2
import pytest

from madlib_mop.catalog.rows.model import HomeState
from madlib_mop.catalog.rows.plan import HopPlan
from madlib_mop.catalog.state_slots import StateSlots, create_slot, newest_states, sweep_slots
from tests.helpers.direct import record_on
from tests.helpers.security.attacks import insert, record_run, recorded_plan

pytestmark = pytest.mark.one_session

RUN, OTHER = 801, 802
SLOT = RUN * 1000
HOME = HomeState(
    epoch=1, position=1, slot=SLOT, version=0, state_bytes=5, model_bytes=5, forward_parts=1, digest="d",
    weights_digest="w",
)  # fmt: skip
SLOTS = "SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^model_state_80[12]_' AND relkind = 'r'"
PLAN = recorded_plan("public", "out", "public.t") | {"direct_hops": HopPlan().as_json()}


@pytest.fixture
def record(db):
    """The record with a run of one model, whose newest state, version 2, is at a host; version 0 is at home."""
    session = db.connect()
    record_run(db, RUN, db.cluster.superuser, state="running", plan=PLAN)
    found = record_on(session)
    values = {"state_slot": None, "state_server": "beta", "state_version": 2, "home_state": HOME, "state_bytes": 5}
    found.set_model(RUN, 1, **values)
    for version, server, released in ((1, "alpha", True), (2, "beta", False)):
        insert(
            db, "state_copy", run_id=RUN, mst_key=1, version=version, server=server, epoch=1, position=1, segment_id=0,
            state_bytes=5, forward_parts=1, digest="d", weights_digest="w", released=released,
        )  # fmt: skip
    yield found
    for run_id in (RUN, OTHER):
        found.delete_run(run_id)
    for (slot,) in db.rows(SLOTS):  # a sweep leaves those that another session may still see
        db.rows(f"DROP TABLE {slot}")
    session.close()


def copies(db):
    """Return version and server of each copy in the record, and whether it is released."""
    return db.rows("SELECT version, server, released FROM madlib_mop.state_copy WHERE run_id = %s ORDER BY 1", [RUN])


def test_the_driver_does_not_wait_for_a_writer_that_tells_a_host_what_to_let_go(db, record):
    """The writer has locked what is released until its visit ends; the visit may need rows that the driver has read."""
    writer = db.connect(autocommit=False)
    writer.cursor().execute("SELECT madlib_mop_internal.released_copies(%s, 'alpha')", [RUN])
    record.execute("SET lock_timeout = 1")
    record.release_copies(RUN, 1)
    record.copy_lost(RUN, 1, 1, "alpha")
    writer.close()
    assert copies(db) == [(1, "alpha", True), (2, "beta", True)]


def test_a_copy_that_is_lost_is_not_recorded_any_more(db, record):
    record.copy_lost(RUN, 1, 2, "alpha")  # it is at another host
    assert [copy.version for copy in record.state_copies(RUN)] == [2]
    record.copy_lost(RUN, 1, 2, "beta")
    assert record.state_copies(RUN) == [] and copies(db) == [(1, "alpha", True)]


def test_states_of_runs_that_go_on_are_not_swept_before_their_first_visit_is_committed(db, record):
    plain = {name: value for name, value in PLAN.items() if name != "direct_hops"}
    record.forget_copies(RUN)
    record_run(db, OTHER, db.cluster.superuser)
    for state, plan, expected in (
        ("running", PLAN, [RUN, OTHER]), ("interrupted", PLAN, [RUN, OTHER]), ("trained", PLAN, [RUN]),
        ("running", plain, [RUN]),
    ):  # fmt: skip
        db.rows(
            "UPDATE madlib_mop.run SET state = %s, plan = %s WHERE run_id = %s", [state, json.dumps(plan), OTHER]
        )
        assert sorted(record.runs_at_hosts()) == expected, (state, plan)


def test_a_state_that_comes_home_replaces_the_one_that_was_there(db, record):
    model = record.models(RUN)[0]
    create_slot(record, SLOT + 1)
    assert not record.bring_home(replace(model, state_version=1), SLOT + 1, [b"old"]), "the model has another by now"
    assert record.bring_home(model, SLOT + 1, [b"new", b"state"])
    now = record.models(RUN)[0]
    assert (now.state_slot, now.state_server, now.home_state) == (SLOT + 1, None, None)
    assert list(record.state_parts(now)) == [b"new", b"state"]
    assert db.value("SELECT count(*) FROM madlib_mop.model_state WHERE run_id = %s", [RUN]) == 2
    assert record.state_copies(RUN) == []


def test_the_state_at_home_of_a_model_that_ended_at_a_host_is_moved_and_kept(db, record):
    """A model that fails keeps its state at home, from which its last visits can be made again for a clone."""
    slots = StateSlots(record, RUN, newest_states(record.models(RUN)))
    slots._move(1, slots.begin_write(1))
    model = record.models(RUN)[0]
    assert model.state_slot is None and model.home_state.slot != SLOT
    found = "SELECT slot, version FROM madlib_mop.model_state WHERE run_id = %s"
    assert db.rows(found, [RUN]) == [(model.home_state.slot, 0)]
    record.set_run(RUN, state="trained")
    sweep_slots(record)
    assert db.rows(found, [RUN]) == [(model.home_state.slot, 0)]


@pytest.mark.parametrize("server", ["alpha", None])
def test_a_state_that_came_home_meanwhile_is_not_made_again(db, record, server):
    """Its host came back with it, and the driver has fetched it; or it was made again twice."""
    visit = {
        "epoch": 1, "position": 1, "segment_id": 0, "digest_in": "a", "digest_out": "d", "version": 2, "slot": SLOT,
        "server": server, "state_bytes": 5, "forward_parts": 1, "weights_digest": "w",
    }  # fmt: skip
    if server is not None:
        record.set_model(RUN, 1, state_server=None, state_slot=SLOT, home_state=None)
    else:
        record.set_model(RUN, 1, home_state=replace(HOME, version=2), state_version=3)
    before = copies(db)
    with pytest.raises(psycopg2.Error) as refused:
        db.rows("SELECT madlib_mop_internal.keep_again(%s, 1, %s)", [RUN, json.dumps(visit)])
    assert refused.value.pgcode == "40001" and copies(db) == before
    assert db.value("SELECT count(*) FROM madlib_mop.model_state WHERE run_id = %s", [RUN]) == 1


def test_of_states_that_are_made_again_one_after_the_other_the_newest_two_stay(db, record):
    db.rows("DELETE FROM madlib_mop.visit WHERE run_id = %s", [RUN])
    record.set_model(RUN, 1, state_version=4)
    record.forget_copies(RUN)
    for version, server in enumerate(["alpha", "beta", "alpha", "beta"], 1):
        place = {"epoch": version, "position": 1, "segment_id": version % 2}
        visit = {**place, "digest_in": f"d{version - 1}", "digest_out": f"d{version}"}
        insert(
            db, "visit", run_id=RUN, mst_key=1, started_at="now", ended_at="now", n_rows=1, state_bytes=1, attempt=1,
            **visit,
        )  # fmt: skip
        visit |= {"version": version, "server": server, "state_bytes": 5, "forward_parts": 1, "weights_digest": "w"}
        db.rows("SELECT madlib_mop_internal.keep_again(%s, 1, %s)", [RUN, json.dumps(visit)])
    kept = [(version, server) for version, server, released in copies(db) if not released]
    assert kept == [(3, "alpha"), (4, "beta")]
