"""Forecasts of a run on one server, in simulated time."""

import pytest

from madlib_mop.schedule import BulkSynchronous, ModelWork, make_scheduler
from madlib_mop.schedule.forecast.one_server import ServerCosts, Shards, UnitCosts, Watcher, forecast_on_server

N_ROWS = 100


def costs(graph: object = "g", **changed) -> UnitCosts:
    """Return costs with a second for each trace, and 0.1 s for each visit and each evaluation."""
    given = {
        "trace_s": 1.0, "begin_s": 0.0, "visit_s": 0.05, "row_s": 0.0005, "evaluation_trace_s": 1.0,
        "evaluation_s": 0.05, "evaluation_row_s": 0.0005,
    }  # fmt: skip
    return UnitCosts(graph=graph, **{**given, **changed})


def forecast(
    n_models: int, n_segments: int, n_epochs: int = 1, n_graphs: int = 1, processors: int = 99, any_trainer=True,
    due=lambda unit, epoch: False, of_unit=None, server: dict | None = None, **others,
):  # fmt: skip
    works = [ModelWork((c,), c, n_epochs, graph=str(c % n_graphs)) for c in range(n_models)]
    segments = range(n_segments)
    scheduler = make_scheduler("auto", works, dict.fromkeys(segments, N_ROWS), None, processors, any_trainer)
    shards = Shards({("training", s): N_ROWS for s in segments}, {s: [("training", s)] for s in segments})
    of_unit = of_unit or (lambda unit: costs(unit[0] % n_graphs))
    return forecast_on_server(scheduler, of_unit, ServerCosts(processors, **(server or {})), shards, due, **others)


def test_one_trainer_does_one_task_after_the_other():
    found = forecast(3, 1, n_epochs=4)
    assert found.seconds == pytest.approx(1.0 + 3 * 4 * 0.1), "one trace, twelve visits"
    assert (found.n_visits, found.n_traces, found.busy_share) == (12, 1, 1.0)


def test_a_graph_is_traced_at_each_trainer_if_models_move_between_trainers():
    assert forecast(4, 2, any_trainer=False).n_traces == 2
    assert forecast(2, 2, n_graphs=2, any_trainer=True).n_traces == 2, "each model stays"
    assert forecast(2, 2, n_graphs=2, any_trainer=False).n_traces == 4


def test_trainers_share_processors():
    alone, shared = forecast(4, 4, 10, n_graphs=4), forecast(4, 4, 10, n_graphs=4, processors=2)
    assert shared.seconds == pytest.approx(2 * alone.seconds)


def test_a_first_visit_draws_weights_and_a_first_load_reads_rows():
    def drawn(unit):
        return costs(begin_s=0.2)

    found = forecast(2, 1, 3, of_unit=drawn, server={"load_s": {("training", 0): 0.5}, "task_s": 0.01})
    assert found.seconds == pytest.approx(1.0 + 6 * 0.1 + 2 * 0.2 + 0.5 + 6 * 0.01)


def test_a_visit_of_fewer_steps_takes_less():
    assert forecast(1, 1, of_unit=lambda unit: costs(most_rows=10)).seconds == pytest.approx(1.0 + 0.055)


def test_the_output_of_frozen_layers_is_computed_once_for_a_shard():
    due = lambda unit, epoch: True  # noqa: E731
    found = forecast(2, 1, 3, due=due, of_unit=lambda unit: costs(features_row_s=0.01))
    assert found.seconds == pytest.approx(2 * 1.0 + 2 * 3 * 2 * 0.1 + N_ROWS * 0.01)


def test_evaluations_come_after_the_epochs_that_are_due():
    ends = []
    due = lambda unit, epoch: epoch % 2 == 0  # noqa: E731
    found = forecast(3, 1, 4, due=due, epoch_over=lambda unit, epoch, now_s: ends.append((*unit, epoch)))
    assert sorted(ends) == [(model, epoch) for model in range(3) for epoch in range(1, 5)], "each once"
    assert found.n_evaluations == 6
    assert found.seconds == pytest.approx(2 * 1.0 + (12 + 6) * 0.1), "a trace for training, one for evaluating"


def test_model_averaging_visits_all_segments_at_once_and_then_averages():
    shards = Shards({("training", s): N_ROWS for s in (0, 1)}, {s: [("training", s)] for s in (0, 1)})
    plan = BulkSynchronous((1,), [0, 1], [0, 1], 1, 3)
    found = forecast_on_server(plan, lambda unit: costs(), ServerCosts(2), shards, lambda unit, epoch: False)
    assert (found.n_visits, found.n_traces) == (6, 2)
    assert found.seconds == pytest.approx(1.0 + 3 * (0.1 + 0.05)), "two visits at once, then the average"


def test_a_watcher_is_told_of_each_task_at_its_beginning_and_end():
    class Pairs(Watcher):
        def __init__(self):
            self.open, self.closed = [], []

        def begun(self, task, now_s):
            self.open.append((task, now_s))

        def ended(self, task, now_s):
            (began,) = [at for of, at in self.open if of == task]
            self.closed.append(now_s - began)

    pairs = Pairs()
    forecast(2, 1, 2, watcher=pairs)
    assert sorted(pairs.closed) == pytest.approx([0.1, 0.1, 0.1, 1.1])
