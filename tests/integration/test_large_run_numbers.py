"""Runs with numbers of more than 31 bits: advisory locks of PostgreSQL have less room than run_id."""

import psycopg2
import pytest

from madlib_mop.catalog.facts.now import read_status
from tests.helpers.commands import run_here
from tests.helpers.faults import BackgroundFit, assert_nothing_left, fit_statement, newest_run, visits, wait_for
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

pytestmark = [pytest.mark.one_session, pytest.mark.slow]
ANN = "ann"


@pytest.fixture(scope="module")
def bench(db):
    db.cluster.create_role(ANN)
    db.rows("SELECT madlib_mop.grant_use(%s)", [ANN])
    db.rows(f"GRANT CREATE ON SCHEMA public TO {ANN}")
    load_digits(db)
    load_architectures(db)
    pack(db, 2, suffix="_2")
    select_configurations(db, "mst", ALIKE[:1])
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ANN}")
    return db


@pytest.mark.parametrize("number", [2**31 + 5, 2**32 + 7, 2**40 + 9])
def test_a_run_is_cancelled_resumed_and_replayed(bench, number):
    bench.rows(f"ALTER TABLE madlib_mop.run ALTER COLUMN run_id RESTART WITH {number}")
    call = BackgroundFit(bench, fit_statement(f"t_{number}", "mst", 200, "train_2", 3), role=ANN)
    wait_for(lambda: call.error or (newest_run(bench) == number and visits(bench, number) >= 2), what="visits")
    assert call.error is None, call.error
    assert not read_status(bench.rows, number).has_ended
    assert bench.value("SELECT madlib_mop.cancel(%s)", [number], ANN) is True
    call.join()
    assert isinstance(call.error, psycopg2.errors.QueryCanceled), call.error
    assert_nothing_left(bench)
    short = fit_statement(f"s_{number}", "mst", 1, "train_2", 3)
    bench.rows(short, role=ANN)
    bench.rows("SELECT madlib_mop.replay(%s, %s)", [number + 1, f"r_{number}"], ANN)
    assert bench.rows(f"SELECT model_weights FROM s_{number}") == bench.rows(f"SELECT model_weights FROM r_{number}")
    watched = run_here(bench, "watch", str(number + 1))
    assert f"run {number + 1} finished" in watched.stdout, watched
    for run_id in (number, number + 1, number + 2):
        bench.rows("SELECT madlib_mop.drop_run(%s)", [run_id], ANN)
    assert_nothing_left(bench)
