"""Estimates of runs: costs that were measured and others, simulated searches, disk, memory, and what limits a run."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest

from madlib_mop.catalog.rows.plan import FusedGroup, FusedPlan, SamplePlan, ShardAccess
from madlib_mop.driver.estimates import estimate as estimates
from madlib_mop.driver.estimates.costs import (
    _COLUMNS,
    CostModel,
    Measured,
    Work,
    _measured,
    read_recorded,
    rough_costs,
    undisturbed,
    work_of,
)
from madlib_mop.driver.estimates.estimate import SLOT_BYTES, Estimator, SimulatedSlots, slot_bytes, stored_bytes
from madlib_mop.driver.estimates.memory import (
    TrainerRows,
    files_bytes,
    memory_of,
    need_of_admission,
    rows_of_trainers,
)
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.sharing import known_architecture
from madlib_mop.models.sizes import NetworkSize
from madlib_mop.schedule import Average, Visit
from tests.helpers.unit.rows import a_model, a_plan, a_run, a_search

SMALL, LARGE = NetworkSize(2, 1000, 1000, 40), NetworkSize(6, 1_000_000, 1_000_000, 5000)
PAGE = 8192
COMPILE = "loss='mse', optimizer='Adam(lr={})', metrics=['mae']"


def arch(units: int = 8) -> dict:
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "dtype": "float32", "name": "input"}},
        {"class_name": "Dense", "module": "keras.layers", "config": {"name": "dense", "units": units}},
        {"class_name": "Dense", "module": "keras.layers", "config": {"name": "dense_1", "units": 2}},
    ]
    return {"class_name": "Sequential", "config": {"name": "sequential", "layers": layers}}


def models(n: int, n_epochs: int = 3, units=lambda key: 8) -> list:
    return [
        a_model(key, model_id=units(key), model_arch=arch(units(key)), compile_params=COMPILE.format(key / 1000),
                fit_params="batch_size=4", last_epoch=n_epochs)
        for key in range(1, n + 1)
    ]  # fmt: skip


def estimate(n: int = 4, run: dict | None = None, plan: dict | None = None, costs=None, **given):
    of = models(n, **given)
    row = a_run(a_plan(**(plan or {})), n_models=n, num_iterations=3, metrics_compute_frequency=3, **(run or {}))
    return Estimator(row, of).estimate(costs or CostModel())


def work(graph="g", size=SMALL, batch_size=32, **others) -> Work:
    return Work(graph, size, 2, batch_size, **others)


def measured(of: Work, factor: float, run_id: int | None = 7) -> Measured:
    rough = rough_costs(of)
    names = ("trace_s", "begin_s", "visit_s", "row_s", "evaluation_trace_s", "evaluation_s", "evaluation_row_s")
    return Measured(of, replace(rough, **{name: factor * getattr(rough, name) for name in names}), 12_345, run_id)


# Costs


def test_a_network_that_was_measured_costs_what_it_did():
    found = CostModel([measured(work(), 3.0), measured(work("other", LARGE), 100.0)]).guess(work())
    assert found.costs.row_s == pytest.approx(3 * rough_costs(work()).row_s)
    assert found.state_bytes == 12_345


def test_what_is_computed_once_for_a_shard_is_known_only_of_a_network_that_was_measured():
    one = measured(work(is_frozen=True), 1.0)
    model = CostModel([replace(one, costs=replace(one.costs, features_row_s=0.5))])
    assert [model.guess(work(graph)).costs.features_row_s for graph in ("g", "other")] == [0.5, 0.0]


@pytest.mark.parametrize("features_row_s", [-0.5, float("nan")])
def test_a_time_of_features_that_is_none_costs_nothing(features_row_s):
    """A trainer reports it, so it may be any number; a task of negative time would end before it begins."""
    names = ("row_s", "visit_s", "begin_s", "first_s", "evaluation_row_s", "evaluation_s", "evaluation_first_s")
    row = {**dict.fromkeys(names, 0.1), "n_at_once": 1, "n_rows": 8.0, "n_evaluated": 8.0, "state_bytes": 9}
    found = _measured(7, work(is_frozen=True), [{**row, "features_row_s": features_row_s}], 1)
    assert found.costs.features_row_s == 0.0
    more = _measured(7, work(is_frozen=True), [{**row, "features_row_s": n} for n in (features_row_s, 0.25)], 1)
    assert more.costs.features_row_s == 0.25


def test_the_architecture_of_a_configuration_is_looked_up_once_for_its_costs(monkeypatch):
    """Each look-up makes a text of the architecture, and a fit begins with those of hundreds of recorded models."""
    looked_up = Mock(wraps=known_architecture)
    monkeypatch.setattr("madlib_mop.driver.estimates.costs.known_architecture", looked_up)
    one = models(1)[0]
    work_of(Configuration.recorded(0, one.compile_params, one.fit_params, one.model_arch))
    assert looked_up.call_count == 1


def test_a_long_record_does_not_keep_a_run_waiting():
    """Each network of the record is checked and measured by its layers; a server's record has those of years."""
    values = {"n_at_once": 1, "n_rows": 8.0, "n_evaluated": 8.0, "state_bytes": 9, "compile_params": COMPILE.format(1)}

    class ALongRecord:
        def execute(self, query, params):
            for run_id in range(30, 0, -1):
                of_row = {"run_id": run_id, "model_arch": json.dumps(arch(run_id)), "fit_params": "batch_size=8"}
                yield [{**values, **of_row}.get(name, 0.1) for name in _COLUMNS]

    def networks(configurations):
        found = read_recorded(ALongRecord(), a_run(a_plan()), configurations)
        assert found.task_s is not None
        return [one.run_id for one in found.measured]

    assert networks([]) == [30, 29, 28, 27, 26, 25]
    own = Configuration.recorded(0, values["compile_params"], "batch_size=8", arch(3))
    assert networks([own]) == [30, 29, 28, 27, 26, 25, 3]


def test_another_batch_size_costs_by_the_same_factor():
    small = work(batch_size=8)
    assert CostModel([measured(work(), 3.0)]).guess(small).costs.row_s == pytest.approx(3 * rough_costs(small).row_s)


def test_another_network_costs_by_the_factor_of_the_nearest_one():
    near, far = work("near", replace(SMALL, n_layers=3)), work("far", LARGE)
    model = CostModel([measured(near, 2.0), measured(far, 9.0)])
    found = model.guess(work("new", SMALL))
    assert found.costs.trace_s == pytest.approx(2 * rough_costs(work("new", SMALL)).trace_s)
    assert not model.has(work("new", SMALL))


@pytest.mark.parametrize("others", [[7], [9], [None], [7, 9], [5, 6, 7]])
def test_a_run_under_load_does_not_spoil_the_estimate(others):
    """Whichever run was under load, with whatever number of models: other work only makes tasks longer."""
    loaded = [measured(work(n_passes=n), 10.0, 8) for n in (1, 2, 3)]
    found = CostModel([*loaded, *(measured(work(), 2.0, run_id) for run_id in others)]).guess(work())
    for name in ("trace_s", "row_s", "evaluation_row_s"):
        assert getattr(found.costs, name) == pytest.approx(2 * getattr(rough_costs(work()), name))
    assert undisturbed([*((8, 9.0) for _ in loaded), *((run_id, 1.0) for run_id in others)]) == 1.0


def test_a_single_run_is_no_measure_of_its_networks_so_a_probe_is_made():
    one, other, probed = (measured(work(), 1.0, run_id) for run_id in (7, 8, None))
    assert not CostModel([one]).has(work()) and not CostModel([one, one]).has(work())
    assert CostModel([one, other]).has(work()) and CostModel([probed]).has(work())


def test_the_less_was_measured_the_wider_is_the_spread():
    known, like, nothing = CostModel([measured(work(), 1.0)]), CostModel([measured(work("x"), 1.0)]), CostModel()
    errors = [model.guess(work()).error for model in (known, like, nothing)]
    assert errors == sorted(errors) and len(set(errors)) == 3


def test_a_group_is_not_one_of_its_models():
    group = work(n_places=8)
    assert not CostModel([measured(work(), 1.0)]).has(group)
    assert rough_costs(group).row_s < 8 * rough_costs(work()).row_s, "operations are shared"


# Runs


def test_visits_evaluations_and_graphs_are_counted():
    found = estimate(4, units=lambda key: 8 + key % 2)
    assert found.visits.value == 4 * 2 * 3
    assert found.evaluations.value == 4 * 2, "after the last iteration"
    assert found.traces.value == 2 * 2 * 2, "two graphs at two trainers, for training and for evaluating"
    assert found.seconds.low < found.seconds.value < found.seconds.high


def test_models_that_stay_with_a_trainer_trace_their_graph_once():
    found = estimate(4, plan={"any_trainer": True}, units=lambda key: 8 + key % 2)
    assert found.traces.value == 2 * 2


@pytest.mark.parametrize(("any_trainer", "n_tasks"), [(True, 58 + 2 * 2), (False, 60 * 2)])
def test_an_evaluation_is_as_many_tasks_as_in_the_run(monkeypatch, any_trainer, n_tasks):
    """Six models of ten iterations, evaluated after each one: in one task, until two models are left for two trainers,
    if each trainer holds all rows; else in one for each segment. A task takes a second, and nothing else takes time."""
    monkeypatch.setattr(estimates, "processors", lambda: 2)
    monkeypatch.setattr(estimates, "_DRIVER_S", 0.0)
    given = dict.fromkeys(("trace_s", "begin_s", "visit_s", "row_s", "evaluation_trace_s", "evaluation_s"), 1e-9)
    row = a_run(a_plan(any_trainer=any_trainer), n_models=6, num_iterations=10, metrics_compute_frequency=1)
    estimator = Estimator(row, models(6, n_epochs=10))
    of = estimator.units()[0].work
    free = Measured(of, replace(rough_costs(of), evaluation_row_s=1e-9, **given), 8)
    found = estimator.estimate(CostModel([free]), task_s=1.0)
    assert found.evaluations.value == 60 * 2
    assert found.seconds.value == pytest.approx((6 * 10 * 2 + n_tasks) / 2, rel=0.03)


@pytest.mark.parametrize(("first_epoch", "every", "n_times"), [(1, 1, 24), (1, 2, 12), (2, 4, 4)])
def test_metrics_after_visits_take_time(monkeypatch, first_epoch, every, n_times):
    monkeypatch.setattr(estimates, "processors", lambda: 2)
    of = Estimator(a_run(a_plan()), models(1)).units()[0].work
    slow = replace(rough_costs(of), evaluation_row_s=1.0)
    sample = SamplePlan("training", 0, n_rows=5, every=every)
    trained = [replace(model, first_epoch=first_epoch, last_epoch=first_epoch + 2) for model in models(4)]
    seconds = [
        Estimator(a_run(a_plan(sample=each), n_models=4, num_iterations=3, metrics_compute_frequency=3), trained)
        .estimate(CostModel([Measured(of, slow, 8)]))
        .seconds.value
        for each in (None, sample)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(n_times * 5 * 1.0 / 2, rel=0.05), "two trainers"


def test_a_fused_group_makes_one_visit():
    group = FusedPlan(8, (FusedGroup([1, 2, 3, 4], 4),))
    assert estimate(4, plan={"fused_training": group}).visits.value == 2 * 3


def test_very_many_visits_are_simulated_in_part():
    all_of_it = estimate(3, n_epochs=40)
    of = models(3, n_epochs=40)
    row = a_run(a_plan(), n_models=3, num_iterations=40, metrics_compute_frequency=3)
    in_part = Estimator(row, of, most_visits=60).estimate(CostModel())
    assert in_part.visits.value == all_of_it.visits.value
    assert in_part.seconds.value == pytest.approx(all_of_it.seconds.value, rel=0.15)


def test_a_limit_of_time_limits_the_estimate():
    slow = CostModel([measured(Estimator(a_run(a_plan()), models(1)).units()[0].work, 1000.0)])
    found = estimate(4, plan={"time_limit_s": 2.0}, costs=slow)
    assert found.seconds.value < 3.0
    assert any("limit of 2 s" in text for text in found.binds)


def test_fewer_models_than_trainers_are_named():
    found = estimate(1)
    assert found.binds[0].startswith("models: 1 can keep at most 1 of 2 trainers busy")


def test_a_trainer_that_needs_more_than_its_limit_is_named_first():
    found = estimate(2, plan={"trainer": {"memory_limit_bytes": 1 << 20}})
    assert found.binds[0].startswith("memory: a trainer needs about")


def test_units_to_probe_are_one_of_each_graph_and_batch_size():
    of = [replace(m, fit_params=f"batch_size={4 * (1 + m.mst_key % 2)}") for m in models(6)]
    units = Estimator(a_run(a_plan()), of).units()
    assert sorted(unit.work.batch_size for unit in units) == [4, 8]
    assert units[0].models[0]["arch"] == arch()


def test_a_search_is_simulated_with_losses_at_random():
    rates = "[{'optimizer': ['SGD'], 'lr': [0.1, 1.0]}]"
    grid = f"{{'loss': ['mse'], 'metrics': [['mae']], 'optimizer_params_list': {rates}}}"
    for method, params in (("asha", "R=9, eta=3, num_configs=9"), ("hyperband", "R=9, eta=3")):
        search = a_search(
            method, params=params, archs={"1": json.dumps(arch())}, compile_params_grid=grid,
            fit_params_grid="{'batch_size': [4], 'epochs': [1]}",
        )  # fmt: skip
        row = a_run(a_plan(search=search), kind="automl", num_iterations=9, n_models=0)
        found = Estimator(row, []).estimate(CostModel())
        assert found.visits.low <= found.visits.value <= found.visits.high
        assert 2 * 9 <= found.visits.value <= 2 * 9 * 22, method
        assert found.states_bytes.value > 0 and found.output_bytes > 0


# Disk and memory


def test_slots_keep_the_newest_states_and_little_more():
    slots = SimulatedSlots([(1,), (2,)], lambda unit: 4 << 20)
    for epoch in range(1, 6):
        for model in (1, 2):
            visit = Visit((model,), 0, epoch, 1)
            slots.begun(visit, epoch)
            slots.ended(visit, epoch)
    live = 2 * slot_bytes(4 << 20)
    assert live <= slots.most_bytes <= 2 * live
    assert slots.end() <= slots.most_bytes


def test_staged_states_are_released_after_the_average():
    slots = SimulatedSlots([(1,)], lambda unit: 4 << 20, is_averaging=True)
    for epoch in (1, 2, 3):
        for segment in (0, 1):
            slots.begun(Visit((1,), segment, epoch, 1 + segment), epoch)
        for segment in (0, 1):
            slots.ended(Visit((1,), segment, epoch, 1 + segment), epoch)
        slots.begun(Average((1,), 0, epoch), epoch)
        slots.ended(Average((1,), 0, epoch), epoch)
    assert slots.most_bytes <= 5 * (SLOT_BYTES + stored_bytes(4 << 20))


def test_model_averaging_moves_no_states_before_its_end():
    """While it trains, it does not pay for moves. At its end it does, once, as each run does: one state is written, and
    the replaced ones of its slot are freed."""
    n_bytes, n_epochs = 85_000, 8  # 24 states are written; a slot of 1 MB has 12
    slots = SimulatedSlots([(1,)], lambda unit: n_bytes, is_averaging=True)
    for epoch in range(1, n_epochs + 1):
        for segment in (0, 1):
            slots.begun(Visit((1,), segment, epoch, 1 + segment), 10.0 * epoch)
        for segment in (0, 1):
            slots.ended(Visit((1,), segment, epoch, 1 + segment), 10.0 * epoch + segment)
        slots.begun(Average((1,), 0, epoch), 10.0 * epoch + 2)
        slots.ended(Average((1,), 0, epoch), 10.0 * epoch + 2)
    assert slots.n_bytes == slot_bytes(12 * n_bytes) + slot_bytes(0), "nothing was moved"
    assert slots.end() == slot_bytes(n_bytes)


@pytest.mark.parametrize(
    ("kind", "n_models", "n_pages"), [("fit", 1, 3 * 4 + 1), ("averaging", 1, 2 + 4 + 1), ("search", 4, 5 * 4 + 1)]
)
def test_output_tables_are_those_that_the_run_writes(kind, n_models, n_pages):
    """In pages, without long values: 4 of a table with a primary key, 2 of one without, and one more for the index of
    long values. A search also writes a model selection table and its summary."""
    row, of = a_run(a_plan()), models(1, units=lambda key: 400)
    if kind == "averaging":
        row = replace(row, schedule="averaging")
    elif kind == "search":
        rates = "[{'optimizer': ['SGD'], 'lr': [0.1, 1.0]}]"
        grid = f"{{'loss': ['mse'], 'metrics': [['mae']], 'optimizer_params_list': {rates}}}"
        search = a_search(
            "asha", params="R=3, eta=3, num_configs=4", archs={"1": json.dumps(arch(400))}, compile_params_grid=grid,
            fit_params_grid="{'batch_size': [4], 'epochs': [1]}",
        )  # fmt: skip
        row, of = a_run(a_plan(search=search), kind="automl", num_iterations=3, n_models=0), []
    long = n_models * stored_bytes(4 * (5 * 400 + 401 * 2)) + 3 * PAGE  # with a map of free space
    assert Estimator(row, of).estimate(CostModel()).output_bytes == pytest.approx(n_pages * PAGE + long, abs=PAGE)


def test_a_trainer_without_visits_takes_less_memory():
    plan = a_plan()
    one, two = memory_of(plan, [1, 0], []), memory_of(plan, [1, 1], [])
    assert one.server_bytes < two.server_bytes and one.trainers_bytes < two.trainers_bytes


def test_each_session_has_a_process_at_each_segment_of_greenplum():
    """Two sessions a segment, the driver's and the caller's; the trainers are the same."""
    plan = a_plan()
    shards = plan.training.segments
    there = tuple(replace(shard, place=ShardAccess("SELECT 1", key=shard.segment_id)) for shard in shards)
    here, found = (memory_of(one, [1] * len(shards), []) for one in (
        plan, replace(plan, training=replace(plan.training, segments=there))))  # fmt: skip
    n_processes = len(shards) * (2 * len(shards) + 2)
    assert found.server_bytes - here.server_bytes == pytest.approx(n_processes * 3.2e6, rel=0.1)
    assert found.trainers_bytes == here.trainers_bytes


def test_rows_that_do_not_fit_into_the_cache_are_on_disk():
    """Those of a segment's data sets one after the other, with 8 bytes a row for its place in the order of a pass."""
    plan = a_plan()
    shards = tuple(replace(s, n_bytes=100, n_rows=5) for s in plan.training.segments)
    training = replace(plan.training, segments=shards)
    start = {"shard_cache_bytes": 150, "shard_disk_bytes": 1 << 30}
    plan = replace(plan, training=training, validation=training, trainer=start)
    assert rows_of_trainers(plan) == [TrainerRows(100, 140, 100)] * len(shards)
    assert files_bytes(plan) == 140 * len(shards)
    on_disk, in_memory = (memory_of(one, [1] * len(shards), []) for one in (
        plan, replace(plan, trainer={"shard_cache_bytes": 150})))  # fmt: skip
    assert (on_disk.files_bytes, in_memory.files_bytes) == (140 * len(shards), 0)
    assert need_of_admission(plan) == need_of_admission(replace(plan, trainer={}))
    nothing_stays = replace(plan, trainer={**start, "shard_cache_bytes": 0})
    assert need_of_admission(plan) - need_of_admission(nothing_stays) == 100 * len(shards)
    assert files_bytes(replace(plan, any_trainer=True)) == files_bytes(replace(plan, gpus={0: 0})) == 0


def test_admission_asks_for_each_trainer_and_its_rows():
    one, each = need_of_admission(a_plan()), need_of_admission(a_plan(any_trainer=True))
    assert each - one == sum(shard.n_bytes for shard in a_plan().training.segments)
