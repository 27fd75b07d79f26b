"""The loops over mini-batches on PyTorch: one pass of training, one of evaluation, one batch of prediction.

Called by ``backend.py``. A training step does what Keras' ``train_step`` does, and is captured as a graph for each
number of rows in a batch: it is recorded while it is made (``graphs.py``). Recording takes longer than a step of Keras,
so a step is captured if there are enough to make. Some steps cannot be captured, because they need the value of a
tensor: layers with a seed of their own, weights that their averages replace, accumulated gradients, Nadam. Keras makes
all of these.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch

from madlib_mop.models.prefix import Split
from madlib_mop.trainer.backends.base.columns import Columns, structure
from madlib_mop.trainer.backends.base.interface import EvaluatePass, PredictBatch, PrefixBatch, TrainPass
from madlib_mop.trainer.backends.base.metric_sums import MetricAccumulator, scalar
from madlib_mop.trainer.backends.torch.graphs import Graph, recorded, standing_for
from madlib_mop.trainer.data.shard_file import ReadAhead
from madlib_mop.trainer.process.clock import Stopwatch

Tensors = list[torch.Tensor]
_MOST_GRAPHS = 8
#: For a small network, recording a step takes as long as a graph saves in this many steps.
STEPS_BEFORE_CAPTURE = 8
#: Where this process computes; Keras reads the same variable.
DEVICE = torch.device(os.environ.get("KERAS_TORCH_DEVICE", "cpu"))
#: Runs while a step is recorded.
CAPTURING = Stopwatch()


@dataclasses.dataclass
class _Capture:
    """Steps of batches with one number of rows: how many were asked for, and their graph, if it is captured."""

    n_steps: int = 0
    graph: Graph | None = None
    is_tried: bool = False


class _Captures:
    """The graphs of one step, each captured when the steps that are known of are worth it.

    Parameters
    ----------
    step : callable
        ``step(*batch)``; for the recorder, which executes it too.
    """

    def __init__(self, step: Callable[..., torch.Tensor]):
        self._step = step
        self._found: dict[int, _Capture] = {}  # by number of rows, the one used last at the end

    def make(self, values: Tensors, batch: Tensors, n_to_come: int) -> torch.Tensor | None:
        """Make a step by its graph, or record it; return its result, or None if Keras must make it.

        Parameters
        ----------
        values : list of Tensor
            Of all variables that the step may read or change.
        batch : list of Tensor
        n_to_come : int
            Steps with as many rows that this pass will make, this one included.
        """
        n_rows = len(batch[0])
        one = self._found.pop(n_rows, None) or _Capture()
        self._found[n_rows] = one
        while len(self._found) > _MOST_GRAPHS:
            del self._found[next(iter(self._found))]
        one.n_steps += 1
        if one.graph is not None:
            with torch.no_grad():
                return one.graph(*values, *batch)
        if one.is_tried or one.n_steps - 1 + n_to_come <= STEPS_BEFORE_CAPTURE:
            return None
        CAPTURING.begin()
        try:
            result, one.graph = recorded(self._step, values, batch)
        finally:
            CAPTURING.end()
        one.is_tried = True
        return result


class _TrainPass:
    """The training pass of a compiled model whose metrics' variables are made."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._variables = _distinct(
            model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
            model.metrics_variables, _strengths_of(model),
        )  # fmt: skip
        self._captures = _Captures(self._step)

    def __call__(
        self, columns: Columns, order: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
    ) -> dict[str, float]:
        model, rows = self._model, _rows_of(order)
        torch.empty((), dtype=torch.int64).random_()  # as the data loader of Keras' ``fit`` draws a seed, without use
        values = [variable._value for variable in self._variables]
        batches = _batches(rows[: n_batches * batch_size], batch_size)
        for number, (batch_rows, n_to_come) in enumerate(batches):
            if ahead is not None:
                ahead.reach(number)
            batch = _batch(columns, batch_rows)
            if self._captures.make(values, batch, n_to_come) is None:
                _clear_gradients(model)
                model.train_step(self._structure(batch))
        return {name: scalar(value) for name, value in model.get_metrics_result().items()}

    def _structure(self, batch: Tensors) -> Any:
        n_x, n_y = len(self._model.inputs), len(self._model.outputs)
        x, y = structure(batch[:n_x]), structure(batch[n_x : n_x + n_y])
        return x, y, *batch[n_x + n_y :]

    def _step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Do what Keras' ``train_step`` does; gradients come from a function, because a graph has no ``grad``."""
        model = self._model
        x, y, *weights = self._structure(list(batch))
        weight = weights[0] if weights else None
        predicted = model(x, training=True)
        loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)
        model._loss_tracker.update_state(loss, sample_weight=len(batch[0]))
        trained = model.trainable_weights[:]
        gradients = _gradients(model.optimizer.scale_loss(loss), trained) if trained else []
        with torch.no_grad():
            if trained:
                model.optimizer.apply(gradients, trained)
            model.compute_metrics(x, y, predicted, sample_weight=weight)
        return loss.detach()


def _clear_gradients(model: keras.Model) -> None:
    """Clear the gradients of all weights.

    Keras clears one variable of each path. Others of the path, such as those of two nested models, would add up the
    gradients of all steps.
    """
    for variable in model.trainable_variables:
        variable._value.grad = None


def _gradients(loss: torch.Tensor, trained: Sequence[keras.Variable]) -> list[torch.Tensor | None]:
    """Return the gradients as ``backward`` stores them: in the layout of the variable.

    That of a convolution's kernel comes in another one, in which a sum over all elements, as for the norm of a clipped
    gradient, rounds differently.
    """
    values = [variable._value for variable in trained]
    gradients = torch.autograd.grad(loss, values, allow_unused=True)
    return [
        one if one is None or one.stride() == value.stride() else torch.empty_like(value).copy_(one)
        for one, value in zip(gradients, values, strict=True)
    ]


def train_pass(model: keras.Model) -> TrainPass:
    """Return the training pass of a compiled model whose metrics' variables are made."""
    return _TrainPass(model)


def evaluate_pass(model: keras.Model) -> EvaluatePass:
    """Return the evaluation pass of a compiled model whose metrics' variables are made."""
    sums = MetricAccumulator(model)
    taken = [variable for metric in sums.metrics for variable in metric.variables]
    variables = _distinct(
        model.trainable_variables, model.non_trainable_variables, model.metrics_variables,
        _strengths_of(model),
    )  # fmt: skip
    n_x = len(model.inputs)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        x, y = structure(batch[:n_x]), structure(batch[n_x:])
        for variable in model.metrics_variables:
            variable._value = variable._value.clone()  # each batch begins with metrics that were reset
        predicted = model(x, training=False)
        loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=None, training=False)
        model._loss_tracker.update_state(loss, sample_weight=len(batch[0]))
        model.compute_metrics(x, y, predicted, sample_weight=None)
        return torch.cat([variable._value.reshape(-1).to(torch.float32) for variable in taken])

    captures = _Captures(step)

    def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
        total = np.zeros(sums.n_values)
        values, order = [variable._value for variable in variables], torch.arange(len(columns.xs[0]), device=DEVICE)
        with torch.no_grad():
            for rows, n_to_come in _batches(order, batch_size):
                batch = _batch(columns, rows)
                with standing_for(variables, values):
                    of_batch = captures.make(values, batch, n_to_come)
                    if of_batch is None:
                        of_batch = step(*batch)
                total += of_batch.cpu().numpy().astype(np.float64)
        return total

    return evaluate


def prefix_batch(split: Split) -> PrefixBatch:
    """Return the function that computes a batch of features."""

    def compute(columns: Columns, rows: np.ndarray) -> list[np.ndarray]:
        index = _rows_of(rows)
        xs = [_normalized(columns.xs[number].index_select(0, index), columns.constant) for number in split.sources]
        with torch.no_grad():
            return _arrays(split.prefix(structure(xs), training=True))

    return compute


def predict_batch(model: keras.Model, normalizing_const: float) -> PredictBatch:
    """Return the function that predicts a batch."""
    constant = torch.tensor(normalizing_const, dtype=torch.float32, device=DEVICE)

    def predict(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
        tensors = [_normalized(tensor_of(x), constant) for x in xs]
        with torch.no_grad():
            return _arrays(model(structure(tensors), training=False))

    return predict


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor: of the array's memory, or in the GPU's."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(DEVICE)


def _rows_of(order: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(order, np.int64)).to(DEVICE)


def _batches(rows: torch.Tensor, batch_size: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield the rows of each batch, and how many batches with as many rows are left, this one included."""
    n_full = len(rows) // batch_size
    for number, of_batch in enumerate(torch.split(rows, batch_size)):
        yield of_batch, max(n_full - number, 1)


def _arrays(outputs: Any) -> list[np.ndarray]:
    return [output.to(torch.float32).cpu().numpy() for output in keras.tree.flatten(outputs)]


def _batch(columns: Columns, rows: torch.Tensor) -> Tensors:
    """Return rows of all columns, float32 (x that are indices: int32): x, y and row weights."""
    xs = [_normalized(x.index_select(0, rows), columns.constant) for x in columns.xs]
    ys = [y.index_select(0, rows).to(torch.float32) for y in columns.ys]
    return [*xs, *ys, *(weights.index_select(0, rows) for weights in columns.row_weights)]


def _normalized(x: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) / constant if x.dtype == torch.uint8 else x


def _distinct(*groups: Sequence[keras.Variable]) -> list[keras.Variable]:
    return list({id(variable): variable for group in groups for variable in group}.values())


def _strengths_of(model: keras.Model) -> list[keras.Variable]:
    """Return the strengths of the model's regularizers that are variables."""
    regularizers = [getattr(variable, "regularizer", None) for variable in model.trainable_variables]
    found = [getattr(regularizer, "l2", None) for regularizer in regularizers]
    return [one for one in found if isinstance(one, keras.Variable)]
