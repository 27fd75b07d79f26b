"""Tests that only apply to Citus: shards that move, distributed sources, tables that cannot be trained on.

The guarantees of all engines are tested in tests/engines/test_citus.py.
"""

import psycopg2
import pytest

from madlib_mop import __version__
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.cli.doctor import examine
from madlib_mop.engines.sessions.login import create_login, drop_login
from tests.helpers.citus import ANALYST, NEEDS_CITUS
from tests.helpers.faults import BackgroundFit, assert_whole, newest_run, visits, wait_for
from tests.helpers.remote import sessions
from tests.helpers.training import (
    MIXED,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    script,
    select_configurations,
)

pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(900)]
N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = 2, 4, 2, 77
MEMBER = "mop_citus_member"
OPTIONS = {"source_table": "train", "validation_table": "valid", "metrics_compute_frequency": 1, "seed": SEED}
PLACES = """
SELECT row_number() OVER (ORDER BY shardminvalue::integer) - 1, shardid, nodename, nodeport
FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_node USING (groupid)
WHERE logicalrelid = %s::regclass ORDER BY 1
"""


@pytest.fixture(scope="module")
def bench(citus):
    """Packed digits on the cluster, and a run without faults."""
    db = citus.db
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "mst", MIXED[:N_MODELS])
    run = fit(db, "undisturbed", "mst", N_EPOCHS, **OPTIONS)
    citus.expected = digests(db, run.run_id)
    citus.make_analyst()
    script(
        db,
        "CREATE TABLE spread (id integer, x real[], y integer)",
        "SELECT create_distributed_table('spread', 'id', shard_count := 3, colocate_with := 'none')",
        "INSERT INTO spread SELECT * FROM train_rows",
    )
    return citus


def shards(citus, table: str) -> dict[int, tuple[int, str]]:
    """Return the shard of each segment, and the name of its node's server."""
    names = {(node.host, node.port): server for server, node in citus.at.items()}
    names[citus.db.host, citus.db.port] = None
    return {number: (shard, names[host, str(port)]) for number, shard, host, port in citus.db.rows(PLACES, [table])}


def move(citus, table: str, segment: int) -> str:
    """Move a segment's shard to another node; return that node's server."""
    shard, source = shards(citus, table)[segment]
    target = next(server for server in citus.at if server != source)
    ends = [(node.host, int(node.port)) for node in (citus.at[source], citus.at[target])]
    citus.db.rows("SELECT citus_move_shard_placement(%s, %s, %s, %s, %s, 'block_writes')", [shard, *ends[0], *ends[1]])
    return target


def places(db, run_id: int, data_set: str = "training") -> dict[int, str]:
    """Return the places of a run's segments, as its record has them."""
    query = "SELECT segment_id, place FROM madlib_mop.segment WHERE run_id = %s AND data_set = %s"
    return dict(db.rows(query, [run_id, data_set]))


def test_a_shard_has_one_key_and_its_own_rows(bench):
    """Packing: one key value per shard, rows and shards distributed evenly; the run's record shows the places."""
    found = []
    for segment, (shard, server) in shards(bench, "train").items():
        ((n_keys, n_rows),) = bench.at[server].rows(
            f"SELECT count(DISTINCT __dist_key__), sum(x_shape[1]) FROM train_{shard}"
        )
        found.append((segment, n_keys, n_rows))
    assert found == [(i, 1, 60) for i in range(N_SEGMENTS)]
    at = {segment: server for segment, (_, server) in shards(bench, "train").items()}
    assert set(at.values()) == set(bench.at)
    assert places(bench.db, 1) == at
    assert bench.db.rows("SELECT DISTINCT engine FROM madlib_mop.segment") == [("citus",)]


def test_runs_make_no_roles_at_the_nodes(bench):
    """The login role of a run exists on the coordinator only; a user's role exists on all nodes."""
    ours = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'madlib\\_mop\\_run\\_%'"
    _, catalog = connect_by_dsn(bench.db.dsn())
    bench.db.rows(f"CREATE ROLE {MEMBER}")
    login = create_login(catalog, 4711, MEMBER)
    try:
        assert bench.db.value(ours) == 1
        assert [node.value(ours) for node in bench.at.values()] == [0] * len(bench.at)
        members = "SELECT count(*) FROM pg_roles WHERE rolname = %s"
        assert [node.value(members, [MEMBER]) for node in bench.at.values()] == [1] * len(bench.at)
    finally:
        drop_login(catalog, login.role)
        catalog.close()
        bench.db.rows(f"DROP ROLE {MEMBER}")
    assert bench.db.value(ours) == 0


def test_a_distributed_source_gives_the_same_rows(bench):
    """Packing: the order of rows depends on the seed and their content, not on their places."""
    script(
        bench.db,
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        "SELECT madlib.training_preprocessor_dl('spread', 'spread_packed', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('spread', 'spread_valid', 'y', 'x', 'spread_packed', 37)",
    )
    content = "SELECT __dist_key__, buffer_id, x, y, x_shape, y_shape FROM {} ORDER BY 1, 2"
    assert bench.db.rows(content.format("spread_packed")) == bench.db.rows(content.format("train"))
    assert bench.db.value("SELECT sum(x_shape[1]) FROM spread_valid") == 240
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="NULL in 1 of 241 rows"):
        script(
            bench.db,
            "INSERT INTO spread VALUES (1000, NULL, 1)",
            "SELECT madlib.training_preprocessor_dl('spread', 'not_made', 'y', 'x')",
        )
    bench.db.rows("DELETE FROM spread WHERE id = 1000")


def test_training_goes_on_after_a_rebalance(bench):
    """A new run reads moved shards at their new places; an interrupted run follows them, with the same bits."""
    before = newest_run(bench.db)
    call = BackgroundFit(
        bench.db,
        f"SELECT madlib.madlib_keras_fit_multiple_model('train', 'moved', 'mst', {N_EPOCHS},"
        f" validation_table := 'valid', metrics_compute_frequency := 1, seed := {SEED})",
    )
    run_id = wait_for(lambda: newest_run(bench.db) != before and newest_run(bench.db), what="the run")
    wait_for(lambda: visits(bench.db, run_id) or not call.running, what="a visit")
    bench.db.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    call.join()
    assert call.error.pgcode == "57014"
    target = move(bench, "train", 0)
    assert places(bench.db, run_id)[0] != target
    call = BackgroundFit(bench.db, "SELECT madlib_mop.resume(%s)", [run_id])
    call.succeed()
    assert f"segment 0 of public.train is now at {target}" in "".join(call.connection.notices)
    assert places(bench.db, run_id)[0] == target
    assert_whole(bench.db, run_id, bench.expected, N_MODELS, N_SEGMENTS, N_EPOCHS)
    again = fit(bench.db, "after", "mst", N_EPOCHS, **OPTIONS)
    assert places(bench.db, again.run_id)[0] == target
    assert digests(bench.db, again.run_id) == bench.expected


def test_a_shard_that_is_moved_away_under_a_run(bench):
    """After a rebalance a trainer cannot read its rows again: the error explains it, and resume finds them."""
    db, before = bench.db, newest_run(bench.db)
    statement = f"SELECT madlib.madlib_keras_fit_multiple_model('train', 'taken', 'mst', 50, seed := {SEED})"
    call = BackgroundFit(db, statement)
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run")
    wait_for(lambda: visits(db, run_id) >= N_SEGMENTS or not call.running, what="a visit at each segment")
    source = shards(bench, "train")[1][1]
    target = move(bench, "train", 1)
    db.rows("CALL citus_cleanup_orphaned_resources()")
    for pid in sessions(bench.at[source]):
        bench.at[source].rows("SELECT pg_terminate_backend(%s)", [pid])
    call.join()
    assert call.error.pgcode == "42P01" and "madlib_mop.resume" in call.error.diag.message_hint
    message = call.error.diag.message_primary
    assert message.startswith('madlib_keras_fit_multiple_model: relation "public.train_') and "not exist" in message
    done = "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND segment_id = 1"
    n_visits = db.value(done, [run_id])
    call = BackgroundFit(db, "SELECT madlib_mop.resume(%s)", [run_id])
    wait_for(lambda: db.value(done, [run_id]) > n_visits or not call.running, what="a visit at the shard's new node")
    assert call.running, call.error
    assert places(db, run_id)[1] == target
    db.rows("SELECT madlib_mop.cancel(%s)", [run_id])
    call.join()


def test_an_ordinary_role(bench):
    """Promise 7: with USAGE and user mappings a role can pack and train; without, it gets one clear error before."""
    db = bench.db
    db.rows(f"GRANT SELECT ON train_rows, arch, mst, mst_summary TO {ANALYST}")
    script(
        db,
        f"SELECT madlib.training_preprocessor_dl('train_rows', '{ANALYST}.mine', 'y', 'x', 37, 16.0, seed := 5)",
        role=ANALYST,
    )
    assert len(shards(bench, f"{ANALYST}.mine")) == N_SEGMENTS  # the number with which both nodes were added
    options = {"source_table": f"{ANALYST}.mine", "seed": SEED, "role": ANALYST}
    fit(db, f"{ANALYST}.models", "mst", 1, **options)
    run_id = newest_run(db)
    assert db.rows("SELECT DISTINCT run_id FROM madlib_mop.progress", role=ANALYST) == [(run_id,)]
    assert set(places(db, run_id).values()) == set(bench.at)
    server = next(iter(bench.at))
    db.rows(f"DROP USER MAPPING FOR {ANALYST} SERVER {server}")
    for call in (
        "SELECT madlib.madlib_keras_fit_multiple_model('{0}.mine', '{0}.never', 'mst', 1)",
        "SELECT madlib.training_preprocessor_dl('train_rows', '{0}.never', 'y', 'x')",
    ):
        with pytest.raises(psycopg2.Error, match=f"has no user mapping for server {server}") as caught:
            db.rows(call.format(ANALYST), role=ANALYST)
        assert caught.value.pgcode == "55000" and "password" not in caught.value.diag.message_primary
    db.rows("SELECT madlib_mop.drop_run(%s)", [run_id], role=ANALYST)


def test_what_is_not_possible_is_said(bench):
    """Promise 8: tables distributed by another key, a call on a worker node, a node that is not a host."""
    db = bench.db
    script(
        db,
        "CREATE TABLE by_buffer AS SELECT * FROM train",
        "CREATE TABLE by_buffer_summary AS SELECT * FROM train_summary",
        "SELECT create_distributed_table('by_buffer', 'buffer_id', shard_count := 2, colocate_with := 'none')",
        "CREATE TABLE together AS SELECT * FROM train",
        "CREATE TABLE together_summary AS SELECT * FROM train_summary",
        "SELECT create_distributed_table('together', '__dist_key__', shard_count := 2, colocate_with := 'none')",
    )
    for table, reason in (
        ("by_buffer", "is distributed by 'buffer_id'"),
        ("together", "a shard with more than one value"),
    ):
        with pytest.raises(psycopg2.errors.InvalidParameterValue, match=reason):
            fit(db, "never", "mst", 1, source_table=table)
    node = next(iter(bench.at.values()))
    server = next(iter(bench.at))
    db.rows(f"ALTER SERVER {server} OPTIONS (SET dbname 'other')")
    try:
        with pytest.raises(psycopg2.Error, match=f"not added as hosts: {node.host}:{node.port}"):
            fit(db, "never", "mst", 1, source_table="train")
        with pytest.raises(psycopg2.Error, match=f"not added as hosts: {node.host}:{node.port}"):
            db.rows("SELECT madlib.training_preprocessor_dl('train_rows', 'never', 'y', 'x')")
    finally:
        db.rows(f"ALTER SERVER {server} OPTIONS (SET dbname '{db.name}')")


CALLS_AT_A_NODE = (
    "madlib.training_preprocessor_dl('spread', 'never', 'y', 'x')", "madlib_mop.submit('SELECT 1')",
    "madlib_mop.register('never', 'undisturbed', 1)", "madlib_mop.set_alias('never', 'champion', 1)",
    "madlib_mop.grant_model('never', 'postgres', 'predict')", "madlib_mop.grant_read('postgres')",
    "madlib_mop.cancel_job(1)", "madlib_mop.resume(1)", "madlib_mop.report(1)", "madlib_mop.add_host('node_1')",
    "madlib_mop.model_card('undisturbed', 1)", "madlib_mop.export_model('undisturbed', 1)",
    "madlib_mop.allow_recording('never')",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS_AT_A_NODE)
def test_a_worker_node_takes_no_calls(bench, call):
    """The record, the registry and the jobs are at the coordinator; nothing is stored at a worker node."""
    node = next(iter(bench.at.values()))
    with pytest.raises(psycopg2.Error, match="this server is a worker node of a Citus cluster") as caught:
        node.rows(f"SELECT {call}")
    assert caught.value.pgcode == "55000" and "groupid = 0" in caught.value.diag.message_hint
    for table in ("run", "job_record", "job_statement", "registered_model", "viewer"):
        assert node.rows(f"SELECT FROM madlib_mop.{table}") == []


def test_a_worker_node_tells_about_itself(bench):
    """What is not of the record can be asked anywhere."""
    node = next(iter(bench.at.values()))
    assert node.value("SELECT extension FROM madlib_mop.version()") == __version__
    assert "madlib_keras_fit" in node.value("SELECT madlib.madlib_keras_fit()")


@pytest.mark.parametrize("use", [
    "madlib.madlib_keras_fit_multiple_model('fresh', 'never', 'mst', 1)",
    "madlib.madlib_keras_evaluate('undisturbed', 'fresh', 'never', mst_key => 1)",
    "madlib_mop.make_ensemble('undisturbed', 'fresh', 'never')",
])  # fmt: skip
def test_a_table_is_used_after_the_transaction_that_packed_it(bench, use):
    """Its shards cannot be read at the nodes before; the error says COMMIT, and names no shard."""
    connection = bench.db.connect(autocommit=False)
    with connection.cursor() as cursor, pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState) as caught:
        cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'fresh', 'y', 'x', 37, 16.0)")
        cursor.execute(f"SELECT {use}")
    connection.close()
    message = caught.value.diag.message_primary
    assert "public.fresh was created in this transaction, which is not committed" in message, message
    assert caught.value.diag.message_hint.startswith("COMMIT first")


def test_the_doctor_counts_the_segments_of_all_nodes(bench):
    """A packed table has those of add_host; their trainers need no memory of the coordinator."""
    (found,) = [finding.found for finding in examine(bench.db.dsn()) if finding.check == "connections"]
    assert f"a run on {2 * len(bench.at)} segment(s)" in found, found


def test_plain_tables_are_trained_on_too(bench):
    """Tables that are not distributed: packed here with madlib_mop.hosts = 'here'; and a reference table."""
    db = bench.db
    script(
        db,
        "SET madlib_mop.hosts = 'here'",
        "SET madlib_mop.segments = 2",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'plain', 'y', 'x', 37, 16.0, seed := 5)",
        "CREATE TABLE everywhere AS SELECT * FROM plain",
        "CREATE TABLE everywhere_summary AS SELECT * FROM plain_summary",
        "SELECT create_reference_table('everywhere')",
    )
    runs = [fit(db, f"on_{table}", "mst", 1, source_table=table, seed=SEED) for table in ("plain", "everywhere")]
    assert digests(db, runs[0].run_id) == digests(db, runs[1].run_id)
    numbers = [run.run_id for run in runs]
    engines = db.rows("SELECT DISTINCT engine, place FROM madlib_mop.segment WHERE run_id = ANY (%s)", [numbers])
    assert engines == [("postgres", None)]


def test_distribution_rules_and_use(bench):
    """distribution_rules: dbid k is segment k - 1, other shards are empty; evaluate and predict read all shards."""
    db = bench.db
    script(
        db,
        "CREATE TABLE chosen AS SELECT unnest(ARRAY[1, 3]) AS dbid",
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'of_two', 'y', 'x', 37, 16.0,"
        " distribution_rules := 'chosen')",
        "SELECT madlib.madlib_keras_evaluate('undisturbed', 'train', 'evaluated', mst_key := 1)",
        "SELECT madlib.madlib_keras_predict('undisturbed', 'spread', 'id', 'x', 'predicted', mst_key := 1)",
    )
    run = fit(db, "on_two", "mst", 1, source_table="of_two", seed=SEED)
    assert sorted(places(db, run.run_id)) == [0, 2]
    assert db.value("SELECT count(*) FROM evaluated") == 1
    assert db.value("SELECT count(DISTINCT id) FROM predicted") == db.value("SELECT count(*) FROM spread")


def test_shards_on_the_coordinator_are_trained_on_there(bench):
    """If the coordinator has shards too, they are trained on here, with the same weights."""
    db = bench.db
    own = f"'{db.host}', {db.port}"
    db.rows(f"SELECT citus_set_node_property({own}, 'shouldhaveshards', true)")
    try:
        pack(db, N_SEGMENTS, suffix="_three")
    finally:
        db.rows(f"SELECT citus_set_node_property({own}, 'shouldhaveshards', false)")
    options = {**OPTIONS, "source_table": "train_three", "validation_table": "valid_three"}
    run = fit(db, "on_three", "mst", N_EPOCHS, **options)
    assert set(places(db, run.run_id).values()) == {None, *bench.at}
    assert digests(db, run.run_id) == bench.expected
