"""Fused training: configurations of one shape train in one graph; all guarantees hold except plain Keras' bits."""

import functools

import numpy as np
import pytest

from tests.helpers.faults import BackgroundFit, assert_nothing_left, kill, newest_run, trainers, visits, wait_for
from tests.helpers.oracle import train
from tests.helpers.training import digests, fit, load_digits, one_thread, pack, quiet_keras, script, weights
from tests.helpers.training import select_configurations as select

pytestmark = [pytest.mark.one_session, pytest.mark.fused]

ON = ("SET madlib_mop.fused_training = on",)
ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr={})', metrics=['accuracy']"
N_EPOCHS, SEED = 12, 21
FUSED, APART = (1, 2, 3, 4, 5), 6
OPTIONS = {
    "source_table": "train_2", "validation_table": "valid_2", "metrics_compute_frequency": 6, "seed": SEED,
    "schedule": "rotation",
}  # fmt: skip

# The log has the transaction of each visit, because a row's xmin has the subtransaction. A value of the sequence, which
# rollbacks do not reset, triggers a fault in the middle of a transaction.
LOG = (
    "CREATE TABLE kept (mst_key int, run_id bigint, epoch int, segment_id int, transaction text)",
    "CREATE SEQUENCE fault MINVALUE -1000000 START 1",
    "CREATE FUNCTION log_visit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
    " INSERT INTO public.kept VALUES (NEW.mst_key, NEW.run_id, NEW.epoch, NEW.segment_id, pg_current_xact_id()::text);"
    " IF NEW.mst_key = 3 AND nextval('public.fault') = 0 THEN RAISE EXCEPTION 'a fault'; END IF; RETURN NEW; END$$",
    "CREATE TRIGGER log AFTER INSERT ON madlib_mop.visit FOR EACH ROW EXECUTE FUNCTION log_visit()",
)


def configurations(rates=(0.001, 0.002, 0.003, 0.004, 0.005)) -> list[tuple[int, str, str]]:
    """Return five configurations of one shape with different learning rates and L2, and one with another batch size."""
    rows = [(1 + number % 2, ADAM.format(rate), "batch_size=16, epochs=1") for number, rate in enumerate(rates)]
    return [*rows, (1, ADAM.format(0.01), "batch_size=30, epochs=1")]


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    pack(db, 2, suffix="_2")
    keras = quiet_keras()
    layers = keras.layers
    for strength in (1e-3, 1e-5):
        penalty = keras.regularizers.L2(strength)
        last = layers.Dense(10, activation="softmax", kernel_regularizer=penalty)
        model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), last])
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [model.to_json()])
    select(db, "mst", configurations())
    pack(db, 1, suffix="_1")
    script(db, *LOG)
    return db


@pytest.fixture(scope="module")
def fused(bench):
    """A run with fused training, without faults."""
    return fit(bench, "out_on", "mst", N_EPOCHS, ON, **OPTIONS)


def groups(db, run_id: int):
    return db.value("SELECT plan -> 'fused_training' FROM madlib_mop.run WHERE run_id = %s", [run_id])


def figures(db, run_id: int) -> list:
    return db.rows(
        "SELECT mst_key, epoch, data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, 4",
        [run_id],
    )


def test_groups_are_told_and_recorded(bench, fused):
    assert (
        "fused training: 5 of 6 configurations train in 2 groups, 1 separately:"
        " no other configuration has its shape (mst_key 6)" in fused.notices
    )
    recorded = groups(bench, fused.run_id)
    assert [group["mst_keys"] for group in recorded["groups"]] == [[1, 2, 3], [4, 5]]
    assert {group["n_places"] for group in recorded["groups"]} == {3} and recorded["dissolved"] == []
    told = bench.rows(
        "SELECT DISTINCT mst_key, timing ->> 'fused' FROM madlib_mop.visit WHERE run_id = %s ORDER BY 1",
        [fused.run_id],
    )
    assert told == [(1, "3"), (2, "3"), (3, "3"), (4, "3"), (5, "3"), (6, None)]
    evaluated = bench.rows(
        "SELECT DISTINCT mst_key, timing ->> 'fused' FROM madlib_mop.evaluation WHERE run_id = %s ORDER BY 1",
        [fused.run_id],
    )
    assert evaluated == told


def test_exactly_once_and_a_groups_visit_in_one_transaction(bench, fused):
    rows = bench.rows(
        "SELECT mst_key, epoch, position, segment_id, digest_in, digest_out, transaction FROM madlib_mop.visit"
        " JOIN kept USING (run_id, mst_key, epoch, segment_id) WHERE run_id = %s ORDER BY mst_key, epoch, position",
        [fused.run_id],
    )
    assert len({(row[0], row[1], row[3]) for row in rows}) == len(rows) == 6 * 2 * N_EPOCHS
    kept = digests(bench, fused.run_id)
    for key in range(1, 7):
        chain = [row for row in rows if row[0] == key]
        assert [row[4] for row in chain[1:]] == [row[5] for row in chain[:-1]]
        assert chain[-1][5] == kept[key]
    transactions = {}
    for key, epoch, position, _, _, _, transaction in rows:
        transactions.setdefault(transaction, set()).add((key, epoch, position))
    together = {tuple(sorted(key for key, _, _ in made)) for made in transactions.values()}
    assert together == {(1, 2, 3), (4, 5), (6,)}


@pytest.mark.slow
def test_results_are_those_of_plain_keras_but_for_rounding(bench, fused):
    """For the recorded visits; models that train separately have Keras' bits. All metrics exist."""
    ours = weights(bench, "out_on")
    for key in (2, 5, APART):
        _, compile_params, fit_params = configurations()[key - 1]
        rate, batch_size = float(compile_params.partition("lr=")[2].partition(")")[0]), int(fit_params[11:13])
        adam = functools.partial(quiet_keras().optimizers.Adam, rate)
        theirs = train(bench, fused.run_id, key, adam, batch_size, 1, True)
        if key in FUSED:
            a, b = (np.frombuffer(blob, np.float32) for blob in (ours[key], theirs))
            np.testing.assert_allclose(a, b, atol=1e-3 * np.abs(b).max())
        else:
            assert ours[key] == theirs
    known = figures(bench, fused.run_id)
    assert len(known) == 6 * 2 * 2 * 2  # models, data sets, metrics, times
    assert all(0 <= value <= 10 for *_, value in known)
    board = "SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = %s"
    assert {key for (key,) in bench.rows(board, [fused.run_id])} == set(range(1, 7))


def test_it_is_off_by_default(bench):
    """A run without fusible models is the same with and without it."""
    options = OPTIONS | {"metrics_compute_frequency": 1}
    select(bench, "mst_two", configurations()[:2])
    off, on = (
        fit(bench, f"out_two_{number}", "mst_two", 1, settings, **options) for number, settings in enumerate(((), ON))
    )
    assert groups(bench, off.run_id) is None and "fused_training" not in off.notices
    assert "0 of 2 configurations train in 0 groups, 2 separately: there are not more configurations" in on.notices
    for run in (off, on):
        told = "SELECT count(timing ->> 'fused') FROM madlib_mop.visit WHERE run_id = %s"
        assert bench.value(told, [run.run_id]) == 0
    assert digests(bench, off.run_id) == digests(bench, on.run_id)


@pytest.mark.slow
def test_same_bits_again_by_replay_and_in_two_calls(bench, fused):
    expected = digests(bench, fused.run_id)
    script(bench, f"SELECT madlib_mop.replay({fused.run_id}, 'out_again')")
    assert weights(bench, "out_again") == weights(bench, "out_on")
    without_seed = {name: value for name, value in OPTIONS.items() if name != "seed"}
    fit(bench, "out_split", "mst", 6, ON, **OPTIONS)
    rest = fit(bench, "out_split", "mst", 6, ON, warm_start=True, **without_seed)
    assert digests(bench, rest.run_id) == expected


@pytest.mark.slow
def test_same_bits_whatever_is_killed_and_after_a_cancel(bench, fused):
    """Driver and trainer are killed; one of a group's visits cannot be written; the run is cancelled and resumed."""
    before, named = newest_run(bench), ", ".join(f"{name} := %s" for name in OPTIONS)
    call = BackgroundFit(
        bench,
        "SELECT madlib.madlib_keras_fit_multiple_model(model_output_table := 'out_killed',"
        f" model_selection_table := 'mst', num_iterations := {N_EPOCHS}, {named})",
        list(OPTIONS.values()),
        ON,
    )
    run_id = wait_for(lambda: newest_run(bench) != before and newest_run(bench), what="the run's start")
    wait_for(lambda: visits(bench, run_id) >= 12 or not call.running, what="some visits")
    seen = set(trainers(bench))
    assert kill(bench.value("SELECT driver_pid FROM madlib_mop.run WHERE run_id = %s", [run_id]))
    wait_for(lambda: visits(bench, run_id) >= 40 or not call.running, what="more visits")
    victims = trainers(bench)
    assert victims and kill(victims[0])
    wait_for(lambda: visits(bench, run_id) >= 60 or not call.running, what="more visits")
    bench.rows("SELECT pg_cancel_backend(%s)", [call.pid])
    call.join()
    assert call.error is not None
    assert_nothing_left(bench, seen | set(victims))
    bench.rows("SELECT setval('fault', -2)")
    script(bench, f"SELECT madlib_mop.resume({run_id})")
    assert bench.value("SELECT last_value FROM fault") > 0
    again = (
        "SELECT array_agg(mst_key ORDER BY mst_key) FROM madlib_mop.visit WHERE run_id = %s AND attempt > 1"
        " AND mst_key <= 3 GROUP BY epoch, segment_id"
    )
    assert {tuple(keys) for (keys,) in bench.rows(again, [run_id])} == {(1, 2, 3)}, "a group's visit was kept in parts"
    assert digests(bench, run_id) == digests(bench, fused.run_id)
    assert visits(bench, run_id) == 6 * 2 * N_EPOCHS
    assert figures(bench, run_id) == figures(bench, fused.run_id)


@pytest.mark.slow
def test_a_member_that_diverges_fails_alone(bench, fused):
    """The other members of its group keep their bits; another group fails as a whole."""
    select(bench, "mst_bad", configurations((0.001, 1e30, 0.003, 1e30, 1e30)))
    run = fit(bench, "out_bad", "mst_bad", N_EPOCHS, ON, **OPTIONS)
    assert "mst_key 2 failed: loss became nan while training" in run.notices
    expected = digests(bench, fused.run_id)
    ours = digests(bench, run.run_id)
    assert {key: ours[key] for key in (1, 3, 6)} == {key: expected[key] for key in (1, 3, 6)}
    failed = "SELECT mst_key, state_detail FROM madlib_mop.model WHERE run_id = %s AND state = 'failed' ORDER BY 1"
    given_up = bench.rows(failed, [run.run_id])
    assert [key for key, _ in given_up] == [2, 4, 5]
    assert all("(epoch 1, position 1, segment" in detail for _, detail in given_up)
    script(bench, f"SELECT madlib_mop.replay({run.run_id}, 'out_bad_again')")
    assert weights(bench, "out_bad_again") == weights(bench, "out_bad")


@pytest.mark.slow
def test_a_group_that_cannot_be_trained_as_one_is_dissolved(bench):
    """Two models have made different numbers of steps, but a group's optimizer has one counter."""
    select(bench, "mst_w", [(1, ADAM.format(0.01), "batch_size=16"), (1, ADAM.format(0.02), "batch_size=30")])
    options = {"source_table": "train_1", "schedule": "rotation"}
    for table in ("out_w_on", "out_w_off"):
        fit(bench, table, "mst_w", 1, **options, seed=4)
    bench.rows("UPDATE mst_w SET fit_params = 'batch_size=16'")
    on = fit(bench, "out_w_on", "mst_w", 2, ON, warm_start=True, **options)
    fit(bench, "out_w_off", "mst_w", 2, warm_start=True, **options)
    assert (
        "mst_keys 1, 2 train separately from now on: together, they have made different numbers of steps" in on.notices
    )
    assert groups(bench, on.run_id)["dissolved"] == [0]
    assert weights(bench, "out_w_on") == weights(bench, "out_w_off")


@pytest.mark.slow
def test_it_may_be_a_number(bench):
    options = OPTIONS | {"metrics_compute_frequency": 1}
    pairs = fit(bench, "out_pairs", "mst", 1, ("SET madlib_mop.fused_training = 2",), **options)
    recorded = groups(bench, pairs.run_id)
    assert [group["mst_keys"] for group in recorded["groups"]] == [[1, 2], [3, 4]]
    assert "the groups of its shape are full (mst_key 5)" in pairs.notices


@pytest.mark.slow
def test_models_that_may_stop_early_train_apart(bench):
    options = {**OPTIONS, "metrics_compute_frequency": 1}
    run = fit(bench, "stopping", "mst", 3, ON, early_stopping="patience=1, metric=loss", **options)
    assert "fused training: not used, models may stop early" in run.notices
    assert groups(bench, run.run_id) is None
