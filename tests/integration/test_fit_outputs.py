"""The output of a fit: the three tables as in MADlib, the record, the views, the NOTICEs."""

import re

import numpy as np
import pytest

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from tests.conftest import BACKEND
from tests.helpers.oracle import shard
from tests.helpers.training import (
    ADAM,
    ALIKE,
    MIXED,
    SGD,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    weights,
)
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.one_session

INFO = (
    "mst_key integer, model_id integer, compile_params text, fit_params text, model_type text,"
    " model_size double precision, metrics_elapsed_time double precision[], metrics_type text[], loss_type text,"
    " training_metrics_final double precision, training_loss_final double precision,"
    " training_metrics double precision[], training_loss double precision[],"
    " validation_metrics_final double precision, validation_loss_final double precision,"
    " validation_metrics double precision[], validation_loss double precision[], status text, status_detail text"
)
SUMMARY = (
    "source_table text, validation_table text, model text, model_info text, dependent_varname text[],"
    " independent_varname text[], model_arch_table text, model_selection_table text, object_table text,"
    " num_iterations integer, metrics_compute_frequency integer, warm_start boolean, name text, description text,"
    " start_training_time timestamp without time zone, end_training_time timestamp without time zone,"
    " madlib_version text, num_classes integer[], y_class_values integer[], dependent_vartype text[],"
    " normalizing_const real, metrics_iters integer[], qualified_names json"
)


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    load_architectures(db)
    pack(db, 2)
    select(db, "mst", MIXED[:3])
    db.run = fit(
        db, "out", "mst", 4, validation_table="valid", metrics_compute_frequency=3, seed=6, name="a name",
        description="a description",
    )  # fmt: skip
    return db


def columns(db, table: str) -> str:
    return db.value(
        "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0",
        [table],
    )


def test_the_tables_have_the_columns_of_madlib(bench):
    assert columns(bench, "out") == (
        "mst_key integer, model_weights bytea, model_arch json, __dist_key__ integer, weights_digest text"
    )
    assert columns(bench, "out_info") == INFO
    assert columns(bench, "out_summary") == SUMMARY


@pytest.mark.slow
def test_metrics_are_those_of_plain_keras_on_all_rows(bench):
    import keras

    x = {name: [shard(bench, name, s) for s in (0, 1)] for name in ("train", "valid")}
    data = {name: [np.concatenate(parts) for parts in zip(*shards, strict=True)] for name, shards in x.items()}
    for mst_key, blob in weights(bench, "out").items():
        model = keras.models.model_from_json(
            bench.value("SELECT model_arch::text FROM out WHERE mst_key = %s", [mst_key])
        )
        flat, start, arrays = np.frombuffer(blob, np.float32), 0, []
        for w in model.get_weights():
            arrays.append(flat[start : start + w.size].reshape(w.shape))
            start += w.size
        model.set_weights(arrays)
        model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"])
        row = bench.rows(
            "SELECT training_loss_final, training_metrics_final, validation_loss_final, validation_metrics_final"
            " FROM out_info WHERE mst_key = %s",
            [mst_key],
        )[0]
        expected = [v for name in ("train", "valid") for v in model.evaluate(*data[name], verbose=0)]
        assert row == pytest.approx(expected, rel=1e-4)


def test_metrics_come_every_third_iteration_and_at_the_last(bench):
    assert bench.value("SELECT metrics_iters FROM out_summary") == [3, 4]
    for row in bench.rows("SELECT * FROM out_info"):
        arrays = [value for value in row if isinstance(value, list) and isinstance(value[0], float)]
        assert len(arrays) == 5 and {len(a) for a in arrays} == {2}
    for finals, series in (("training_metrics", "training_metrics"), ("validation_loss", "validation_loss")):
        assert bench.rows(f"SELECT 1 FROM out_info WHERE {finals}_final IS DISTINCT FROM {series}[2]") == []
    elapsed = bench.rows("SELECT metrics_elapsed_time FROM out_info")
    assert all(0 < first < last for ((first, last),) in elapsed)


def test_info_and_summary_say_what_was_asked_for(bench):
    rows = bench.rows(
        "SELECT mst_key, model_id, compile_params, fit_params, model_type, status FROM out_info ORDER BY 1"
    )
    assert rows == [(key, *row, "madlib_keras", "trained") for key, row in enumerate(MIXED[:3], 1)]
    assert bench.rows("SELECT DISTINCT metrics_type, loss_type FROM out_info") == [
        (["accuracy"], "categorical_crossentropy")
    ]
    sizes = bench.rows(
        "SELECT i.model_size * 1024 = length(o.model_weights) FROM out o JOIN out_info i USING (mst_key)"
    )
    assert sizes == [(True,)] * 3
    assert bench.rows(
        "SELECT source_table, validation_table, model, model_info, model_arch_table, model_selection_table,"
        " num_iterations, metrics_compute_frequency, warm_start, name, description, num_classes, y_class_values,"
        " dependent_vartype,"
        " normalizing_const, dependent_varname, independent_varname FROM out_summary"
    ) == [
        ("train", "valid", "out", "out_info", "arch", "mst", 4, 3, False, "a name", "a description", [10],
         list(range(10)), ["integer"], 16.0, ["y"], ["x"])
    ]  # fmt: skip
    assert bench.value("SELECT start_training_time < end_training_time FROM out_summary")


def test_the_record_and_its_views_tell_the_same(bench):
    run_id = bench.run.run_id
    progress = bench.rows(
        "SELECT state, n_models, n_trained, n_failed, visits_done, visits_total, percent_done FROM madlib_mop.progress"
        " WHERE run_id = %s",
        [run_id],
    )
    assert progress == [("finished", 3, 3, 0, 24, 24, 100)]
    board = bench.rows(
        "SELECT rank, mst_key, validation_loss, validation_metric FROM madlib_mop.leaderboard WHERE run_id = %s"
        " ORDER BY rank",
        [run_id],
    )
    assert [row[0] for row in board] == [1, 2, 3]
    assert board == sorted(board, key=lambda row: (-row[3], row[2], row[1]))
    last = re.findall(r"best validation accuracy ([\d.]+) \(mst_key (\d+)\)", bench.run.notices)[-1]
    assert last == (f"{board[0][3]:.4f}", str(board[0][1]))
    assert {row[1]: row[2] for row in board} == dict(bench.rows("SELECT mst_key, validation_loss_final FROM out_info"))
    overlaps = bench.value(
        "SELECT count(*) FROM madlib_mop.timeline a JOIN madlib_mop.timeline b USING (run_id, trainer)"
        " WHERE a.visit_id < b.visit_id AND a.end_s > b.start_s + 0.001 AND b.end_s > a.start_s + 0.001"
        " AND run_id = %s",
        [run_id],
    )
    assert overlaps == 0
    beside = bench.value(
        "SELECT count(*) FROM madlib_mop.visit_gantt v JOIN madlib_mop.evaluation e USING (run_id, segment_id)"
        " WHERE e.ended_at > v.started_at + '1 ms' AND v.ended_at > e.started_at + '1 ms' AND v.kind = 'visit'"
        " AND run_id = %s",
        [run_id],
    )
    assert beside == 0, "a segment trains and evaluates at the same time"
    rows = bench.value(
        "SELECT sum(n_rows) FROM madlib_mop.visit WHERE run_id = %s AND mst_key = 1 AND epoch = 2", [run_id]
    )
    assert rows == 240
    makespan, bound, idle = bench.rows(
        "SELECT makespan_s, lower_bound_s, idle_share FROM madlib_mop.run WHERE run_id = %s", [run_id]
    )[0]
    assert makespan >= bound > 0 and 0 <= idle < 1
    versions = bench.value("SELECT versions FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert set(versions) >= {"python", BACKEND, "keras", "numpy"}


def test_notices_tell_of_each_iteration(bench):
    lines = [line for line in bench.run.notices.splitlines() if "iteration" in line]
    assert len(lines) == 5
    assert "3 configurations on 2 segments, 4 iterations" in lines[0] and "seed 6" in lines[0]
    assert "iteration 1 of 4 done by 3 of 3 models" in lines[1] and "s left" in lines[1]
    assert "best validation accuracy" in lines[3]


@pytest.mark.slow
def test_a_warm_start_is_driven_by_the_selection_as_it_is_now(bench):
    select(bench, "mst_now", MIXED[:3])
    fit(bench, "warm", "mst_now", 1, seed=6)
    before = weights(bench, "warm")
    bench.rows("DELETE FROM mst_now WHERE mst_key = 2")
    bench.rows("INSERT INTO mst_now VALUES (9, 1, %s, %s)", [SGD, "batch_size=16, epochs=1"])
    run = fit(bench, "warm", "mst_now", 1, warm_start=True)
    after = weights(bench, "warm")
    assert sorted(after) == [1, 3, 9] and after[1] != before[1]
    epochs = bench.rows(
        "SELECT DISTINCT mst_key, epoch FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1", [run.run_id]
    )
    assert epochs == [(1, 2), (3, 2), (9, 1)]
    assert bench.value("SELECT warm_start FROM warm_summary") is True
    assert bench.value("SELECT seed FROM madlib_mop.run WHERE run_id = %s", [run.run_id]) == 6


@pytest.mark.slow
def test_a_warm_start_whose_optimizer_changed_goes_on_with_the_weights(bench):
    select(bench, "mst_changed", MIXED[:1])
    fit(bench, "changed", "mst_changed", 1, seed=6)
    bench.rows("UPDATE mst_changed SET compile_params = %s", [SGD])
    run = fit(bench, "changed", "mst_changed", 1, warm_start=True)
    assert "mst_key 1: continuing with the weights only" in run.notices
    assert bench.value("SELECT status FROM changed_info") == "trained"


@pytest.mark.slow
def test_a_warm_start_continues_the_run_that_wrote_the_table(bench):
    """It need not be the newest: the call of that was rolled back, or a command has given it more to train since."""
    select(bench, "mst_one", ALIKE[:1])
    options = {"seed": 6, "schedule": "rotation"}
    fit(bench, "whole", "mst_one", 2, **options)
    first = fit(bench, "halves", "mst_one", 1, **options)
    connection = bench.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT madlib.madlib_keras_fit_multiple_model('train', 'halves', 'mst_one', 1, warm_start => true)"
        )
    connection.rollback()
    connection.close()
    second = fit(bench, "halves", "mst_one", 1, warm_start=True, schedule="rotation")
    assert "weights only" not in second.notices and weights(bench, "halves") == weights(bench, "whole")
    parent = "SELECT parent_run_id, seed FROM madlib_mop.run WHERE run_id = %s"
    assert bench.rows(parent, [second.run_id]) == [(first.run_id, 6)]
    bench.rows("SELECT madlib_mop.extend(%s, 1)", [second.run_id])
    third = fit(bench, "halves", "mst_one", 1, warm_start=True, schedule="rotation")
    assert "weights only" not in third.notices
    assert bench.rows(parent, [third.run_id]) == [(second.run_id, 6)]


@pytest.mark.slow
def test_start_weights_come_from_the_architecture_table_and_frozen_layers_stay(bench):
    import json

    import keras

    arch = bench.value("SELECT model_arch::text FROM arch WHERE model_id = 1")
    frozen = json.loads(arch)
    frozen["config"]["layers"][2]["config"]["trainable"] = False
    stored = weights(bench, "out")[1]
    bench.rows("SELECT madlib.load_keras_model('arch_frozen', %s::json, %s)", [json.dumps(frozen), stored])
    select(bench, "mst_frozen", [(1, ADAM, "batch_size=16, epochs=1")], "arch_frozen")
    run = fit(bench, "transferred", "mst_frozen", 2, seed=1)
    new = np.frombuffer(weights(bench, "transferred")[1], np.float32)
    old = np.frombuffer(stored, np.float32)
    model = keras.models.model_from_json(json.dumps(frozen))
    n_frozen = sum(w.size for w in model.layers[1].get_weights())
    assert n_frozen == 64 * 24 + 24
    start, shapes = 0, [w.shape for w in model.get_weights()]
    kept = []
    for shape in shapes:
        size = int(np.prod(shape))
        kept.append(np.array_equal(new[start : start + size], old[start : start + size]))
        start += size
    dense = [i for i, w in enumerate(model.weights) if w.path.startswith(model.layers[1].name + "/")]
    assert all(kept[i] for i in dense) and not all(kept)
    chain = bench.rows(
        "SELECT digest_in FROM madlib_mop.visit WHERE run_id = %s ORDER BY visit_id LIMIT 1", [run.run_id]
    )
    assert chain[0][0]


def test_resuming_a_finished_run_says_so_and_writes_its_tables_only_where_they_are_gone(bench):
    before = weights(bench, "out"), bench.rows("SELECT * FROM out_info ORDER BY 1")
    connection = bench.connect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT madlib_mop.resume(%s)", [bench.run.run_id])
        assert f"run {bench.run.run_id} is finished, and its output table public.out exists" in connection.notices[-1]
        cursor.execute("DROP TABLE out, out_info, out_summary")
        cursor.execute("SELECT madlib_mop.resume(%s)", [bench.run.run_id])
    connection.close()
    assert (weights(bench, "out"), bench.rows("SELECT * FROM out_info ORDER BY 1")) == before


@pytest.mark.slow
def test_a_run_that_was_planned_with_small_parts_has_the_same_states(bench):
    """As the setting state_part_bytes of version 1.0.0 did; the first state is in parts of the usual size."""
    small = "UPDATE madlib_mop.run SET plan = jsonb_set(plan, '{trainer,part_bytes}', '4096') WHERE run_id = %s"
    select(bench, "mst_parts", [(1, ADAM, "batch_size=16, epochs=1")])
    for table in ("whole_parts", "small_parts"):
        run_id = fit(bench, table, "mst_parts", 1, seed=8, schedule="rotation").run_id
        bench.rows("SELECT madlib_mop.extend(%s, 2)", [run_id])
        if table == "small_parts":
            bench.rows(small, [run_id])
        bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert weights(bench, "small_parts") == weights(bench, "whole_parts")
    parts = "SELECT count(*), max(part) + 1, max(length(data)) FROM madlib_mop.model_state WHERE run_id = %s"
    ((n_parts, last, longest),) = bench.rows(parts, [run_id])
    assert n_parts == last > 3 and longest <= 4096


def test_every_metric_has_its_evaluations(bench):
    """One for each shard with rows; the average of their losses, weighted by rows, is the recorded loss."""
    run_id = bench.run.run_id
    rows = bench.rows(
        "SELECT mst_key, epoch, data_set, m.value, e.loss, e.n_shards, e.n_rows FROM madlib_mop.metric m LEFT JOIN ("
        "   SELECT run_id, mst_key, epoch, data_set, count(*) AS n_shards, sum(n_rows)::int AS n_rows,"
        "          sum(loss * n_rows) / sum(n_rows) AS loss"
        "   FROM madlib_mop.evaluation GROUP BY run_id, mst_key, epoch, data_set) e"
        " USING (run_id, mst_key, epoch, data_set) WHERE run_id = %s AND ordinal = 0",
        [run_id],
    )
    n_all = {"training": 240, "validation": 80}
    assert {row[:3] for row in rows} == {(key, epoch, name) for key in (1, 2, 3) for epoch in (3, 4) for name in n_all}
    for _, _, data_set, value, loss, n_shards, n_rows in rows:
        assert value == pytest.approx(loss, rel=1e-12)
        assert (n_shards, n_rows) == (2, n_all[data_set])
    laps = "SELECT DISTINCT jsonb_object_keys(timing) FROM madlib_mop.evaluation WHERE run_id = %s"
    assert {"state_in_s", "compute_s"} <= {lap for (lap,) in bench.rows(laps, [run_id])}


def test_a_run_that_was_trained_when_its_driver_died_is_written_by_resume(bench):
    """A dump, or a crash, comes after the state was committed, and before the run's end was."""
    record, run_id = Record(*connect_by_dsn(bench.dsn)), bench.run.run_id
    weights_before = weights(bench, "out")
    set_run = f"UPDATE madlib_mop.run SET {{}} WHERE run_id = {run_id}"
    bench.rows(set_run.format("state = 'running', ended_at = NULL"))
    assert record.end_training(run_id)
    record.raw.close()
    assert bench.value("SELECT ended_at > created_at FROM madlib_mop.run WHERE run_id = %s", [run_id])
    bench.rows(set_run.format("ended_at = NULL"))  # as version 1.0.0
    bench.rows("DROP TABLE out, out_info, out_summary")
    bench.rows(f"SELECT madlib_mop.resume({run_id})")
    assert weights(bench, "out") == weights_before
    assert bench.value(
        "SELECT end_training_time AT TIME ZONE 'UTC' = (SELECT max(ended_at) FROM madlib_mop.visit WHERE run_id = %s)"
        " FROM out_summary", [run_id]
    )  # fmt: skip
