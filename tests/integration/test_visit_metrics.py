"""Metrics after single visits, on a sample of rows (metrics_every): they change nothing, and models are ranked."""


import psycopg2
import pytest
from mop_backend.machine import processors

from tests.helpers.faults import BackgroundFit, kill, newest_run, trainers, visits, wait_for
from tests.helpers.training import ALIKE, digests, fit, load_architectures, load_digits, pack, select_configurations

pytestmark = pytest.mark.one_session

N_SEGMENTS, N_EPOCHS, SEED = 3, 2, 31
FOUND = "SELECT visits, epoch, position, data_set, n_rows, ordinal, name, value FROM madlib_mop.visit_metric"
OPTIONS = {
    "source_table": "train_3", "validation_table": "valid_3", "metrics_compute_frequency": 1, "seed": SEED,
    "schedule": "rotation",
}  # fmt: skip
DENSE = "loss='categorical_crossentropy', optimizer='Adam(lr={})', metrics=['accuracy']"


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS, suffix="_3")
    pack(db, 1, suffix="_1")
    select_configurations(db, "mst", ALIKE[:3])
    return db


@pytest.fixture(scope="module")
def plain(bench):
    """A run without metrics of visits."""
    return fit(bench, "plain", "mst", N_EPOCHS, **OPTIONS)


@pytest.fixture(scope="module")
def sampled(bench):
    """The same run with metrics of ten rows after each visit."""
    return fit(bench, "sampled", "mst", N_EPOCHS, metrics_every="visit", metrics_sample_rows=10, **OPTIONS)


def found(db, run_id: int, mst_key: int = 1) -> list[tuple]:
    """Return a model's metrics of visits."""
    return db.rows(f"{FOUND} WHERE run_id = %s AND mst_key = %s ORDER BY visits, ordinal", [run_id, mst_key])


def test_they_change_no_bit(bench, plain, sampled):
    assert digests(bench, sampled.run_id) == digests(bench, plain.run_id)
    of_all = "SELECT mst_key, epoch, data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1,2,3,4"
    assert bench.rows(of_all, [sampled.run_id]) == bench.rows(of_all, [plain.run_id])
    assert found(bench, plain.run_id) == []


@pytest.mark.parametrize("mst_key", [1, 2, 3])
def test_there_is_one_set_after_each_visit(bench, sampled, mst_key):
    rows = found(bench, sampled.run_id, mst_key)
    assert [row[:3] for row in rows[::2]] == [
        (N_SEGMENTS * epoch + position, epoch + 1, position)
        for epoch in range(N_EPOCHS) for position in range(1, N_SEGMENTS + 1)
    ]  # fmt: skip
    assert {row[3:7] for row in rows} == {("validation", 10, 0, "loss"), ("validation", 10, 1, "accuracy")}
    assert len({row[7] for row in rows if row[5] == 0}) == N_SEGMENTS * N_EPOCHS, "the loss changes with each visit"


@pytest.mark.slow
def test_a_sample_of_all_rows_gives_the_metrics_of_all_rows(bench):
    """The validation table has one shard here, so both evaluate the same rows in the same order."""
    options = {**OPTIONS, "source_table": "train_1", "validation_table": "valid_1"}
    run = fit(bench, "whole", "mst", N_EPOCHS, metrics_every="visit", metrics_sample_rows=80, **options)
    of_all = bench.rows(
        "SELECT mst_key, epoch, ordinal, value FROM madlib_mop.metric"
        " WHERE run_id = %s AND data_set = 'validation' ORDER BY 1, 2, 3", [run.run_id],
    )  # fmt: skip
    of_visits = "SELECT mst_key, epoch, ordinal, value FROM madlib_mop.visit_metric WHERE run_id = %s ORDER BY 1, 2, 3"
    assert bench.rows(of_visits, [run.run_id]) == of_all and len(of_all) == 12


@pytest.mark.slow
def test_the_sample_is_the_beginning_of_a_shard_and_one_for_all(bench, sampled):
    (segment,) = bench.rows(
        "SELECT segment_id, n_rows, fingerprint IS NOT NULL FROM madlib_mop.segment"
        " WHERE run_id = %s AND data_set = 'sample'", [sampled.run_id],
    )  # fmt: skip
    assert segment[1:] == (10, True)
    again = fit(bench, "again", "mst", N_EPOCHS, metrics_every="visit", metrics_sample_rows=10, **OPTIONS)
    assert found(bench, again.run_id) == found(bench, sampled.run_id)


def test_they_are_repeated_by_replay(bench, sampled):
    bench.rows("SELECT madlib_mop.replay(%s, 'repeated')", [sampled.run_id])
    assert found(bench, newest_run(bench)) == found(bench, sampled.run_id)


@pytest.mark.slow
def test_after_every_second_visit_and_by_default_on_a_tenth_of_a_visit(bench):
    run = fit(bench, "second", "mst", N_EPOCHS, metrics_every="2", **OPTIONS)
    rows = found(bench, run.run_id)
    assert [row[0] for row in rows[::2]] == [2, 4, 6]
    (largest,) = bench.rows(
        "SELECT max(n_rows) FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'validation'", [run.run_id]
    )[0]
    assert {row[4] for row in rows} == {largest}, "100 rows are the least, and the shard has fewer"


@pytest.mark.slow
def test_breadth_first_makes_first_visits_at_no_more_segments_than_there_are_processors(bench):
    """A trainer that uses all of them makes the first visits of all models."""
    threads = f"SET madlib_mop.trainer_threads = {processors()}"
    run = fit(bench, "early", "mst", 1, (threads,), **{**OPTIONS, "schedule": "breadth_first"})
    first = "SELECT count(DISTINCT trainer) FROM madlib_mop.timeline WHERE run_id = %s AND position = 1"
    assert bench.value(first, [run.run_id]) == 1


@pytest.mark.slow
def test_without_a_validation_table_they_are_of_training_rows(bench):
    options = {**OPTIONS, "validation_table": None}
    run = fit(bench, "training_only", "mst", 1, metrics_every="visit", metrics_sample_rows=50, **options)
    assert {row[3] for row in found(bench, run.run_id)} == {"training"}
    board = "SELECT metric_visits, metric_rows, training_loss IS NULL FROM madlib_mop.leaderboard WHERE run_id = %s"
    assert set(bench.rows(board, [run.run_id])) == {(N_SEGMENTS, None, False)}


@pytest.mark.slow
def test_more_rows_than_the_shard_has_are_told(bench):
    run = fit(bench, "much", "mst", 1, metrics_every="visit", metrics_sample_rows=100000, **OPTIONS)
    assert "rows are used, which are all rows of one validation shard" in run.notices


@pytest.mark.slow
def test_fused_models_have_those_of_separate_ones(bench):
    rates = [0.001, 0.002, 0.004]
    select_configurations(bench, "alike", [(4, DENSE.format(rate), "batch_size=16, epochs=1") for rate in rates])
    options = {**OPTIONS, "metrics_every": "visit", "metrics_sample_rows": 20}
    # batch normalisation and dropout cannot be fused
    bench.rows("SELECT madlib.load_keras_model('arch', %s::json)", [_dense()])
    apart = fit(bench, "apart", "alike", 1, **options)
    together = fit(bench, "together", "alike", 1, ("SET madlib_mop.fused_training = on",), **options)
    assert "3 models train together" in together.notices or bench.value(
        "SELECT plan -> 'fused_training' -> 'groups' IS NOT NULL FROM madlib_mop.run WHERE run_id = %s",
        [together.run_id],
    )
    for mst_key in (1, 2, 3):
        ours, theirs = found(bench, together.run_id, mst_key), found(bench, apart.run_id, mst_key)
        assert [row[:7] for row in ours] == [row[:7] for row in theirs]
        assert [row[7] for row in ours] == pytest.approx([row[7] for row in theirs], rel=1e-4)


def _dense() -> str:
    from tests.helpers.training import quiet_keras

    keras = quiet_keras()
    layers = [keras.layers.Flatten(), keras.layers.Dense(24, "relu"), keras.layers.Dense(10, "softmax")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers]).to_json()


@pytest.mark.slow
def test_a_search_has_them_too(bench):
    bench.rows(
        "SELECT madlib.madlib_keras_automl('train_3', 'searched', 'arch', 'searched_mst', ARRAY[3],"
        " $${'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['Adam'],"
        " 'lr': [0.001, 0.01, 'log']}], 'metrics': ['accuracy']}$$, $${'batch_size': [16, 32], 'epochs': [1]}$$,"
        " 'hyperband', 'R=3, eta=3, skip_last=0', 7, validation_table := 'valid_3', metrics_every := 'visit',"
        " metrics_sample_rows := 10)"
    )
    run_id = newest_run(bench)
    counts = bench.rows(
        "SELECT v.mst_key, count(*), (SELECT count(*) FROM madlib_mop.visit_metric x WHERE x.run_id = v.run_id"
        " AND x.mst_key = v.mst_key AND x.ordinal = 0) FROM madlib_mop.visit v WHERE run_id = %s GROUP BY run_id, 1",
        [run_id],
    )
    assert counts and all(n_visits == n_metrics for _, n_visits, n_metrics in counts)


@pytest.mark.slow
def test_a_killed_trainer_and_a_cancel_leave_one_set_for_each_visit(bench, plain):
    statement = (
        "SELECT madlib.madlib_keras_fit_multiple_model('train_3', 'killed', 'mst', 2, validation_table := 'valid_3',"
        f" metrics_compute_frequency := 1, seed := {SEED}, schedule := 'rotation', metrics_every := 'visit',"
        " metrics_sample_rows := 10)"
    )
    before = newest_run(bench)
    call = BackgroundFit(bench, statement)
    wait_for(lambda: newest_run(bench) != before and visits(bench, newest_run(bench)) > 1, what="visits")
    run_id = newest_run(bench)
    for pid in trainers(bench):
        kill(pid)
    wait_for(lambda: visits(bench, run_id) > 4 or not call.running, what="visits")
    bench.rows("SELECT madlib_mop.cancel(%s)", [run_id])
    call.join()
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert digests(bench, run_id) == digests(bench, plain.run_id)
    for mst_key in (1, 2, 3):
        assert [row[0] for row in found(bench, run_id, mst_key)[::2]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"metrics_sample_rows": 5}, "metrics_sample_rows is used only with metrics_every. Received: 5"),
        ({"metrics_every": "hour"}, "metrics_every must be 'iteration', 'visit' or a whole number"),
        ({"metrics_every": "0"}, "metrics_every must be 'iteration', 'visit' or a whole number"),
        ({"metrics_every": "-3"}, "metrics_every must be 'iteration', 'visit' or a whole number"),
        ({"metrics_every": "visit", "metrics_sample_rows": 0}, "metrics_sample_rows must be at least 1. Received: 0"),
    ],
)
def test_wrong_input_is_told_before_any_work(bench, given, message):
    before = newest_run(bench)
    with pytest.raises(psycopg2.Error) as error:
        fit(bench, "wrong", "mst", 1, **{**OPTIONS, **given})
    assert message in str(error.value) and "Traceback" not in str(error.value)
    assert newest_run(bench) == before


class TestLeaderboard:
    """The view, on the record of a finished run that is changed to one in the middle of training."""

    @pytest.fixture
    def middle(self, bench, sampled):
        """Return a function that sets the numbers of visits, for each model, and restores the record afterwards."""
        connection = bench.connect()
        cursor = connection.cursor()
        cursor.execute("BEGIN")

        def at(*models: tuple[int, str], every: int = 1) -> list[tuple]:
            rare = "DELETE FROM madlib_mop.visit_metric WHERE run_id = %s AND visits %% %s <> 0"
            cursor.execute(rare, [sampled.run_id, every])
            for mst_key, (n, state) in enumerate(models, 1):
                values = {"run": sampled.run_id, "key": mst_key, "n": n, "p": N_SEGMENTS, "state": state}
                here = "run_id = %(run)s AND mst_key = %(key)s"
                cursor.execute(f"DELETE FROM madlib_mop.visit_metric WHERE {here} AND visits > %(n)s", values)
                cursor.execute(f"DELETE FROM madlib_mop.metric WHERE {here} AND epoch > %(n)s / %(p)s", values)
                cursor.execute(f"UPDATE madlib_mop.model SET state = %(state)s WHERE {here}", values)
            cursor.execute(
                "SELECT mst_key, metric_epoch, metric_visits, metric_rows, comparable, validation_loss"
                " FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY mst_key", [sampled.run_id],
            )  # fmt: skip
            return cursor.fetchall()

        yield at
        connection.rollback()
        connection.close()

    def test_all_are_ranked_after_the_same_number_of_visits(self, bench, sampled, middle):
        rows = middle((5, "training"), (2, "training"), (4, "training"))
        assert [row[1:5] for row in rows] == [(1, 2, 10, True)] * 3
        for mst_key, *_, loss in rows:
            (expected,) = [row[7] for row in found(bench, sampled.run_id, mst_key) if row[0] == 2 and row[5] == 0]
            assert loss == expected

    def test_metrics_of_all_rows_count_where_they_are_as_new(self, middle):
        rows = middle((3, "training"), (4, "training"), (3, "training"))
        assert [row[1:5] for row in rows] == [(1, 3, None, True)] * 3

    def test_one_that_has_made_no_visit_has_none(self, middle):
        rows = middle((2, "training"), (0, "waiting"), (2, "training"))
        assert [row[1:5] for row in rows] == [(1, 2, 10, True), (None, None, None, None), (1, 2, 10, True)]

    def test_one_that_has_made_no_visit_does_not_keep_metrics_of_all_rows_from_the_others(self, middle):
        rows = middle((4, "training"), (0, "waiting"), (3, "training"))
        assert [row[1:5] for row in rows] == [(1, 3, None, True), (None, None, None, None), (1, 3, None, True)]

    def test_the_first_to_have_a_sample_is_compared_by_what_the_others_have(self, middle):
        """A sample after each fourth visit, where an iteration has three."""
        rows = middle((4, "training"), (3, "training"), (3, "training"), every=4)
        assert [row[1:5] for row in rows] == [(1, 3, None, True)] * 3

    def test_a_stopped_one_keeps_its_own(self, middle):
        rows = middle((1, "stopped"), (5, "training"), (6, "training"))
        assert [row[2:5] for row in rows] == [(1, 10, False), (5, 10, True), (5, 10, True)]

    def test_in_the_end_metrics_of_all_rows_count(self, middle):
        assert [row[1:5] for row in middle(*[(6, "trained")] * 3)] == [(2, 6, None, True)] * 3
        assert [row[1:5] for row in middle((2, "stopped"))] == [(1, 2, 10, False), *[(2, 6, None, True)] * 2]
