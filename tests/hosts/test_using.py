"""All uses of packed tables on hosts: warm start, replay, evaluate; and the calls that are rejected before any work.

The bits of runs, and the effects of faults, are tested in tests/engines/test_hosts.py.
"""

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, newest_run, visits, wait_for
from tests.helpers.hosts import ANALYST
from tests.helpers.training import (
    ALIKE,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    script,
    select_configurations,
    weights,
)

N_SEGMENTS, SEED = 2, 31


@pytest.fixture(scope="module")
def bench(hosts):
    """The digits on hosts (train) and here (train_here), configurations, and a role that may read all tables."""
    db = hosts.db
    load_digits(db, 80, 40)
    load_architectures(db)
    select_configurations(db, "mst", ALIKE[:2])
    select_configurations(db, "mst_1", ALIKE[:1])
    pack(db, N_SEGMENTS)
    script(
        db,
        "SET madlib_mop.hosts = 'here'",
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        "SELECT madlib.training_preprocessor_dl('train_rows', 'train_here', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid_here', 'y', 'x', 'train_here', 37)",
    )
    script(
        db,
        f"SELECT madlib_mop.grant_use('{ANALYST}')",
        f"CREATE SCHEMA mine AUTHORIZATION {ANALYST}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ANALYST}",
    )
    return hosts


@pytest.fixture(scope="module")
def trained(bench):
    """A table packed, and models trained, on hosts by a role with only the documented rights."""
    script(
        bench.db,
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        "SELECT madlib.training_preprocessor_dl('public.train_rows', 'mine.train', 'y', 'x', 37, 16.0, seed := 5)",
        "SELECT madlib.validation_preprocessor_dl('public.valid_rows', 'mine.valid', 'y', 'x', 'mine.train', 37)",
        role=ANALYST,
    )
    fit(bench.db, "mine.models", "public.mst_1", 1, source_table="mine.train", role=ANALYST, schedule="rotation")
    return bench


@pytest.mark.slow
def test_warm_start_and_replay(bench):
    """A warm start continues the models trained on the hosts; a replay has the same bits."""
    db, first, ends = bench.db, [], []
    for suffix in ("", "_here"):
        options = {"source_table": f"train{suffix}", "validation_table": f"valid{suffix}", "schedule": "rotation"}
        first.append(fit(db, f"models{suffix}", "mst", 1, seed=SEED, **options).run_id)
        ends.append(digests(db, fit(db, f"models{suffix}", "mst", 1, warm_start=True, **options).run_id))
    begun = digests(db, first[0])
    assert begun == digests(db, first[1]) and ends[0] == ends[1]
    db.rows("SELECT madlib_mop.replay(%s, 'again')", [first[0]])
    run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
    assert digests(db, run_id) == begun


def test_a_role_trains_and_evaluates_at_hosts(trained):
    """A role with USAGE and user mappings trains there; evaluate() fetches its rows shard by shard."""
    assert weights(trained.db, "mine.models").keys() == {1}
    scores = []
    for table, output in (("mine.valid", "there"), ("public.valid_here", "here")):
        trained.db.rows(
            f"SELECT madlib.madlib_keras_evaluate('mine.models', '{table}', 'mine.{output}', mst_key := 1)",
            role=ANALYST,
        )
        scores.append(trained.db.rows(f"SELECT loss, metric FROM mine.{output}"))
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_validation_rows_here_are_first_read_late(trained):
    """The first session that reads rows opens with the first metrics: by then the password of the run has expired."""
    db, before = trained.db, newest_run(trained.db)
    call = BackgroundFit(
        db,
        "SELECT madlib.madlib_keras_fit_multiple_model('mine.train', 'mine.read_late', 'public.mst_1', 40,"
        " validation_table := 'public.valid_here')",
        role=ANALYST,
    )
    run_id = wait_for(lambda: newest_run(db) != before and newest_run(db), what="the run")
    wait_for(lambda: visits(db, run_id), what="a visit")
    role = db.value("SELECT login_role FROM madlib_mop.run WHERE run_id = %s", [run_id])
    db.rows(f"ALTER ROLE {role} VALID UNTIL '2001-01-01'")
    call.succeed()
    n_metrics = "SELECT count(*) FROM madlib_mop.metric WHERE run_id = %s AND data_set = 'validation'"
    assert db.value(n_metrics, [run_id])


@pytest.mark.slow
def test_evaluate_in_the_transaction_that_packed(trained):
    """One transaction reads one snapshot of a host: later rows need another transaction."""
    statements = (
        "SELECT count(*) FROM mine.train",
        "SELECT madlib.validation_preprocessor_dl('valid_rows', 'mine.late', 'y', 'x', 'mine.train', 37)",
        "SELECT madlib.madlib_keras_evaluate('mine.models', 'mine.late', 'mine.late_scores', mst_key := 1)",
    )
    connection = trained.db.connect(ANALYST, autocommit=False)
    with connection.cursor() as cursor, pytest.raises(psycopg2.Error, match="but this transaction can see 0") as caught:
        for statement in statements:
            cursor.execute(statement)
    connection.close()
    assert "COMMIT first" in caught.value.diag.message_hint


def refused(bench, *before, role=ANALYST, source="train"):
    """Call fit as a role, after some statements; return the error's SQLSTATE and text."""
    n_runs = bench.db.value("SELECT count(*) FROM madlib_mop.run")
    script(bench.db, *before)
    with pytest.raises(psycopg2.Error) as caught:
        bench.db.rows(
            "SELECT madlib.madlib_keras_fit_multiple_model(%s, 'mine.refused', 'public.mst', 1)", [source], role=role
        )
    error = caught.value
    assert "a password for tests" not in f"{error}" and "127.0.0.1" not in f"{error}"
    assert bench.db.value("SELECT count(*) FROM madlib_mop.run") == n_runs
    return error.pgcode, f"{error.diag.message_primary} | {error.diag.message_hint}"


def test_a_role_without_rights_on_the_server(bench):
    """Without a user mapping or the right to use the server, a role gets one error with the statement to run."""
    mapping = f"USER MAPPING FOR {ANALYST} SERVER beta"
    options = bench.db.value(
        "SELECT umoptions FROM pg_user_mappings WHERE srvname = 'beta' AND usename = %s", [ANALYST]
    )
    state, said = refused(bench, f"DROP {mapping}")
    assert state == "55000" and f'CREATE USER MAPPING FOR "{ANALYST}" SERVER "beta"' in said
    with pytest.raises(psycopg2.Error, match="has no user mapping for server beta"):
        script(
            bench.db,
            "SELECT madlib.training_preprocessor_dl('public.train_rows', 'mine.packed', 'y', 'x')",
            role=ANALYST,
        )
    secret = dict(option.split("=", 1) for option in options)["password"]
    bench.db.rows(f"CREATE {mapping} OPTIONS (user '{ANALYST}', password '{secret}')")
    state, said = refused(bench, f"REVOKE USAGE ON FOREIGN SERVER alpha FROM {ANALYST}")
    assert state == "42501" and f'GRANT USAGE ON FOREIGN SERVER "alpha" TO "{ANALYST}"' in said
    with pytest.raises(psycopg2.Error, match="has no right to use server alpha"):
        script(
            bench.db,
            "SELECT madlib.training_preprocessor_dl('public.train_rows', 'mine.packed', 'y', 'x')",
            role=ANALYST,
        )
    bench.db.rows(f"GRANT USAGE ON FOREIGN SERVER alpha TO {ANALYST}")


def test_a_role_that_may_not_read_at_the_host(bench):
    """The rows on a host belong to their owner: a role that is mapped to another role there gets an error."""
    state, said = refused(bench)
    assert state == "42501" and "GRANT SELECT there too" in said


def test_policies_are_refused(bench):
    """Row-level security cannot be enforced on a host without the policies."""
    db = bench.db
    db.rows("ALTER TABLE train ENABLE ROW LEVEL SECURITY")
    db.rows("CREATE POLICY half ON train USING (buffer_id % 2 = 0)")
    for at in bench.at.values():
        at.rows(f"GRANT pg_read_all_data TO {ANALYST}")
    state, said = refused(bench)
    assert state == "0A000" and "row-level security" in said and "madlib_mop.hosts = 'here'" in said
    db.rows("ALTER TABLE train DISABLE ROW LEVEL SECURITY")
    for at in bench.at.values():
        at.rows(f"REVOKE pg_read_all_data FROM {ANALYST}")


def test_gpus_are_refused():
    """The GPUs of a host are unknown here."""
    from madlib_mop.driver.data.packed import gpus_of_run
    from madlib_mop.engines.base.interface import HERE, SegmentLocation
    from madlib_mop.engines.postgres import Postgres
    from madlib_mop.errors import Unsupported

    class Packed:
        relation = "train"
        shards = ()

        def __init__(self, *places):
            self.limits = Postgres(None).limits(places)

    with pytest.raises(Unsupported, match="only this server's GPUs are known"):
        gpus_of_run(1, Packed(HERE, SegmentLocation("alpha")))
    assert gpus_of_run(0, Packed(SegmentLocation("alpha"))) == {}
