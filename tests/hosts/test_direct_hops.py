"""Direct hops: states go from host to host, and the weights have the same bits as through the coordinator."""

import pytest

from tests.helpers.remote import DIRECT, N_EPOCHS, N_MODELS, N_SEGMENTS, RUN, hops_allowed, prepare
from tests.helpers.searches import arguments, statement
from tests.helpers.training import digests, fit, script


@pytest.fixture(scope="module")
def bench(hosts):
    hosts.expected = prepare(hosts)
    with hops_allowed(hosts.db):
        yield hosts


def train(bench, table, *settings, **options):
    return fitted(bench, table, *settings, **options).run_id


def fitted(bench, table, *settings, **options):
    options = {"source_table": "train_2", "validation_table": "valid_2", **RUN, **options}
    return fit(bench.db, table, "mst", N_EPOCHS, (*DIRECT, *settings), **options)


@pytest.fixture(scope="module")
def watched(bench):
    """The hosts; each visit writes what the record then has into the table ``seen``."""
    bench.db.rows("CREATE TABLE seen (run_id bigint, mst_key int, epoch int, position int, n_held int, is_home bool)")
    script(
        bench.db,
        """
        CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.seen
            SELECT new.run_id, new.mst_key, new.epoch, new.position, count(c.version), m.state_server IS NULL
            FROM madlib_mop.model m LEFT JOIN madlib_mop.state_copy c
                 ON (c.run_id, c.mst_key) = (m.run_id, m.mst_key) AND NOT c.released
            WHERE (m.run_id, m.mst_key) = (new.run_id, new.mst_key) GROUP BY m.run_id, m.mst_key;
            RETURN NULL;
        END $$
        """,
        "CREATE TRIGGER seen AFTER INSERT ON madlib_mop.visit FOR EACH ROW EXECUTE FUNCTION see()",
    )
    yield bench
    bench.db.rows("DROP TRIGGER seen ON madlib_mop.visit")


def seen(watched, run_id) -> list[tuple]:
    """Return what each model's visits have left: how many states at hosts, and whether the newest is at home."""
    query = "SELECT mst_key, n_held, is_home FROM seen WHERE run_id = %s ORDER BY mst_key, epoch, position"
    found = {}
    for mst_key, *left in watched.db.rows(query, [run_id]):
        found.setdefault(mst_key, []).append(tuple(left))
    assert len(found) == N_MODELS
    (each,) = {tuple(lefts) for lefts in found.values()}
    return list(each)


@pytest.mark.parametrize("schedule", ["rotation", "longest_first"])
def test_the_bits_are_those_of_one_server(bench, schedule):
    run_id = train(bench, f"models_{schedule}", schedule=schedule)
    if schedule == "rotation":
        assert digests(bench.db, run_id) == bench.expected
    visits = bench.db.rows(
        "SELECT mst_key, digest_in, digest_out, timing ? 'pull_s' FROM madlib_mop.visit WHERE run_id = %s"
        " ORDER BY mst_key, epoch, position",
        [run_id],
    )
    assert len(visits) == N_MODELS * N_SEGMENTS * N_EPOCHS
    assert sum(was_direct for *_, was_direct in visits) >= len(visits) - N_MODELS
    for one, after in zip(visits, visits[1:], strict=False):
        assert one[0] != after[0] or one[2] == after[1], "each visit begins with what the one before has trained"
    assert bench.db.value(f"SELECT count(*) FROM models_{schedule} WHERE model_weights IS NOT NULL") == N_MODELS
    at_hosts = "SELECT count(*) FROM madlib_mop.model WHERE run_id = %s AND state_server IS NOT NULL"
    assert bench.db.value(at_hosts, [run_id]) == 0


@pytest.mark.parametrize(
    "given, held",
    [
        ({"copies": 3}, [1, 2, 3, 3, 3, 0]),
        ({"checkpoint_every": 1}, [1, 2, 0, 1, 2, 0]),
        pytest.param({"copies": 1}, [1, 1, 1, 1, 1, 0], marks=pytest.mark.slow),
        pytest.param({}, [1, 2, 2, 2, 2, 0], marks=pytest.mark.slow),
    ],
)
def test_hosts_hold_the_copies_that_are_asked_for_and_checkpoints_come_home(watched, given, held):
    table = "_".join(["held", *map(str, held)])
    run_id = train(watched, table, **given)
    assert seen(watched, run_id) == [(n, n == 0) for n in held]
    plan = watched.db.value("SELECT plan -> 'direct_hops' FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert plan == {"copies": 2, "checkpoint_every": None, **given}
    assert digests(watched.db, run_id) == watched.expected


def test_a_replay_has_the_same_bits_and_does_not_hop_directly(bench):
    """It clones models in the middle of an iteration, after the recorded visits."""
    run_id = train(bench, "models_first", schedule="auto")
    bench.db.rows("SELECT madlib_mop.replay(%s, 'models_again')", [run_id])
    ((again, plan),) = bench.db.rows("SELECT run_id, plan FROM madlib_mop.run WHERE parent_run_id = %s", [run_id])
    assert digests(bench.db, again) == digests(bench.db, run_id) and "direct_hops" not in plan


def search(db, table: str, source: str, validation: str, *settings: str, **options) -> int:
    """Call madlib_keras_automl; return its run."""
    tables = {"source_table": source, "validation_table": validation, "model_id_list": [1]}
    given = arguments(table, "hyperband", "R=2, eta=2", **tables, random_state=3, **options)
    connection = db.connect()
    try:
        with connection.cursor() as cursor:
            for setting in settings:
                cursor.execute(setting)
            cursor.execute(statement(given), list(given.values()))
    finally:
        connection.close()
    return db.value("SELECT max(run_id) FROM madlib_mop.run")


def test_a_search_hops_too_and_finds_the_same(watched):
    here = search(watched.db, "found_here", "train_here", "valid_here")
    hopped = search(watched.db, "found", "train_2", "valid_2", *DIRECT, copies=3, checkpoint_every=1)
    plan = watched.db.value("SELECT plan -> 'direct_hops' FROM madlib_mop.run WHERE run_id = %s", [hopped])
    assert plan == {"copies": 3, "checkpoint_every": 1}
    assert watched.db.value("SELECT max(n_held) FROM seen WHERE run_id = %s", [hopped]) == N_SEGMENTS - 1
    assert digests(watched.db, hopped) == digests(watched.db, here)
