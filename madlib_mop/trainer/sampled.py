"""Metrics after a visit: evaluates trained models on a sample, which stays in memory; called by ``server.py``.

An evaluation changes no variable, so the visit gives the same state with and without it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from madlib_mop.trainer import fused_visits
from madlib_mop.trainer.data.shards import Shard
from madlib_mop.trainer.process.failures import RequestFailure
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.visits import Start, Trained, Visitor


def evaluate(visitor: Visitor, recipe: Recipe, trained: Trained, sample: Shard) -> None:
    """Add to a visit's answer the loss and metrics of the trained model; raise RequestFailure as `Visitor.evaluate`."""
    begun = time.perf_counter()
    figures = visitor.evaluate(recipe, _start_of(trained), sample)
    _add(trained, figures, time.perf_counter() - begun)


def evaluate_fused(
    visitor: Visitor,
    recipes: Sequence[Recipe | None],
    outcomes: Sequence[Trained | RequestFailure | None],
    sample: Shard,
) -> None:
    """Add the same to the answer of each member of a fused group that was trained."""
    begun = time.perf_counter()
    trained = {place: outcome for place, outcome in enumerate(outcomes) if isinstance(outcome, Trained)}
    if not trained:
        return
    alive = [recipe if place in trained else None for place, recipe in enumerate(recipes)]
    starts = [_start_of(trained[place]) if place in trained else Start() for place in range(len(recipes))]
    figures = fused_visits.evaluate_fused(visitor, alive, starts, sample)
    seconds = (time.perf_counter() - begun) / len(trained)
    for place, member in trained.items():
        own = figures[place]
        assert own is not None, "each place with a model is evaluated"
        _add(member, own, seconds)


def _start_of(trained: Trained) -> Start:
    return Start(parts=list(trained.parts), digest=trained.answer["digest_out"])


def _add(trained: Trained, figures: Mapping[str, Any], seconds: float) -> None:
    """Add the figures to the answer; tracing, which serves the run's other evaluations too, counts as tracing."""
    timing, trace_s = trained.answer["timing"], figures.get("timing", {}).get("trace_s", 0.0)
    trained.answer["sample"] = {"loss": figures["loss"], **figures["metrics"]}
    timing["trace_s"] = timing.get("trace_s", 0.0) + trace_s
    timing["sample_s"] = seconds - trace_s
