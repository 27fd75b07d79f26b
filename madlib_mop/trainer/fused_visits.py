"""A visit of one configuration, or of several of one shape together, to train or to evaluate them; see ``server.py``.

One is trained by `visits`, with the bits of plain Keras. Of several, each ends as in separate training, except for
rounding. The place of a failed member gets a copy of another member, with a discarded result: so the graph keeps its
number of places, and the bits of the other members do not change.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from mop_backend.messages import EvaluationFigures

from madlib_mop.errors import MopError
from madlib_mop.trainer import visits
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import DataSpec
from madlib_mop.trainer.backends.base.interface import FusedModel, FusedTrainPass, VariableSource
from madlib_mop.trainer.backends.base.metric_sums import totals_of_means
from madlib_mop.trainer.data.shard_file import ReadAhead, ShardFile
from madlib_mop.trainer.data.shards import Shard
from madlib_mop.trainer.data.state import FORWARD_GROUPS, UNDECIDED, State, digest_of
from madlib_mop.trainer.graphs import migration
from madlib_mop.trainer.graphs.compiled import CompiledModel
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.clock import Clock
from madlib_mop.trainer.process.failures import INTERNAL, MODEL, RequestFailure, blaming
from madlib_mop.trainer.recipe import Recipe

if TYPE_CHECKING:
    from madlib_mop.trainer.visits import Start, Trained, Visitor

#: Fused models that are cached with one compiled model: the groups of a run have at most two sizes.
_MAX_FUSED = 3


@dataclasses.dataclass(frozen=True)
class _Begun:
    """A member's start: where its variables are, their digest, and ``State.static_batch`` of the state to come."""

    source: VariableSource
    digest: str
    static_batch: int


def train(
    visitor: "Visitor",
    recipes: Sequence[Recipe | None],
    starts: Sequence["Start"],
    shard: Shard,
    epoch: int,
    segment_id: int,
) -> "list[Trained | RequestFailure | None]":
    """Train one visit of the members, together if there are several places; see `train_fused`, `Visitor.train`."""
    if len(recipes) > 1:
        return train_fused(visitor, recipes, starts, shard, epoch, segment_id)
    (recipe,), (start,) = recipes, starts
    assert recipe is not None, "a request has a model"
    return [visitor.train(recipe, start, shard, epoch, segment_id)]


def evaluate(
    visitor: "Visitor", recipes: Sequence[Recipe | None], starts: Sequence["Start"], shard: Shard
) -> list[EvaluationFigures | None]:
    """Evaluate the members, together if there are several places; see `evaluate_fused`, `Visitor.evaluate`."""
    if len(recipes) > 1:
        return evaluate_fused(visitor, recipes, starts, shard)
    (recipe,), (start,) = recipes, starts
    assert recipe is not None, "a request has a model"
    return [visitor.evaluate(recipe, start, shard)]


def train_fused(
    visitor: "Visitor",
    recipes: Sequence[Recipe | None],
    starts: Sequence["Start"],
    shard: Shard,
    epoch: int,
    segment_id: int,
) -> "list[Trained | RequestFailure | None]":
    """Train one visit of each member.

    Parameters
    ----------
    visitor : Visitor
    recipes : sequence of Recipe or None
        One a place. They differ in learning rates, strengths of L2 regularizers and their keys only. None: the member
        has failed in an earlier visit.
    starts : sequence of Start
        Each member's.
    shard : Shard
    epoch, segment_id : int

    Returns
    -------
    list of Trained, RequestFailure or None
        One a place: what the member was trained to, or why it alone failed. ``timing`` of a member is its share of the
        visit's, and ``fused`` there is the number of places.

    Raises
    ------
    RequestFailure
        No member can be trained in this way: memory, internal, or the model's.
    """
    clock = Clock(choice.current().seconds_of_compiling, shard.waited_s)
    first = _first_alike(recipes)
    n_batches, n_passes = visits.extent(first, shard)
    with visitor.compiled(first, DataSpec.of(shard.xs, shard.ys), clock) as compiled:
        begun, outcomes = _begin_all(compiled, recipes, starts, shard, visitor.part_bytes)
        if not begun:
            return outcomes
        filled = [place if place in begun else min(begun) for place in range(len(recipes))]
        given = {place: recipe for place, recipe in enumerate(recipes) if recipe is not None}
        trained = [given[place] for place in filled]
        fused = _fused_model(compiled, first, len(recipes))
        fused.load([begun[place].source for place in filled], [recipe.strengths for recipe in trained])
        clock.lap("state_in_s")
        run = fused.train_pass
        clock.lap("trace_s")
        figures = _run_passes(run, trained, shard, epoch, segment_id, n_batches, n_passes, visitor.file)
        clock.lap("compute_s")
        names, members = fused.metric_names, fused.members()
        kept: dict[int, Trained] = {}
        for place, start in begun.items():
            logs = {name: float(value) for name, value in zip(names, figures[:, place], strict=True)}
            loss, n_made = logs.pop("loss"), n_batches * n_passes
            numbers = start.digest, loss, logs, n_made, start.static_batch, visitor.part_bytes
            try:
                kept[place] = visits.finished(members[place], given[place], shard, *numbers)
            except RequestFailure as failure:
                outcomes[place] = failure
        clock.lap("state_out_s")
    share = {lap: seconds / max(1, len(kept)) for lap, seconds in clock.laps.items()}
    for place, member in kept.items():
        outcomes[place] = member.with_figures(timing={**share, "fused": len(recipes)})
    return outcomes


def evaluate_fused(
    visitor: "Visitor", recipes: Sequence[Recipe | None], starts: Sequence["Start"], shard: Shard
) -> list[EvaluationFigures | None]:
    """Evaluate each member on all rows; return the results of `Visitor.evaluate`, None for a place without a member.

    Parameters are those of `train_fused`; of the states there may be no more parts than a forward pass needs. Raises
    RequestFailure, as it does, also where one member alone cannot be evaluated.
    """
    clock = Clock(choice.current().seconds_of_compiling)
    first = _first_alike(recipes)
    with visitor.compiled(first, DataSpec.of(shard.xs, shard.ys), clock) as compiled:
        states: dict[int, State] = {}
        alike: dict[int, Recipe] = {}
        for place, (recipe, start) in enumerate(zip(recipes, starts, strict=True)):
            if recipe is not None:
                alike[place] = recipe
                states[place] = visits.decoded(start.parts or (), FORWARD_GROUPS)
                visits.check_weights(start, states[place])
                compiled.check_fits(states[place], FORWARD_GROUPS)
        filled = [place if place in states else min(states) for place in range(len(recipes))]
        fused = _fused_model(compiled, first, len(recipes))
        fused.load([states[place] for place in filled], [alike[place].strengths for place in filled], FORWARD_GROUPS)
        clock.lap("state_in_s")
        run = fused.evaluate_pass
        clock.lap("trace_s")
        columns = choice.current().columns(shard.xs, shard.ys, shard.normalizing_const)
        totals = run(columns, choice.current().rows_of_evaluations(shard.xs, first.fit.batch_size))
        clock.lap("compute_s")
        names = fused.metric_names
    timing = {lap: seconds / len(states) for lap, seconds in clock.laps.items()} | {"fused": len(recipes)}
    found: list[EvaluationFigures | None] = [None] * len(recipes)
    for place in states:
        metrics = dict(zip(names, (totals[:, place] / shard.n_rows).tolist(), strict=True))
        loss, sums = metrics.pop("loss"), totals_of_means(names, totals[:, place], shard.n_rows)
        found[place] = EvaluationFigures(shard.n_rows, loss, metrics, {}, sums, timing)  # such models have one output
    return found


def _begin_all(
    compiled: CompiledModel,
    recipes: Sequence[Recipe | None],
    starts: Sequence["Start"],
    shard: Shard,
    part_bytes: int,
) -> "tuple[dict[int, _Begun], list[Trained | RequestFailure | None]]":
    """Find what each place starts from; where there is nothing, the outcome says why, if it is not known already."""
    begun: dict[int, _Begun] = {}
    outcomes: list[Trained | RequestFailure | None] = [None] * len(recipes)
    for place, (recipe, start) in enumerate(zip(recipes, starts, strict=True)):
        try:
            if recipe is not None:
                begun[place] = _begin(compiled, recipe, start, shard, part_bytes)
        except RequestFailure as failure:
            if failure.kind != MODEL:
                raise
            outcomes[place] = failure
    return begun, outcomes


def _run_passes(
    run: FusedTrainPass,
    recipes: Sequence[Recipe],
    shard: Shard,
    epoch: int,
    segment_id: int,
    n_batches: int,
    n_passes: int,
    file: ShardFile | None,
) -> np.ndarray:
    """Train the passes of a visit, one of ``recipes`` per place; return metrics of the last, ``(metrics, places)``."""
    columns = choice.current().columns(shard.xs, shard.ys, shard.normalizing_const)
    batch_size = recipes[0].fit.batch_size
    (orders,) = shard.empty(((len(recipes), shard.n_rows), np.dtype(np.int64)))
    for pass_ in range(n_passes):
        if pass_:
            shard.whole()  # see `visits`
        for recipe, order in zip(recipes, orders, strict=True):
            recipe.order(epoch, segment_id, pass_, shard.n_rows, order)
        ahead = ReadAhead.of_pass(file, [*shard.xs, *shard.ys], orders, batch_size, shard.arrival)
        with ahead or contextlib.nullcontext():
            figures = run(columns, orders, batch_size, n_batches, ahead)
    return figures


def _begin(compiled: CompiledModel, recipe: Recipe, start: "Start", shard: Shard, part_bytes: int) -> _Begun:
    """Find what a member starts from. Raises RequestFailure (model) when that does not fit the model."""
    inherited = None
    if start.parts:
        digest = digest_of(start.parts)
        visits.check_digest(start, digest)
        state = migration.own(visits.decoded(start.parts), start.begins, recipe.build)
        compiled.check_fits(state)
        inherited = None if state.static_batch == UNDECIDED else state.static_batch
    else:
        with blaming(MODEL):
            drawn = ModelVariables(recipe.build(start.weights))
    # If the member is trained separately from now on, it continues as plain Keras would after a first fit on this
    # shard.
    _, carried = choice.current().static_batch_of(shard.n_rows, recipe.fit.batch_size, inherited)
    if start.parts:
        return _Begun(state, digest, carried)
    return _Begun(drawn, digest_of(drawn.encode(carried, part_bytes)), carried)


def _fused_model(compiled: CompiledModel, recipe: Recipe, n_places: int) -> FusedModel:
    """Return the fused model of a compiled one with so many places."""
    if n_places not in compiled.fused:
        while len(compiled.fused) >= _MAX_FUSED:
            del compiled.fused[next(iter(compiled.fused))]
        compiled.fused[n_places] = choice.current().fused_model(compiled, recipe.optimizer(), n_places)
    return compiled.fused[n_places]


def _first_alike(recipes: Sequence[Recipe | None]) -> Recipe:
    """Return the first; raise RequestFailure (internal) for members that no fused model can hold."""
    members = [recipe for recipe in recipes if recipe is not None]
    if len({(recipe.signature, recipe.fit.key) for recipe in members}) > 1:
        raise RequestFailure(INTERNAL, MopError("the members of a fused group are not of one shape"))
    return members[0]
