"""The view pareto: the models of a run that no other one surpasses in score, multiplications and size."""

import random

import pytest

from tests.helpers.security.attacks import insert, record_run

pytestmark = pytest.mark.one_session

RUN = 7


@pytest.fixture
def record(db):
    """Return a function that writes models by hand: their key, score, multiplications, bytes and state."""

    def write(*models, metric: str = "accuracy", run_id: int = RUN) -> None:
        for number, (mst_key, score, work, size, *state) in enumerate(models):
            insert(
                db, "model", run_id=run_id, mst_key=mst_key, ordinal=number, model_id=1, compile_params="c",
                fit_params="f", model_arch={}, last_epoch=2, state=(state or ["trained"])[0], multiplications=work,
                model_bytes=size,
            )  # fmt: skip
            figures = [] if score is None else [(0, "loss", 1.0 if metric != "loss" else score)]
            figures += [] if score is None or metric == "loss" else [(1, metric, score)]
            for ordinal, name, value in figures:
                insert(
                    db, "metric", run_id=run_id, mst_key=mst_key, epoch=1, data_set="validation", ordinal=ordinal,
                    name=name, value=value, elapsed_s=1.0,
                )  # fmt: skip

    runs = (RUN, RUN + 1)
    for run_id in runs:
        record_run(db, run_id, db.cluster.superuser)
    for table in ("metric", "visit_metric", "model"):
        db.rows(f"DELETE FROM madlib_mop.{table}")
    yield write
    db.rows("DELETE FROM madlib_mop.run")
    for run_id in runs:
        db.rows(f"DROP TABLE madlib_mop.model_state_{run_id}_0")


def front(db, run_id: int = RUN) -> list[int]:
    rows = db.rows("SELECT mst_key FROM madlib_mop.pareto WHERE run_id = %s ORDER BY rank", [run_id])
    return [mst_key for (mst_key,) in rows]


def test_it_has_the_models_that_no_other_one_surpasses(record, db):
    record((1, 0.90, 100, 400), (2, 0.95, 900, 3600), (3, 0.94, 1000, 4000), (4, 0.90, 200, 800), (5, 0.80, 50, 500))
    record((1, 0.5, 10**6, 10**6), run_id=RUN + 1)
    assert front(db) == [2, 1, 5] and front(db, RUN + 1) == [1]
    rows = db.rows("SELECT rank, ranked_by, score, multiplications, size_bytes, state, compile_params, fit_params"
                   " FROM madlib_mop.pareto WHERE run_id = %s AND mst_key = 1", [RUN])  # fmt: skip
    assert rows == [(3, "accuracy", 0.90, 100, 400, "trained", "c", "f")]


def test_of_models_that_score_alike_the_smaller_network_is_the_one(record, db):
    """Although the larger one is before it on the leaderboard, by its key."""
    record((1, 0.9, 200, 800), (2, 0.9, 100, 400), (3, 0.9, 100, 400))
    assert front(db) == [2]


def test_an_error_is_the_better_the_lower_it_is(record, db):
    record((1, 2.0, 100, 400), (2, 1.0, 100, 400), (3, 0.5, 200, 800), metric="mae")
    record((1, 2.0, 100, 400), (2, 1.0, 100, 400), (3, 0.5, 200, 800), metric="loss", run_id=RUN + 1)
    assert front(db) == front(db, RUN + 1) == [3, 2]


def test_models_without_a_score_are_left_out(record, db):
    record((1, None, 1, 4), (2, float("nan"), 1, 4), (3, 0.5, 9, 36), (4, 0.9, 1, 4, "failed"), (5, 0.9, 1, None))
    assert front(db) == [3]


def test_models_are_compared_by_score_and_size_if_the_multiplications_of_one_are_unknown(record, db):
    """As of version 1.0.0, whose searches can be resumed."""
    record((1, 0.9, None, 800), (2, 0.8, None, 400), (3, 0.7, None, 600))
    record((1, 0.9, 100, 800), (2, 0.8, 50, 400), (3, 0.7, None, 600), (4, 0.7, 1, 700), run_id=RUN + 1)
    assert front(db) == front(db, RUN + 1) == [1, 2]


def test_it_agrees_with_the_comparison_of_all_pairs(record, db):
    rng = random.Random(3)
    models = [(key, rng.randint(1, 40) / 40, rng.randint(1, 12), rng.randint(1, 12)) for key in range(1, 201)]
    record(*models)

    def surpasses(a, b):
        one, other = (-a[1], *a[2:]), (-b[1], *b[2:])
        return all(x <= y for x, y in zip(one, other, strict=True)) and (one != other or a[0] < b[0])

    expected = {b[0] for b in models if not any(surpasses(a, b) for a in models if a is not b)}
    assert 3 < len(expected) < 100
    assert set(front(db)) == expected
