"""The leaderboard: the ranks of a run's models, by a rule for any metric."""

import json

import pytest

from madlib_mop.catalog.facts.now import read_baselines, read_models, read_trained
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.models.parameters.keras_names import LOSS_STRINGS, METRIC_NAMES, METRIC_STRINGS, METRICS
from madlib_mop.models.parameters.parser import HIGHER, higher_is_better
from tests.helpers.security.attacks import insert, record_run

pytestmark = pytest.mark.one_session

RUN = 7


@pytest.fixture
def board(db):
    """Return a function that writes models' metrics by hand and returns the keys in the leaderboard's order."""

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
    """Write a model's metrics after one epoch."""
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


def test_the_view_says_what_it_ranks_by(board, db):
    query = "SELECT DISTINCT ranked_by FROM madlib_mop.leaderboard"
    for figures, name in (
        ({"m1": at(1, 0.5, 0.9), "m2": at(1, 0.4, 0.1)}, "accuracy"),
        ({"m1": at(1, 0.5, 0.9), "m2": at(1, 0.4, 0.1, "mae")}, "loss"),
        ({"m1": at(1, 0.5, 0.9), "m2": []}, "accuracy"),
        ({"m1": at(1, 0.5), "m2": at(1, 0.4)}, "loss"),
    ):
        board(**figures)
        assert db.rows(query) == [(name,)], figures


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
                " kl_divergence log_cosh_error root_mean_squared_error false_negatives my_metric inaccuracy"
               " accumulated_error"),
    ],
)  # fmt: skip
def test_which_way_a_metric_goes_is_told_by_its_name(db, higher, names):
    for name in names.split():
        assert db.value("SELECT madlib_mop.higher_is_better(%s)", [name]) is higher, name


def test_sql_and_python_tell_the_same_of_every_name(db):
    words = [*HIGHER, *METRICS, *METRIC_STRINGS, *LOSS_STRINGS, *METRIC_NAMES.values(), "error", "", "İACC", "É_acc"]
    forms = ("{}", "out_{}", "{}_1", "out_{}_23", "in{}", "{}s", "{}_loss", "a\n{}", "{}\n", "_{}", "{}_", "Val_{}")
    names = [form.format(word) for word in words for form in forms]
    names += [name.upper() for name in names]
    found = db.rows("SELECT n, madlib_mop.higher_is_better(n) FROM unnest(%s::text[]) n", [names])
    assert found == [(name, higher_is_better(name)) for name in names]
    assert 500 < sum(higher for _, higher in found) < len(found) - 500


def under_way(db, *keys: int) -> None:
    """Mark models as in training."""
    db.rows("UPDATE madlib_mop.model SET state = 'training' WHERE mst_key = ANY (%s)", [list(keys)])


def shown(db) -> dict[int, tuple]:
    """Return rank, metric_epoch, comparable and validation_loss of each model."""
    rows = db.rows("SELECT mst_key, rank, metric_epoch, comparable, validation_loss FROM madlib_mop.leaderboard")
    return {row[0]: row[1:] for row in rows}


def test_while_models_train_all_are_ranked_by_an_epoch_that_all_of_them_have_reached(board, db):
    """One model is at epoch 18, another at epoch 4: at epoch 4 the other one is better."""
    far = [*at(2, 0.9), *at(4, 0.8), *at(18, 0.1)]
    assert board(m1=far, m2=[*at(2, 0.7), *at(4, 0.6)], m3=[*at(2, 0.5)], m4=at(4, 0.7)) == [1, 3, 2, 4]
    under_way(db, 1, 2)
    assert shown(db) == {2: (2, 4, True, 0.6), 4: (3, 4, True, 0.7), 1: (4, 4, True, 0.8), 3: (1, 2, False, 0.5)}
    under_way(db, 3)
    assert shown(db) == {3: (1, 2, True, 0.5), 2: (2, 2, True, 0.7), 1: (4, 2, True, 0.9), 4: (3, 4, False, 0.7)}


def test_models_that_ended_are_ranked_by_their_final_weights_and_say_so_of_another_epoch(board, db):
    assert board(m1=[*at(1, 0.3), *at(2, 0.5)], m2=at(1, 0.4), m3=at(2, 0.2)) == [3, 2, 1]
    assert {key: row[1:3] for key, row in shown(db).items()} == {1: (2, True), 2: (1, False), 3: (2, True)}
    db.rows(
        'UPDATE madlib_mop.model SET state_version = -3, best_state = \'{"epoch": 1, "version": -3}\' WHERE mst_key = 1'
    )
    assert shown(db)[1] == (2, 1, False, 0.3), "its weights are those of iteration 1"


def test_a_model_without_figures_does_not_keep_the_others_from_being_ranked(board, db):
    assert board(m1=[*at(1, 0.3), *at(2, 0.5)], m2=[*at(1, 0.4)]) == [2, 1]
    db.rows("UPDATE madlib_mop.metric SET mst_key = 9 WHERE mst_key = 2")
    under_way(db, 1, 2)
    assert shown(db) == {1: (1, 2, True, 0.5), 2: (2, None, None, None)}


LINEAR = Baseline(name="linear model", mst_key=2)
BOOSTING = Baseline(
    name="gradient boosting", metric_name="accuracy", validation_metric=0.97, validation_loss=0.2,
    note="to compare with",
)  # fmt: skip


def test_baselines_stand_beside_the_models_and_one_that_is_none_has_no_rank_and_no_key(board, db):
    assert board(m1=at(1, 0.5, 0.95), m2=at(1, 0.4, 0.9)) == [1, 2]
    query = (
        "SELECT rank, mst_key, model_id, state, baseline, metric_name, validation_metric, validation_loss,"
        " state_detail, ranked_by FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank, mst_key"
    )
    models = [
        (1, 1, 1, "trained", None, "accuracy", 0.95, 0.5, None, "accuracy"),
        (2, 2, 1, "trained", None, "accuracy", 0.9, 0.4, None, "accuracy"),
    ]
    assert db.rows(query, [RUN]) == models
    document = json.dumps([LINEAR.as_json(), BOOSTING.as_json()])
    db.rows("UPDATE madlib_mop.run SET baselines = %s WHERE run_id = %s", [document, RUN])
    first, second, third = db.rows(query, [RUN])
    assert [first, second] == [models[0], (*models[1][:4], "linear model", *models[1][5:])]
    assert third == (None, None, None, "baseline", BOOSTING.name, "accuracy", 0.97, 0.2, "to compare with", None)
    assert db.rows("SELECT baseline FROM madlib_mop.leaderboard WHERE run_id <> %s", [RUN]) == []


def test_a_baseline_that_is_no_model_is_read_for_pages_and_offered_to_nobody(board, db):
    """It would be the best one."""
    board(m1=at(1, 0.5, 0.95), m2=at(1, 0.4, 0.9))
    document = json.dumps([LINEAR.as_json(), BOOSTING.as_json()])
    db.rows("UPDATE madlib_mop.run SET baselines = %s WHERE run_id = %s", [document, RUN])
    db.rows("UPDATE madlib_mop.model SET model_bytes = 8")
    assert read_baselines(db.rows, RUN) == (BOOSTING,)
    assert [(line.mst_key, line.baseline) for line in read_models(db.rows, RUN)] == [(1, None), (2, "linear model")]
    assert read_trained(db.rows, RUN) == [1, 2]
    assert {key for (key,) in db.rows("SELECT mst_key FROM madlib_mop.pareto")} == {1}
    assert db.rows("SELECT mst_key FROM madlib_mop.leaderboard WHERE rank = 1") == [(1,)]
