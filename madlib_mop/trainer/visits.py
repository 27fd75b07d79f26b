"""Visits: one configuration on one shard, to train or to evaluate it, and predictions; called by ``server.py``."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
from mop_backend.frames import Blob
from mop_backend.messages import EvaluationFigures, MetricTotals, MetricValues, VisitFigures
from mop_backend.refusals import STATE_DAMAGED

from madlib_mop.errors import DataDamaged
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.columns import DataSpec
from madlib_mop.trainer.backends.base.interface import TrainPass
from madlib_mop.trainer.backends.base.metric_sums import MetricAccumulator
from madlib_mop.trainer.data.parts import GROUPS, StateError
from madlib_mop.trainer.data.readable import Readable, ReadArrays
from madlib_mop.trainer.data.shard_file import ReadAhead, ShardFile
from madlib_mop.trainer.data.shards import Shard, check_class_weight, row_weights_of
from madlib_mop.trainer.data.state import (
    DEFAULT_PART_BYTES,
    FORWARD_GROUPS,
    UNDECIDED,
    State,
    count_forward_parts,
    decode_state,
    digest_of,
)
from madlib_mop.trainer.graphs import migration
from madlib_mop.trainer.graphs.compiled import CompiledCache, CompiledModel
from madlib_mop.trainer.graphs.features import BatchSizes, FeatureCache
from madlib_mop.trainer.graphs.predict import Predictor, Predictors, Values
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.clock import Clock
from madlib_mop.trainer.process.failures import INPUT, MODEL, RequestFailure, blaming, model_failed
from madlib_mop.trainer.recipe import Recipe

#: Bytes of the variables of a model that are read once for all that a visit says about them, and may be copied for it.
_MOST_READ_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Start:
    """What a visit starts from: a state in parts, or float32 weights, or (both None) a freshly drawn model.

    The list of parts is emptied as soon as they have been read, for a state may be larger than all else. An evaluation
    may be given no more of them than it needs (``count_forward_parts``). ``digest`` and ``weights_digest`` are those
    that are recorded for the whole state and its weights: a visit of other bytes fails.

    ``taken_over`` says that the state is that of another configuration, whose parameters this one does not share: for
    training, the learning rate is this one's own then, and so are all the optimizer's variables unless
    ``keep_optimizer``. ``begins`` says that a run begins with the state, so it may be of another backend.
    """

    parts: list[Blob] | None = None
    weights: Sequence[Blob] | None = None
    digest: str | None = None
    weights_digest: str | None = None
    taken_over: bool = False
    keep_optimizer: bool = True
    begins: bool = False


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training visit gives: numbers for the record, and the new state's parts."""

    figures: VisitFigures
    parts: list[memoryview]

    def with_figures(self, **changes: Any) -> "Trained":
        """Return it with other values of some figures."""
        return dataclasses.replace(self, figures=dataclasses.replace(self.figures, **changes))


class Visitor:
    """Makes visits; owns the compiled models.

    Parameters
    ----------
    part_bytes : int
        Largest size of a part of a training state, in bytes.
    max_model_bytes : int
        How much the variables of all cached models may take, in bytes.
    features_room : callable or None
        Returns the bytes that materialised features may take; None turns them off: every visit computes all layers.
    file : ShardFile or None
        The trainer's file, for features that take more.
    """

    def __init__(
        self,
        part_bytes: int = DEFAULT_PART_BYTES,
        max_model_bytes: int = 1 << 30,
        features_room: Callable[[], int] | None = None,
        file: ShardFile | None = None,
    ):
        self.part_bytes = part_bytes
        self.models = CompiledCache(max_bytes=max_model_bytes)
        self.file = file
        self._features_room = features_room or (lambda: 0)
        self._materialises = features_room is not None
        self.forget()

    def forget(self) -> None:
        """Drop predictors and features: all but compiled models. These keep their weights until they are trained."""
        self.predictors = Predictors()
        self.features = FeatureCache(self._features_room, self.file)

    def train(self, recipe: Recipe, start: Start, shard: Shard, epoch: int, segment_id: int) -> Trained:
        """Train one configuration on one shard: ``epochs - initial_epoch`` passes.

        Raises
        ------
        RequestFailure
            model: it does not build, does not fit the data or the state, or its loss is not finite.
            memory: the backend ran out of it.
        """
        clock = Clock(choice.current().seconds_of_compiling, shard.waited_s)
        fit = recipe.fit
        n_batches, n_passes = extent(recipe, shard)
        digest_in = digest_of(start.parts) if start.parts else None
        check_digest(start, digest_in)
        with self.compiled(recipe, DataSpec.of(shard.xs, shard.ys), clock) as compiled:
            inherited = _begin(compiled, recipe, start, digest_in, GROUPS)
            static_batch, carried = choice.current().static_batch_of(shard.n_rows, fit.batch_size, inherited)
            if digest_in is None:  # digest of the initial state, for comparison in a replay
                digest_in = digest_of(compiled.encode(carried, self.part_bytes))
            clock.lap("state_in_s")
            features = self._features(compiled, shard, BatchSizes.of(shard.n_rows, fit.batch_size, static_batch), clock)
            run = compiled.train_pass(fit.class_weight is not None, static_batch, features is not None)
            clock.lap("trace_s")
            xs = shard.xs if features is None else features
            trained, _ = compiled.part(features is not None)
            place, counts = (epoch, segment_id), (n_batches, n_passes)
            logs, n_made = _run_passes(run, trained, recipe, shard, xs, *place, *counts, self.file)
            loss = logs.pop("loss")
            clock.lap("compute_s")
            n_batches *= n_made
            end = finished(compiled, recipe, shard, digest_in, loss, logs, n_batches, carried, self.part_bytes)
            compiled.holds, compiled.held_groups = end.figures.digest_out, GROUPS
            clock.lap("state_out_s")
        return end.with_figures(timing=clock.laps)

    def evaluate(self, recipe: Recipe, start: Start, shard: Shard) -> EvaluationFigures:
        """Return loss and metrics over all rows of a shard: what Keras' ``evaluate`` gives, added in float64.

        The metrics are in the order of compile's; ``sums`` are what they are made of, see `MetricAccumulator`. Raises
        RequestFailure as ``train`` does, but a loss may be NaN.
        """
        clock = Clock(choice.current().seconds_of_compiling)
        digest_in = start.digest or digest_of(start.parts) if start.parts else None
        with self.compiled(recipe, DataSpec.of(shard.xs, shard.ys), clock) as compiled:
            held = _held_groups(compiled, digest_in)
            _begin(compiled, recipe, start, digest_in, FORWARD_GROUPS)
            clock.lap("state_in_s")
            batch_size = choice.current().rows_of_evaluations(shard.xs, recipe.fit.batch_size)
            features = self._features(compiled, shard, BatchSizes.of(shard.n_rows, batch_size), clock)
            run = compiled.evaluate_pass(features is not None)
            clock.lap("trace_s")
            evaluated, _ = compiled.part(features is not None)
            evaluated.reset_metrics()
            xs = shard.xs if features is None else features
            sums = run(choice.current().columns(xs, shard.ys, shard.normalizing_const), batch_size)
            metrics = MetricAccumulator(evaluated)
            results = metrics.results(sums)
            if digest_in is not None:  # an evaluation changes no variable
                compiled.holds, compiled.held_groups = digest_in, held or FORWARD_GROUPS
            clock.lap("compute_s")
        totals = metrics.totals(sums, results)
        return EvaluationFigures(
            shard.n_rows, results.loss, results.metrics, results.output_losses, totals, clock.laps
        )

    def metric_results(self, recipe: Recipe, shard: Shard, sums: Sequence[MetricTotals]) -> list[MetricValues]:
        """Return loss and metrics of sums that are added up over shards, in the form of ``evaluate``'s ``sums``.

        ``shard`` is one of those shards. Raises RequestFailure as ``evaluate`` does.
        """
        clock = Clock(choice.current().seconds_of_compiling)
        with self.compiled(recipe, DataSpec.of(shard.xs, shard.ys), clock) as compiled:
            metrics = MetricAccumulator(compiled.measured()[0])
            results = [metrics.results(metrics.read(one)) for one in sums]
        return [MetricValues(found.loss, found.metrics) for found in results]

    def load_predictor(
        self, recipe: Recipe, start: Start, normalizing_const: float, key: str, preprocessor: str | None = None
    ) -> None:
        """Make a model ready to predict, under a key; with a preprocessor, from rows too.

        Raises RequestFailure (model).
        """
        self.predictors.drop(key)
        with blaming(MODEL):
            variables = ModelVariables(recipe.build(start.weights), with_optimizer=False)
            if start.parts:
                variables.load_to_predict(decoded(start.parts, FORWARD_GROUPS))
            predictor = Predictor(variables.model, normalizing_const, preprocessor)
        self.predictors.add(key, predictor)

    def predict(self, xs: Sequence[np.ndarray], key: str) -> list[np.ndarray]:
        """Return the outputs, float32 ``(n_rows, ...)`` each, for rows of x columns. Raises RequestFailure."""
        predictor = self.predictors.get(key)
        with blaming(MODEL):
            return predictor.predict(tuple(xs))

    def predict_values(self, columns: Sequence[np.ndarray], key: str) -> Values:
        """Predict one row or many; see ``Predictor.values``. Raises RequestFailure."""
        predictor = self.predictors.get(key)
        with blaming(MODEL):
            return predictor.values(columns)

    def predict_rows(
        self,
        data: Blob,
        lengths: Sequence[int],
        fields: Sequence[Sequence[Any]],
        encoding: str,
        key: str,
        leave_out: bool = False,
    ) -> tuple[np.ndarray, list[int], list[int]]:
        """Predict records; see ``RowEncoder``. With ``leave_out``, only those that can be encoded.

        Raises RequestFailure.

        Returns values, widths of the outputs, and the numbers of the records that were predicted.
        """
        predictor = self.predictors.get(key)
        encoder = predictor.row_encoder
        encode = encoder.readable_tensors if leave_out else encoder.all_tensors
        with blaming(INPUT):
            xs, rows = encode(data, lengths, fields, encoding)
        with blaming(MODEL):
            return *encoder.values(predictor.predict(xs)), rows

    def _features(
        self, compiled: CompiledModel, shard: Shard, sizes: BatchSizes, clock: Clock
    ) -> tuple[np.ndarray, ...] | None:
        """Return what goes into the model behind its frozen prefix, if that is kept for this shard."""
        features = self.features.columns(compiled, shard, sizes)
        if features is not None:
            clock.lap("features_s")
        return features

    @contextlib.contextmanager
    def compiled(self, recipe: Recipe, spec: DataSpec, clock: Clock) -> Iterator[CompiledModel]:
        """Lend the compiled model of a configuration; it is let go of when its use fails."""
        with blaming(MODEL):
            key = (recipe.signature, spec)
            compiled = self.models.get(key)
            if compiled is None:
                materialises = self._materialises and choice.current().computes_parts
                compile_tail = recipe.compile if materialises else None
                compiled = CompiledModel(recipe.build(), spec, recipe.architecture, compile_tail)
                compiled.drawn_for = recipe.chance
                self.models.add(key, compiled)
            compiled.set_strengths(recipe.strengths)
            clock.lap("build_s")
            try:
                yield compiled
            except BaseException:
                self.models.drop(key)
                raise


def _begin(
    compiled: CompiledModel, recipe: Recipe, start: Start, digest_in: str | None, groups: Sequence[str]
) -> int | None:
    """Load the visit's start into the model's variables; return ``State.static_batch`` if it is a state."""
    is_held = set(groups) <= set(_held_groups(compiled, digest_in))
    compiled.holds = None
    drawn_for, compiled.drawn_for = compiled.drawn_for, None
    if start.parts:
        found = decoded(start.parts, groups)
        if groups != GROUPS:
            check_weights(start, found)
        state = migration.own(found, start.begins, recipe.build, groups, may_lack_optimizer=start.taken_over)
        if start.taken_over and groups == GROUPS:
            compiled.take_over(state, _with_weights_of(state, recipe), start.keep_optimizer)
        elif not is_held:
            compiled.load(state, groups)
        start.parts.clear()
        return None if start.taken_over or state.static_batch == UNDECIDED else state.static_batch
    if start.weights is not None and groups != GROUPS:
        compiled.load_weights(start.weights)
    elif start.weights is None and drawn_for == recipe.chance:
        pass  # it was built for this configuration, and not used since
    elif start.weights is None and compiled.has_empty_optimizer:
        compiled.begin_like(recipe.draw(), recipe.optimizer())
    else:
        compiled.copy_from(ModelVariables(recipe.build(start.weights)))
    return None


def _held_groups(compiled: CompiledModel, digest: str | None) -> Sequence[str]:
    """Return the groups of the state with this digest that the model's variables have already."""
    return compiled.held_groups if digest is not None and compiled.holds == digest else ()


def _with_weights_of(state: State, recipe: Recipe) -> ModelVariables:
    """Return a new model with the weights of a state; some optimizers start from them.

    Raises RequestFailure (model).
    """
    model = recipe.draw()
    ModelVariables(model, with_optimizer=False).load(state, FORWARD_GROUPS)
    with blaming(MODEL):
        recipe.compile(model)
    return ModelVariables(model)


def decoded(parts: Sequence[Blob], groups: Sequence[str] = GROUPS) -> State:
    """Open a training state. Raises RequestFailure (model)."""
    try:
        return decode_state(parts, groups)
    except StateError as error:
        raise RequestFailure(MODEL, DataDamaged(f"its stored state is damaged: {error}")) from error


def check_digest(start: Start, digest: str | None) -> None:
    """Raise RequestFailure (model) if a state that training starts from does not have the recorded digest."""
    if start.digest is not None and digest is not None and digest != start.digest:
        raise RequestFailure(MODEL, DataDamaged(STATE_DAMAGED))


def check_weights(start: Start, state: State) -> None:
    """Raise RequestFailure (model) if a state that is evaluated does not have weights of the recorded digest.

    A state of which not all parts were sent has no other digest.
    """
    if start.weights_digest is not None and state.weights_digest() != start.weights_digest:
        raise RequestFailure(MODEL, DataDamaged(STATE_DAMAGED))


def extent(recipe: Recipe, shard: Shard) -> tuple[int, int]:
    """Return the numbers of batches and passes of a visit; raise RequestFailure (model) for unfit parameters."""
    fit = recipe.fit
    n_passes = fit.epochs - fit.initial_epoch
    if n_passes < 1:
        raise model_failed(
            f"fit_params has epochs={fit.epochs} and initial_epoch={fit.initial_epoch}, so nothing would be trained",
            hint="epochs must be larger than initial_epoch.",
        )
    check_class_weight(shard, fit.class_weight)
    n_batches = math.ceil(shard.n_rows / fit.batch_size)
    if fit.steps_per_epoch is not None:
        n_batches = min(n_batches, fit.steps_per_epoch)
    return n_batches, n_passes


def _run_passes(
    run: TrainPass,
    model: keras.Model,
    recipe: Recipe,
    shard: Shard,
    xs: tuple[np.ndarray, ...],
    epoch: int,
    segment_id: int,
    n_batches: int,
    n_passes: int,
    file: ShardFile | None,
) -> tuple[dict[str, float], int]:
    """Train the passes of a visit; return the logs of the last one as in Keras' ``fit``, and the number of passes.

    ``xs`` are the shard's x, or the features that ``model``, the rest of a model behind its prefix, takes instead.

    Callbacks see the passes numbered through the model's life, so that a schedule of learning rates goes on from
    visit to visit.
    """
    fit = recipe.fit
    callbacks = recipe.callbacks(model, n_passes, n_batches)
    assert not isinstance(fit.class_weight, str), "`extent` refuses what is not written out"
    weights = row_weights_of(shard.whole(), fit.class_weight) if fit.class_weight is not None else None
    columns = choice.current().columns(xs, shard.ys, shard.normalizing_const, weights)
    room = None if shard.file is None else shard.empty(((shard.n_rows,), np.dtype(np.int64)))[0]
    rows_of = [*xs, *shard.ys, *([] if weights is None else [weights])]
    model.stop_training = False
    if callbacks:
        callbacks.on_train_begin()
    for pass_ in range(n_passes):
        if pass_:
            shard.whole()  # with steps_per_epoch, passes over the first rows could go on while others never come
        number = (epoch - 1) * n_passes + pass_
        model.reset_metrics()
        choice.current().begin_pass(recipe.pass_seed(epoch, segment_id, pass_))
        if callbacks:
            callbacks.on_epoch_begin(number)
        order = recipe.order(epoch, segment_id, pass_, shard.n_rows, room)
        ahead = ReadAhead.of_pass(file, rows_of, order, fit.batch_size, shard.arrival)
        with ahead or contextlib.nullcontext():
            logs = run(columns, order, fit.batch_size, n_batches, ahead)
        if callbacks:
            callbacks.on_epoch_end(number, dict(logs))
        model.optimizer.finalize_variable_values(model.trainable_weights)
        if model.stop_training:
            break
    if callbacks:
        callbacks.on_train_end(dict(logs))
    return logs, pass_ + 1


def finished(
    variables: Readable,
    recipe: Recipe,
    shard: Shard,
    digest_in: str,
    loss: float,
    logs: dict[str, float],
    n_batches: int,
    static_batch: int,
    part_bytes: int,
) -> Trained:
    """Return the figures, but for their times, and the parts of the state that a visit ends with.

    Raises RequestFailure (model) if it is not finite.

    ``logs`` are what Keras' ``fit`` would log besides the loss.
    """
    if sum(spec.n_bytes for specs in variables.specs().values() for spec in specs) <= _MOST_READ_BYTES:
        variables = variables.snapshot()
    _check_finite(variables, loss, recipe)
    parts = variables.encode(static_batch, part_bytes)
    digest_out, weights_digest = _digests(parts, variables)
    figures = VisitFigures(
        digest_in=digest_in,
        digest_out=digest_out,
        weights_digest=weights_digest,
        n_rows=shard.n_rows,
        n_batches=n_batches,
        loss=loss,
        metrics=logs,
        model_bytes=variables.weights_bytes,
        state_bytes=sum(map(len, parts)),
        forward_parts=count_forward_parts(parts),
        timing={},
    )
    return Trained(figures, parts)


def _digests(parts: Sequence[Blob], variables: Readable) -> tuple[str, str]:
    """Return the SHA-256 of a state and that of its weights; those of a large one are computed at the same time."""
    if isinstance(variables, ReadArrays):
        return digest_of(parts), variables.weights_digest()
    with ThreadPoolExecutor(1) as other:  # hashlib lets other threads run meanwhile
        of_state = other.submit(digest_of, parts)
        of_weights = variables.weights_digest()
        return of_state.result(), of_weights


def _check_finite(variables: Readable, loss: float, recipe: Recipe) -> None:
    """Raise RequestFailure (model) when training went out of the range of numbers."""
    if math.isfinite(loss) and variables.weights_are_finite():
        return
    what = f"loss became {loss}" if not math.isfinite(loss) else "a weight became NaN or infinite"
    raise model_failed(
        f"{what} while training with {recipe.training.text}",
        hint="Use a smaller learning rate, gradient clipping (clipnorm=1.0), or normalized x.",
    )
