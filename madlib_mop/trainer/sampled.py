"""Metrics after a visit: evaluates trained models on a sample, which stays in memory; called by ``server.py``.

An evaluation changes no variable, so the visit gives the same state with and without it.
"""

import time
from collections.abc import Sequence

from madlib_mop.trainer import fused_visits
from madlib_mop.trainer.data.shards import Shard
from madlib_mop.trainer.process.failures import RequestFailure
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.visits import Start, Trained, Visitor


def evaluate(
    visitor: Visitor,
    recipes: Sequence[Recipe | None],
    outcomes: Sequence[Trained | RequestFailure | None],
    sample: Shard,
) -> list[Trained | RequestFailure | None]:
    """Return the outcomes of a visit, with loss and metrics of each trained model; raise as `Visitor.evaluate`."""
    begun = time.perf_counter()
    trained = {place: outcome for place, outcome in enumerate(outcomes) if isinstance(outcome, Trained)}
    if not trained:
        return list(outcomes)
    alive = [recipe if place in trained else None for place, recipe in enumerate(recipes)]
    starts = [_start_of(trained[place]) if place in trained else Start() for place in range(len(recipes))]
    found = fused_visits.evaluate(visitor, alive, starts, sample)
    seconds = (time.perf_counter() - begun) / len(trained)
    measured = list(outcomes)
    for place, member in trained.items():
        own, timing = found[place], member.figures.timing
        assert own is not None, "each place with a model is evaluated"
        # tracing, which serves the run's other evaluations too, counts as tracing
        trace_s = own.timing.get("trace_s", 0.0)
        timing = {**timing, "trace_s": timing.get("trace_s", 0.0) + trace_s, "sample_s": seconds - trace_s}
        measured[place] = member.with_figures(sample={"loss": own.loss, **own.metrics}, timing=timing)
    return measured


def _start_of(trained: Trained) -> Start:
    return Start(parts=list(trained.parts), digest=trained.figures.digest_out)
