"""The leaderboard: which model of a run is the best, by a rule that holds for any metric."""

import pytest

from tests.security.kit import insert, record_run

RUN = 7


@pytest.fixture
def board(db):
    """Give a function that writes models' figures by hand and gives the keys as the leaderboard ranks them."""

    def rank(**figures) -> list[int]:
        db.rows("DELETE FROM madlib_mop.metric")
        db.rows("DELETE FROM madlib_mop.model")
        for number, (key, rows) in enumerate(figures.items()):
            mst_key = int(key.removeprefix("m"))
            state = "failed" if rows == [] else "trained"
            insert(
                db, "model", run_id=RUN, mst_key=mst_key, ordinal=number, model_id=1, compile_params="c",
                fit_params="f", model_arch={}, last_epoch=2, state=state,
            )  # fmt: skip
            for epoch, data_set, ordinal, name, value in rows:
                insert(
                    db, "metric", run_id=RUN, mst_key=mst_key, epoch=epoch, data_set=data_set, ordinal=ordinal,
                    name=name, value=value, elapsed_s=1.0,
                )  # fmt: skip
        ranked = db.rows("SELECT rank, mst_key FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank", [RUN])
        assert [number for number, _ in ranked] == list(range(1, len(figures) + 1))
        return [mst_key for _, mst_key in ranked]

    record_run(db, RUN, db.cluster.superuser)
    yield rank
    db.rows("DELETE FROM madlib_mop.run")
    db.rows(f"DROP TABLE madlib_mop.model_state_{RUN}_0")


def at(epoch: int, loss: float, metric: float | None = None, name: str = "accuracy", data_set: str = "validation"):
    """Write a model's figures after one epoch."""
    rows = [(epoch, data_set, 0, "loss", loss)]
    return rows if metric is None else [*rows, (epoch, data_set, 1, name, metric)]


def test_the_first_metric_counts_and_the_loss_breaks_ties(board):
    assert board(m1=at(1, 0.5, 0.9), m2=at(1, 0.9, 0.95), m3=at(1, 0.4, 0.9)) == [2, 3, 1]


def test_an_error_is_the_better_the_lower_it_is(board):
    assert board(m1=at(1, 5.0, 2.0, "mae"), m2=at(1, 6.0, 1.0, "mae")) == [2, 1]


def test_without_a_metric_or_with_different_ones_the_loss_counts(board):
    assert board(m1=at(1, 0.5), m2=at(1, 0.4)) == [2, 1]
    assert board(m1=at(1, 0.5, 0.9), m2=at(1, 0.4, 0.1)) == [1, 2]
    assert board(m1=at(1, 0.5, 0.9), m2=at(1, 0.4, 0.1, "mae")) == [2, 1]
    assert board(m1=at(1, 0.5, 0.9), m2=at(1, 0.4)) == [2, 1]


def test_validation_data_count_where_there_are_some_and_the_newest_epoch(board):
    first = [*at(1, 0.1, 0.99), *at(2, 0.5, 0.7), *at(2, 0.1, 0.99, data_set="training")]
    second = [*at(1, 0.9, 0.1), *at(2, 0.4, 0.8), *at(2, 0.6, 0.5, data_set="training")]
    assert board(m1=first, m2=second) == [2, 1]


def test_training_data_count_where_there_are_no_others(board):
    assert board(m1=at(1, 0.1, 0.5, data_set="training"), m2=at(1, 0.2, 0.6, data_set="training")) == [2, 1]


def test_failed_models_come_last_and_nan_before_them(board):
    nan = float("nan")
    assert board(m1=[], m2=at(1, nan, nan), m3=at(1, 9.0, 0.01)) == [3, 2, 1]


@pytest.mark.parametrize(
    "higher, names",
    [
        (True, "accuracy acc categorical_accuracy top_k_categorical_accuracy auc precision recall f1_score fbeta_score"
               " cosine_similarity mean_io_u r2_score out_1_accuracy top_4_accuracy true_positives"
               " sensitivity_at_specificity pearson_correlation"),
        (False, "loss mse mean_squared_error mae mean_absolute_percentage_error categorical_crossentropy hinge poisson"
                " kl_divergence log_cosh_error root_mean_squared_error false_negatives my_metric"),
    ],
)  # fmt: skip
def test_which_way_a_metric_goes_is_told_by_its_name(db, higher, names):
    for name in names.split():
        assert db.value("SELECT madlib_mop.higher_is_better(%s)", [name]) is higher, name
