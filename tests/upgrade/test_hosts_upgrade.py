"""A coordinator and its host of a released version are updated, in either order: nothing is lost, and both work.

Until both have the same version, they cannot pack or train together, and the error says what to do where.
"""

import re

import pytest

from madlib_mop import __version__
from madlib_mop.cli.doctor import hosts as doctor
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState
from madlib_mop.engines.hosts import versions
from madlib_mop.engines.hosts.connections import connecting, read_login
from madlib_mop.engines.hosts.relay import Relay
from tests.helpers.dumps import RECORDS, TABLES, contents
from tests.helpers.hosts import ANALYST, drop_database, start_cluster
from tests.helpers.processors import assert_same_models
from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import fit, one_thread
from tests.upgrade.hosts_record import COORDINATOR, PAIRING, PAIRING_AT_HOST, SERVER, restore_both
from tests.upgrade.record import SEED

VERSIONS = sorted(
    re.fullmatch(COORDINATOR.format("(.*)"), str(file.relative_to(RECORDS)).removesuffix(".sql.gz"))[1]
    for file in RECORDS.glob(f"{COORDINATOR.format('*')}.sql.gz")
)
RECORD = (*TABLES, *(f"madlib_mop.{table}" for table in PAIRING))
UPDATE = "ALTER EXTENSION madlib_mop UPDATE"
IS = "SELECT extversion FROM pg_extension WHERE extname = 'madlib_mop'"
#: Calls that need the host.
CALLS = {
    "train": "SELECT madlib.madlib_keras_fit_multiple_model('train', 'refused', 'mst', 1)",
    "resume": "SELECT madlib_mop.resume((SELECT run_id FROM madlib_mop.run WHERE state = 'interrupted'))",
    "replay": "SELECT madlib_mop.replay(1, 'refused')",
    "pack": "SELECT madlib.training_preprocessor_dl('public.train_rows', 'refused', 'y', 'x')",
}


@pytest.fixture(scope="module")
def host_cluster(cluster):
    """The host's cluster."""
    host = start_cluster("earlier")
    yield host
    host.destroy()


@pytest.fixture(scope="module", params=VERSIONS)
def restored(cluster, host_cluster, request):
    """A coordinator and its host, with the content of `hosts_record.fill`."""
    one_thread()
    ours = restore_both(cluster, host_cluster, request.param)
    yield ours
    drop_both(ours)


@pytest.fixture(scope="module")
def before(restored):
    """The content of both before the update."""
    return kept(restored)


@pytest.fixture(scope="module")
def coordinator_updated(restored, before):
    """The coordinator has this version, its host does not yet."""
    restored.db.rows(UPDATE)
    return restored


@pytest.fixture(scope="module")
def updated(coordinator_updated):
    """Both have this version."""
    coordinator_updated.at[SERVER].rows(UPDATE)
    return coordinator_updated


def drop_both(ours) -> None:
    """Drop the databases."""
    drop_database(ours.db)
    drop_database(ours.at[SERVER])


def kept(ours, before=None):
    """Return the content of the record, the registration on both sides, and the rows of the shards there."""
    here, there = before or (None, None)
    at = ours.at[SERVER]
    shards = ours.db.rows("SELECT table_schema || '.' || table_name FROM madlib_mop.host_shard ORDER BY 1")
    tables = (*(f"madlib_mop.{table}" for table in PAIRING_AT_HOST), *(name for (name,) in shards))
    return contents(ours.db, here, RECORD), contents(at, there, tables)


def run_of(db, table: str) -> int:
    """Return the newest run with an output table."""
    return db.value("SELECT max(run_id) FROM madlib_mop.run WHERE model_output_table LIKE %s", [f"%.{table}"])


def finding(ours) -> tuple[CheckState, str]:
    """Return the doctor's finding about the host."""
    connection = ours.db.connect()
    try:
        (found,) = doctor.check(CheckContext(connection))
    finally:
        connection.close()
    return found.state, f"{found.found} | {found.mend}"


def assert_names_the_host(text: str, version: str) -> None:
    """Assert that an error of the coordinator names host and version, and what to do there."""
    expected = f"{SERVER}.* version {version} of extension madlib_mop.* {__version__}.*At that host:.*{UPDATE}"
    assert re.search(expected, text), text


def not_updated(ours) -> str:
    """Return the host's version; skip a test that runs after its update."""
    version = ours.at[SERVER].value(IS)
    if version == __version__:
        pytest.skip("the host has been updated")
    return version


@pytest.mark.parametrize("call", CALLS)
def test_nothing_begins_before_the_host_is_updated(coordinator_updated, before, call):
    version = not_updated(coordinator_updated)
    refused = refusal_of(coordinator_updated.db, CALLS[call], role=ANALYST)
    assert refused.sqlstate == "55000"
    assert_names_the_host(f"{refused.message} {refused.hint}", version)
    assert kept(coordinator_updated, before) == before


def refusal_of_a_worker(ours) -> tuple[str, str]:
    """Open a session on the host as a worker's relay does; return message and hint of its error."""
    connection = ours.db.connect()
    login = read_login(connection, SERVER, ANALYST)
    access = {"server": SERVER, "run_id": 1, "options": connecting(login), "needs_password": True}
    relay = Relay()
    try:
        relay.do({"op": "connect", **access, "coordinator": "none", "key": "00"}, [])
        answer, _ = relay.do({"op": "start"}, [])
    finally:
        relay.close()
        connection.close()
    refused = answer["host_refused"]
    assert refused["sqlstate"] == "55000", refused
    return refused["message"], refused["hint"]


def test_no_worker_begins_at_a_host_of_another_version(coordinator_updated):
    """A run takes hours, and sessions on its hosts may be opened again."""
    version = not_updated(coordinator_updated)
    assert_names_the_host(" ".join(refusal_of_a_worker(coordinator_updated)), version)


def test_a_host_does_no_work_with_a_library_of_another_version(coordinator_updated, monkeypatch):
    """Its library is new, but its functions and the coordinator have the old version."""
    version = not_updated(coordinator_updated)
    monkeypatch.setattr(versions, "__version__", version)
    message, hint = refusal_of_a_worker(coordinator_updated)
    which = f"extension madlib_mop is of version {version}, but its library is of version {__version__}"
    assert message == f"{SERVER}: {which}"
    assert hint.startswith("At that host: ") and UPDATE in hint


def test_the_doctor_names_the_host(coordinator_updated):
    version = not_updated(coordinator_updated)
    state, text = finding(coordinator_updated)
    assert state is CheckState.FAIL
    assert_names_the_host(text, version)


def test_every_row_is_there_and_the_host_is_registered(updated, before):
    assert [db.value(IS) for db in (updated.db, updated.at[SERVER])] == [__version__] * 2
    assert kept(updated, before) == before
    empty = {table for side in before for table, (_, rows) in side.items() if not rows}
    assert empty <= {f"madlib_mop.{table}" for table in ("start_weights", "custom_function", "setting", "search_event")}
    assert finding(updated)[0] is CheckState.OK


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_bits_of_an_undisturbed_one(updated):
    assert_resumes(updated.db)


def assert_resumes(db) -> None:
    """Assert that the interrupted run continues on the host and here, with the result of its copy."""
    run_id, twin = run_of(db, "interrupted"), run_of(db, "twin")
    n_visits = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s"
    missing = db.value(n_visits, [twin]) - db.value(n_visits, [run_id])
    assert missing > 0
    db.rows("SELECT madlib_mop.resume(%s)", [run_id], ANALYST)
    assert_same_models(db, run_id, "analyst.interrupted", twin, "analyst.twin")


@pytest.mark.slow
def test_a_finished_run_is_replayed_with_the_same_bits(updated):
    db = updated.db
    run_id = run_of(db, "models")
    db.rows("SELECT madlib_mop.replay(%s, 'models_again')", [run_id], ANALYST)
    assert_same_models(db, run_of(db, "models_again"), "analyst.models_again", run_id, "analyst.models")


@pytest.mark.slow
def test_its_models_predict_and_a_new_run_trains_at_the_host(updated):
    db = updated.db
    query = "SELECT madlib_mop.predict_class('models', 1, x) FROM public.valid_rows ORDER BY id LIMIT 3"
    assert all(name in map(str, range(10)) for (name,) in db.rows(query, role=ANALYST))
    again = fit(db, "models", "mst", 1, warm_start=True, seed=SEED, role=ANALYST)
    places = "SELECT s.place, count(*) FROM madlib_mop.visit v JOIN madlib_mop.segment s USING (run_id, segment_id)"
    query = f"{places} WHERE run_id = %s AND data_set = 'training' AND epoch = 2 GROUP BY 1 ORDER BY 1"
    assert db.rows(query, [again.run_id]) == [(SERVER, 2), (None, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_host_may_be_updated_first(cluster, host_cluster, version):
    one_thread()
    ours = restore_both(cluster, host_cluster, version)
    try:
        before = kept(ours)
        ours.at[SERVER].rows(UPDATE)
        if version != __version__:
            refused = refusal_of(ours.db, CALLS["train"], role=ANALYST)
            assert refused.sqlstate == "55000" and UPDATE in refused.hint
        ours.db.rows(UPDATE)
        assert kept(ours, before) == before
        assert finding(ours)[0] is CheckState.OK
        assert_resumes(ours.db)
    finally:
        drop_both(ours)
