"""Early stopping across iterations: models stop where Keras' callback would, with the bits of their best iteration."""

from dataclasses import replace

import psycopg2
import pytest

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.catalog.state_slots import StateSlots, best_key, best_states, create_slot, newest_states
from madlib_mop.models.parameters.early_stopping import EarlyStopping
from tests.helpers.averaging import FIT_PARAMS, average
from tests.helpers.faults import BackgroundFit, assert_nothing_left, kill, newest_run, wait_for
from tests.helpers.oracle import optimizer_of, train, train_averaged
from tests.helpers.training import (
    ADAM,
    SGD,
    digests,
    fit,
    load_architectures,
    load_digits,
    pack,
    select_configurations,
    weights,
)
from tests.unit.models.test_early_stopping import by_keras

pytestmark = pytest.mark.one_session

FAST = ADAM.replace("0.01", "0.2")  # converges early
CONFIGURATIONS = [
    (3, FAST, "batch_size=16, epochs=1"),
    (3, ADAM, "batch_size=16, epochs=1"),
    (3, FAST, "batch_size=16, epochs=1, shuffle=False"),
    (2, SGD, "batch_size=16, epochs=1, shuffle=False"),
]
N, SEED = 7, 11
TEXT = "patience=1, metric=val_loss, restore_best=true"
RULE = EarlyStopping(patience=1, metric="val_loss", mode="min")
OPTIONS = {
    "source_table": "train_2", "validation_table": "valid_2", "metrics_compute_frequency": 1, "seed": SEED,
    "schedule": "rotation",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(db):
    """A complete run, whose metrics show where models must stop; and the same run with early stopping."""
    load_digits(db, 240, 80)
    load_architectures(db)
    pack(db, 2, suffix="_2")
    select_configurations(db, "mst", CONFIGURATIONS)
    whole = fit(db, "whole", "mst", N, **OPTIONS)
    rows = db.rows(
        "SELECT mst_key, array_agg(value ORDER BY epoch) FROM madlib_mop.metric WHERE run_id = %s AND ordinal = 0"
        " AND data_set = 'validation' GROUP BY 1",
        [whole.run_id],
    )
    db.losses = dict(rows)
    db.expected = {key: by_keras(RULE, values) for key, values in rows}
    assert any(stopped and stopped < N for stopped, _ in db.expected.values()), "no model would stop early"
    db.run = fit(db, "early", "mst", N, early_stopping=TEXT, **OPTIONS)
    db.weights = weights(db, "early")  # a warm start replaces the table
    return db


def ends(db, run_id: int) -> dict[int, tuple[int | None, int]]:
    """Return the iterations at which models stopped, and their best iterations."""
    rows = db.rows(
        "SELECT mst_key, epoch, last_epoch, (best_state ->> 'epoch')::integer, state, state_detail"
        " FROM madlib_mop.model WHERE run_id = %s",
        [run_id],
    )
    assert all(epoch == last_epoch and state == "trained" for _, epoch, last_epoch, _, state, _ in rows), rows
    return {
        key: (epoch if "stopped early" in (detail or "") or epoch < N else None, best)
        for key, epoch, _, best, _, detail in rows
    }


def normalized(expected: dict) -> dict:
    """Treat a stop in the last epoch, which Keras may report too, as no early end."""
    return {key: (stopped if stopped and stopped < N else None, best) for key, (stopped, best) in expected.items()}


@pytest.mark.slow
def test_models_stop_where_keras_would_and_have_the_weights_of_their_best_iteration(bench):
    assert ends(bench, bench.run.run_id) == normalized(bench.expected)
    ours = bench.weights
    for key, (_, params, fit_params) in enumerate(CONFIGURATIONS, 1):
        optimizer = optimizer_of(params) if params != FAST else _fast
        best = bench.expected[key][1]
        assert ours[key] == train(
            bench, bench.run.run_id, key, optimizer, 16, 1, "shuffle=False" not in fit_params, until_epoch=best
        )


def test_each_stop_is_a_change_of_the_run(bench):
    """A run's changes are in one table, whoever decided; the view of commands has those of people and policies."""
    rows = bench.rows(
        "SELECT (work ->> 'mst_key')::integer, mst_keys, visits, change, state FROM madlib_mop.change"
        " WHERE run_id = %s AND source = 'early stopping'",
        [bench.run.run_id],
    )
    stops = {key: stopped for key, (stopped, _) in normalized(bench.expected).items() if stopped}
    assert sorted(rows) == [(key, [key], {str(key): [n, 2]}, "stop", "obeyed") for key, n in sorted(stops.items())]
    assert bench.rows("SELECT 1 FROM madlib_mop.steering WHERE run_id = %s", [bench.run.run_id]) == []


def _fast():
    import keras

    return keras.optimizers.Adam(0.2)


def test_tables_leaderboard_and_notices_show_it(bench):
    rows = bench.rows(
        "SELECT mst_key, validation_loss, validation_loss_final, status_detail, metrics_elapsed_time FROM early_info"
    )
    board = dict(
        bench.rows(
            "SELECT mst_key, array[validation_loss::text, metric_epoch::text, state_detail] FROM madlib_mop.leaderboard"
            " WHERE run_id = %s",
            [bench.run.run_id],
        )
    )
    for key, losses, final, detail, times in rows:
        stopped, best = bench.expected[key]
        n = stopped or N
        assert losses == bench.losses[key][:n] and len(times) == n
        assert final == bench.losses[key][best - 1]
        if n < N:
            assert f"stopped early at iteration {n}: val_loss was best at iteration {best}" in detail
            assert f"mst_key {key} stopped early at iteration {n}" in bench.run.notices
        if best < n:
            assert f"the weights are those of iteration {best}" in detail
        assert board[key] == [str(final), str(best), detail]
    key, best = next((key, best) for key, (stopped, best) in bench.expected.items() if best < (stopped or N))
    bench.rows("SELECT madlib_mop.register('early', 'early', %s)", [key])
    version = "SELECT epoch, (metrics ->> 'validation_loss')::double precision FROM madlib_mop.registry"
    assert bench.rows(f"{version} WHERE name = 'early'") == [(best, bench.losses[key][best - 1])]
    newest = "SELECT max(epoch), count(*) FROM madlib_mop.version_lineage WHERE name = 'early'"
    assert bench.rows(newest) == [(best, 2 * best)]


def test_states_are_kept_once_when_all_is_done(bench):
    rows = bench.rows(
        "SELECT m.mst_key, m.state_version, array_agg(DISTINCT s.version) FROM madlib_mop.model m"
        " JOIN madlib_mop.model_state s USING (run_id, mst_key) WHERE run_id = %s GROUP BY 1, 2",
        [bench.run.run_id],
    )
    assert len(rows) == len(CONFIGURATIONS)
    assert all(found == [version] for _, version, found in rows)


@pytest.mark.slow
def test_a_replay_stops_at_the_same_iterations_with_the_same_bits(bench):
    bench.rows("SELECT madlib_mop.replay(%s, 'early_again')", [bench.run.run_id])
    run_id = newest_run(bench)
    assert digests(bench, run_id) == digests(bench, bench.run.run_id)
    assert weights(bench, "early_again") == bench.weights


@pytest.mark.slow
def test_a_warm_start_goes_on_from_the_best_state(bench):
    run = fit(bench, "early", "mst", 1, warm_start=True, **OPTIONS)
    first = bench.rows(
        "SELECT mst_key, digest_in FROM madlib_mop.visit WHERE run_id = %s AND position = 1", [run.run_id]
    )
    assert dict(first) == digests(bench, bench.run.run_id)


def test_a_best_state_can_be_moved_to_another_slot(bench):
    """Compaction does so if few live states occupy slots with many dead ones."""
    record, run_id = Record(*connect_by_dsn(bench.dsn)), bench.run.run_id
    model = record.models(run_id)[0]
    expected = weights_of(record, run_id)
    slots = StateSlots(record, run_id, newest_states([model]))
    slot = slots.begin_write(best_key(1))
    record.copy_parts(model, run_id, 1, slot, -100)
    slots.end_write(slot, best_key(1), model.state_bytes)
    record.set_model(run_id, 1, best_state=replace(model.best_state, slot=slot, version=-100))
    create_slot(record, run_id * 1000 + 900)
    slots = StateSlots(record, run_id, [*newest_states([model]), *best_states(record.models(run_id)[:1])])
    slots._slots[run_id * 1000 + 900].writers += 1
    slots._reserved[best_key(1)] = 0
    slots._move(best_key(1), run_id * 1000 + 900)
    found = bench.rows("SELECT slot, version FROM madlib_mop.model_state WHERE run_id = %s AND mst_key = 1", [run_id])
    assert set(found) == {(model.state_slot, model.state_version), (run_id * 1000 + 900, -100)}
    assert record.models(run_id)[0].best_state.slot == run_id * 1000 + 900
    slots._reserved[1], slots._slots[slot].writers = 0, 1
    slots._move(1, slot)
    assert record.models(run_id)[0].state_slot == slot
    record.set_model(run_id, 1, best_state=model.best_state)
    record.execute("DELETE FROM madlib_mop.model_state WHERE run_id = %s AND version = -100", [run_id])
    found = weights_of(record, run_id)
    record.raw.close()
    assert found == expected


def weights_of(record, run_id: int) -> bytes:
    from madlib_mop.trainer.data import state

    model = record.models(run_id)[0]
    return state.weights_of(list(record.state_parts(model))[: model.forward_parts])


def _begin(db, table: str) -> tuple[BackgroundFit, int]:
    before = newest_run(db)
    named = ", ".join(f"{name} := '{value}'" for name, value in {**OPTIONS, "early_stopping": TEXT}.items())
    call = BackgroundFit(
        db,
        "SELECT madlib.madlib_keras_fit_multiple_model(model_output_table := %s, model_selection_table := 'mst',"
        f" num_iterations := {N}, {named})",
        [table],
    )
    run_id = wait_for(lambda: (newest_run(db) != before and newest_run(db)) or call.error, what="the run's start")
    assert call.error is None, call.error
    return call, run_id


@pytest.mark.slow
@pytest.mark.parametrize("moment", [4, *(pytest.param(moment, marks=pytest.mark.slow) for moment in (1, 8))])
def test_a_driver_that_is_killed_and_a_run_that_is_resumed_end_with_the_same_bits(bench, moment):
    """The driver is killed after some metrics and replaced by the backend; then the run is cancelled and resumed."""
    call, run_id = _begin(bench, f"killed_{moment}")

    def known(n):
        query = "SELECT count(*) FROM madlib_mop.metric WHERE run_id = %s AND ordinal = 0 AND data_set = 'validation'"
        return lambda: bench.value(query, [run_id]) >= n or not call.running

    wait_for(known(moment), what="metrics")
    pid = bench.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id])
    if pid is not None:
        kill(pid)
    wait_for(known(moment + 3), what="more metrics")
    bench.value("SELECT madlib_mop.cancel(%s)", [run_id])
    call.join()
    if call.error is not None:
        bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert ends(bench, run_id) == normalized(bench.expected)
    assert digests(bench, run_id) == digests(bench, bench.run.run_id)
    assert weights(bench, f"killed_{moment}") == bench.weights
    assert_nothing_left(bench)


NO_STOP = """
CREATE FUNCTION public.no_stop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the driver ends here'; END $$;
CREATE TRIGGER no_stop BEFORE UPDATE OF last_epoch ON madlib_mop.model FOR EACH ROW
    WHEN (NEW.last_epoch < OLD.last_epoch) EXECUTE FUNCTION public.no_stop();
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hopper", "averaging"])
def test_a_stop_that_a_dead_driver_has_not_recorded_is_made_by_the_next_one(bench, kind):
    """Its metrics were recorded; the next driver trains the model no further."""

    def train(table):
        if kind == "hopper":
            return fit(bench, table, "mst", N, early_stopping=TEXT, **OPTIONS)
        options = {name: value for name, value in OPTIONS.items() if name != "schedule"}
        return average(bench, table, N, 1, FAST, FIT_PARAMS, early_stopping=TEXT, **options)

    whole = train(f"whole_{kind}")
    bench.rows(NO_STOP)
    try:
        with pytest.raises(psycopg2.Error, match="the driver ends here"):
            train(f"dead_{kind}")
    finally:
        bench.rows("DROP FUNCTION public.no_stop CASCADE")
    run_id = newest_run(bench)
    bench.rows("SELECT madlib_mop.resume(%s)", [run_id])
    assert ends(bench, run_id) == ends(bench, whole.run_id)
    assert digests(bench, run_id) == digests(bench, whole.run_id)


@pytest.mark.slow
def test_model_averaging(bench):
    options = {name: value for name, value in OPTIONS.items() if name != "schedule"}
    run = average(bench, "avg", N, 1, FAST, FIT_PARAMS, early_stopping=TEXT, **options)
    losses, best = bench.rows(
        "SELECT array_agg(value ORDER BY x.epoch), min(best_state ->> 'epoch')::integer FROM madlib_mop.metric x"
        " JOIN madlib_mop.model USING (run_id) WHERE run_id = %s AND x.ordinal = 0 AND data_set = 'validation'",
        [run.run_id],
    )[0]
    stopped, expected_best = by_keras(RULE, losses)
    assert (stopped or N, expected_best) == (len(losses), best) and (len(losses) < N or best < N)
    assert bytes(bench.value("SELECT model_weights FROM avg")) == train_averaged(
        bench, run.run_id, _fast, 16, 1, True, until_epoch=best
    )
    assert bench.value("SELECT validation_loss_final FROM avg_summary") == losses[best - 1]


@pytest.mark.slow
def test_model_averaging_whose_last_iteration_is_the_best_tells_of_no_other(bench):
    options = {name: value for name, value in OPTIONS.items() if name != "schedule"}
    text = "patience=2, metric=val_loss, restore_best=true"
    run = average(bench, "falls", 3, 1, ADAM, FIT_PARAMS, early_stopping=text, **options)
    rows = "SELECT state_detail, (best_state ->> 'epoch')::integer FROM madlib_mop.model WHERE run_id = %s"
    assert bench.rows(rows, [run.run_id]) == [(None, 3)]


def test_fit_params_of_a_configuration_say_otherwise(bench):
    fit_params = "batch_size=16, epochs=1"
    off, own = f"{fit_params}, early_stopping='off'", f"{fit_params}, early_stopping='patience=1, metric=val_loss'"
    select_configurations(bench, "own", [(1, FAST, off), (1, FAST, own)])
    run = fit(bench, "own_out", "own", N, early_stopping="patience=5, metric=loss, restore_best=true", **OPTIONS)
    rows = bench.rows(
        "SELECT early_stopping ->> 'patience', best_state FROM madlib_mop.model WHERE run_id = %s ORDER BY mst_key",
        [run.run_id],
    )
    assert rows == [(None, None), ("1", None)]


@pytest.mark.parametrize(
    "text, options, message, hint",
    [
        (
            "patience=1",
            {"metrics_compute_frequency": None, "validation_table": None},
            "metrics are computed 1 times in 7",
            "compute_frequency => 1",
        ),
        ("patience=1", {"metrics_compute_frequency": 5}, "patience 1 would never stop a model early", "lower patience"),
        ("patience=6", {}, "patience 6 would never stop a model early", "more iterations, or lower patience."),
        ("patience=1, metric=val_loss", {"validation_table": None}, "val_loss needs a validation_table", "or use loss"),
        ("patience=1, metric=val_auc", {}, "mst_key 1 has no such metric. Received: metric=val_auc", "loss, accuracy"),
        ("patience=0", {}, "patience must be a whole number of 1 or more", "patience=3"),
    ],
)
def test_what_could_never_be_is_refused_before_any_work(bench, text, options, message, hint):
    before = newest_run(bench)
    with pytest.raises(psycopg2.Error) as caught:
        fit(bench, "refused", "mst", N, early_stopping=text, **{**OPTIONS, **options})
    assert caught.value.pgcode == "22023" and message in caught.value.diag.message_primary
    assert hint in caught.value.diag.message_hint
    assert newest_run(bench) == before
