"""Model averaging equals, bit for bit, a NumPy average of plain Keras runs per iteration; and the output of a fit."""

import numpy as np
import pytest

from tests.helpers.averaging import average, fit_statement, prepare
from tests.helpers.oracle import shard, train, train_averaged
from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import ADAM, SGD, mlp, script

pytestmark = pytest.mark.one_session

SUMMARY = (
    "source_table text, model text, dependent_varname text[], independent_varname text[], model_arch_table text,"
    " model_id integer, compile_params text, fit_params text, num_iterations integer, validation_table text,"
    " object_table text, metrics_compute_frequency integer, name text, description text, model_type text,"
    " model_size double precision, start_training_time timestamp without time zone,"
    " end_training_time timestamp without time zone, metrics_elapsed_time double precision[], madlib_version text,"
    " num_classes integer[], dependent_vartype text[], normalizing_const real, metrics_type text[], loss_type text,"
    " training_metrics_final double precision, training_loss_final double precision,"
    " training_metrics double precision[], training_loss double precision[],"
    " validation_metrics_final double precision, validation_loss_final double precision,"
    " validation_metrics double precision[], validation_loss double precision[], metrics_iters integer[],"
    " y_class_values integer[], qualified_names json"
)


@pytest.fixture(scope="module")
def bench(db):
    """Four segments, one of them empty, no two with the same rows; one model trained on them."""
    prepare(db)
    db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [mlp(300)])  # its states have two parts
    db.run = average(
        db, "out", 3, source_table="uneven", validation_table="valid_3", seed=4,
        metrics_compute_frequency=2, name="a name", description="a description",
    )  # fmt: skip
    return db


def adam():
    import keras

    return keras.optimizers.Adam(0.01)


def decaying_sgd():
    import keras

    schedule = keras.optimizers.schedules.InverseTimeDecay(0.05, decay_steps=1, decay_rate=0.01)
    return keras.optimizers.SGD(schedule, momentum=0.9)


def weights(db, table: str) -> bytes:
    return bytes(db.value(f"SELECT model_weights FROM {table}"))


def arrays_of(db, table: str) -> list[np.ndarray]:
    """Return the weights of an output table in the form of ``get_weights()``."""
    import keras

    model = keras.models.model_from_json(db.value(f"SELECT model_arch::text FROM {table}"))
    flat, arrays = np.frombuffer(weights(db, table), np.float32), []
    for w in model.get_weights():
        arrays.append(flat[: w.size].reshape(w.shape))
        flat = flat[w.size :]
    return arrays


def test_uneven_and_empty_shards_average_as_in_numpy(bench):
    assert weights(bench, "out") == train_averaged(bench, bench.run.run_id, adam, 16, 1, True)
    rows = bench.rows(
        "SELECT DISTINCT segment_id, position, n_rows FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1",
        [bench.run.run_id],
    )
    n_rows = [len(shard(bench, "uneven", segment)[0]) for segment in (0, 1, 3)]
    assert rows == list(zip((0, 1, 3), (1, 2, 3), n_rows, strict=True)) and len(set(n_rows)) == 3


@pytest.mark.slow
def test_one_segment_is_plain_keras(bench):
    run = average(bench, "alone", 2, source_table="train_1", seed=8)
    assert weights(bench, "alone") == train(bench, run.run_id, 1, adam, 16, 1, True)


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "model_id, compile_params, fit_params, optimizer",
    [
        (1, ADAM, "batch_size=16, epochs=1", adam),
        (1, ADAM, "batch_size=7, epochs=2, shuffle=False", adam),
        (2, SGD, "batch_size=40, epochs=2", decaying_sgd),
        (4, ADAM, "batch_size=40, epochs=1", adam),
    ],
)
def test_whole_runs_are_those_of_plain_keras(bench, p, model_id, compile_params, fit_params, optimizer):
    table = f"out_{p}_{model_id}_{len(fit_params)}"
    run = average(bench, table, 4, model_id, compile_params, fit_params, source_table=f"train_{p}", seed=p)
    fields = dict(item.split("=") for item in fit_params.replace(" ", "").split(","))
    expected = train_averaged(
        bench, run.run_id, optimizer, int(fields["batch_size"]), int(fields["epochs"]), "shuffle" not in fields
    )
    assert weights(bench, table) == expected


def test_all_segments_start_from_one_state(bench):
    chain = bench.rows(
        "SELECT epoch, array_agg(DISTINCT digest_in), count(DISTINCT digest_out) FROM madlib_mop.visit"
        " WHERE run_id = %s AND epoch > 1 GROUP BY 1 ORDER BY 1",
        [bench.run.run_id],
    )
    assert [(epoch, len(digests), n) for epoch, digests, n in chain] == [(2, 1, 3), (3, 1, 3)]
    newest = bench.value("SELECT digest FROM madlib_mop.model WHERE run_id = %s", [bench.run.run_id])
    assert newest not in {digests[0] for _, digests, _ in chain}


@pytest.mark.slow
def test_a_warm_start_splits_a_run_without_a_trace(bench):
    first = average(bench, "split", 1, source_table="uneven", seed=4)
    rolled_back = bench.connect(autocommit=False)
    with rolled_back.cursor() as cursor:
        cursor.execute(*fit_statement("split", 1, source_table="uneven", warm_start=True))
    rolled_back.rollback()
    rolled_back.close()
    second = average(bench, "split", 2, source_table="uneven", warm_start=True)
    assert weights(bench, "split") == weights(bench, "out")
    assert bench.rows(
        "SELECT r.run_id, r.seed, r.parent_run_id, m.first_epoch, m.epoch FROM madlib_mop.run r"
        " JOIN madlib_mop.model m USING (run_id) WHERE run_id IN (%s, %s) ORDER BY 1",
        [first.run_id, second.run_id],
    ) == [(first.run_id, 4, None, 1, 1), (second.run_id, 4, first.run_id, 2, 3)]
    assert bench.value("SELECT num_iterations FROM split_summary") == 2


@pytest.mark.slow
def test_a_replay_gives_the_same_bits(bench):
    script(bench, f"SELECT madlib_mop.replay({bench.run.run_id}, 'again')")
    assert weights(bench, "again") == weights(bench, "out")
    visits = "SELECT epoch, segment_id, digest_in, digest_out FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1, 2"
    replay = bench.value("SELECT run_id FROM madlib_mop.run WHERE kind = 'replay'")
    assert bench.rows(visits, [replay]) == bench.rows(visits, [bench.run.run_id])
    assert bench.value("SELECT validation_loss_final FROM again_summary") == bench.value(
        "SELECT validation_loss_final FROM out_summary"
    )


@pytest.mark.slow
def test_a_warm_start_with_another_optimizer_goes_on_with_the_weights(bench):
    """Also with NULL fit_params, which stay NULL: mini-batches of 32 rows, one pass."""
    average(bench, "changed", 1, source_table="train_2", seed=4)
    start = arrays_of(bench, "changed")
    run = average(
        bench, "changed", 2, compile_params=SGD, fit_params=None, source_table="train_2", warm_start=True, seed=4
    )
    assert "continuing with the weights only" in run.notices
    assert weights(bench, "changed") == train_averaged(bench, run.run_id, decaying_sgd, 32, 1, True, start)
    assert bench.value("SELECT fit_params IS NULL FROM changed_summary")


def test_the_tables_have_the_columns_of_madlib(bench):
    columns = (
        "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0"
    )
    assert bench.value(columns, ["out"]) == "model_weights bytea, model_arch json, weights_digest text"
    assert bench.value(columns, ["out_summary"]) == SUMMARY
    assert bench.value("SELECT to_regclass('out_info')") is None


def test_the_summary_tells_what_was_asked_for_and_what_came_out(bench):
    import keras

    asked = bench.rows(
        "SELECT source_table, model, dependent_varname, independent_varname, model_arch_table, model_id,"
        " compile_params, fit_params, num_iterations, validation_table, object_table, metrics_compute_frequency, name,"
        " description, model_type, num_classes, dependent_vartype, normalizing_const, metrics_type, loss_type,"
        " metrics_iters, y_class_values, array_length(metrics_elapsed_time, 1), end_training_time > start_training_time"
        " FROM out_summary"
    )
    assert asked == [
        (
            "uneven", "out", ["y"], ["x"], "arch", 1, ADAM, "batch_size=16, epochs=1", 3, "valid_3", None, 2, "a name",
            "a description", "madlib_keras", [10], ["integer"], 16.0, ["accuracy"], "categorical_crossentropy", [2, 3],
            list(range(10)), 2, True,
        )
    ]  # fmt: skip
    model = keras.models.model_from_json(bench.value("SELECT model_arch::text FROM out"))
    model.set_weights(arrays_of(bench, "out"))
    assert bench.value("SELECT model_size FROM out_summary") == len(weights(bench, "out")) / 1024
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
    for data_set, table, segments in (("training", "uneven", (0, 1, 3)), ("validation", "valid_3", (0, 1, 2))):
        x, y = map(np.concatenate, zip(*(shard(bench, table, s) for s in segments), strict=True))
        got = bench.rows(
            f"SELECT {data_set}_loss_final, {data_set}_metrics_final, {data_set}_loss[2], {data_set}_metrics[2]"
            " FROM out_summary"
        )[0]
        assert got == pytest.approx(model.evaluate(x, y, verbose=0) * 2, rel=1e-4)


def test_the_run_is_told_of_and_recorded(bench):
    lines = [line for line in bench.run.notices.splitlines() if f"run {bench.run.run_id}:" in line]
    assert "1 configuration on 3 segments, 3 iterations, schedule averaging, seed 4" in lines[0]
    assert "iteration 1 of 3 done" in lines[1] and "s left" in lines[1]
    assert "iteration 2 of 3 done" in lines[2] and "validation accuracy" in lines[2]
    assert bench.rows(
        "SELECT kind, state, visits_done, visits_total, percent_done FROM madlib_mop.progress WHERE run_id = %s",
        [bench.run.run_id],
    ) == [("fit", "finished", 9, 9, 100)]
    assert bench.value("SELECT rank FROM madlib_mop.leaderboard WHERE run_id = %s", [bench.run.run_id]) == 1
    assert bench.value("SELECT count(*) FROM madlib_mop.timeline WHERE run_id = %s", [bench.run.run_id]) == 9


def test_only_the_newest_state_is_left_in_its_parts(bench):
    parts = bench.rows(
        "SELECT part, length(data) FROM madlib_mop.model_state WHERE run_id = %s ORDER BY 1", [bench.run.run_id]
    )
    assert [part for part, _ in parts] == list(range(len(parts))) and parts
    (model,) = bench.rows(
        "SELECT state, epoch, position, state_version, state_bytes FROM madlib_mop.model WHERE run_id = %s",
        [bench.run.run_id],
    )
    assert model == ("trained", 3, 3, 3, sum(length for _, length in parts))


def test_a_table_of_one_model_has_no_keys(bench):
    """test_averaging_iris tests that evaluate and predict accept it."""
    error = refusal_of(bench, "SELECT madlib.madlib_keras_evaluate('out', 'valid_3', 'evaluated', mst_key := 1)")
    assert "mst_key is for tables with many models; public.out has one. Received: 1" in error.message


@pytest.mark.slow
def test_a_dropped_run_leaves_nothing_but_its_tables(bench):
    run = average(bench, "dropped", 1, source_table="train_1", seed=1)
    script(bench, f"SELECT madlib_mop.drop_run({run.run_id})")
    for table in ("run", "model", "visit", "metric", "evaluation", "model_state"):
        assert bench.value(f"SELECT count(*) FROM madlib_mop.{table} WHERE run_id = %s", [run.run_id]) == 0
    again = average(bench, "dropped", 1, source_table="train_1", seed=1, warm_start=True)
    assert "continuing with the weights only" in again.notices
