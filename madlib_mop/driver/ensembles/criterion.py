"""What predictions of an output are, by its loss, and how good they are: log loss, squared error, accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from madlib_mop.errors import InvalidParameter, Unsupported
from madlib_mop.models.parameters.literals import CallSpec, write_value
from madlib_mop.models.parameters.parser import CompileParams

_EPSILON = 1e-7  # Keras' own
_TOLERANCE = 1e-3


class OutputKind(Enum):
    """What an output's values are."""

    CLASSES = "categorical cross-entropy"  # a probability for each class
    UNITS = "binary cross-entropy"  # a probability for each unit
    SQUARED = "mean squared error"  # numbers
    ABSOLUTE = "mean absolute error"  # numbers, compared by absolute errors


_KINDS = {
    **dict.fromkeys(
        "categoricalcrossentropy sparsecategoricalcrossentropy categoricalfocalcrossentropy kldivergence kld"
        " categoricalgeneralizedcrossentropy".split(),
        OutputKind.CLASSES,
    ),
    **dict.fromkeys("binarycrossentropy bce binaryfocalcrossentropy".split(), OutputKind.UNITS),
    **dict.fromkeys("mae meanabsoluteerror mape meanabsolutepercentageerror".split(), OutputKind.ABSOLUTE),
    **dict.fromkeys(
        "mse meansquarederror msle meansquaredlogarithmicerror huber logcosh poisson".split(), OutputKind.SQUARED
    ),
}
_ACTIVATIONS = {OutputKind.CLASSES: "softmax", OutputKind.UNITS: "sigmoid"}


@dataclass(frozen=True)
class OutputForm:
    """One output of a model.

    Attributes
    ----------
    kind : OutputKind
    activation : str or None
        The function that makes probabilities of its values, if they are logits.
    """

    kind: OutputKind
    activation: str | None = None


def read_forms(
    params: CompileParams, names: Sequence[str], last_activations: Sequence[str | None], label: str
) -> tuple[OutputForm, ...]:
    """Return the form of each output of a model, by its losses.

    Parameters
    ----------
    params : CompileParams
    names : sequence of str
        Names of the outputs.
    last_activations : sequence of (str or None)
        The function that each output went through last; None if unknown.
    label : str
        The model, for messages.

    Raises
    ------
    Unsupported
        For a loss whose predictions have no meaningful average.
    """
    losses = params.loss
    if isinstance(losses, dict):
        losses = [losses.get(name) for name in names]
    elif not isinstance(losses, list):
        losses = [losses] * len(names)
    elif len(losses) != len(names):
        losses = losses * len(names) if len(losses) == 1 else [*losses, *[None] * len(names)][: len(names)]
    return tuple(_form(loss, last, label) for loss, last in zip(losses, last_activations, strict=True))


def _form(loss: Any, last: str | None, label: str) -> OutputForm:
    name = loss.name if isinstance(loss, CallSpec) else str(loss)
    kind = _KINDS.get(name.replace("_", "").lower())
    if kind is None:
        raise Unsupported(
            f"{label} was trained with the loss {name!r}, whose predictions make_ensemble cannot average",
            hint="It averages probabilities (cross-entropies) and numbers (mse, mae, huber and the like).",
        )
    is_logits = isinstance(loss, CallSpec) and bool(loss.kwargs.get("from_logits")) and last != _ACTIVATIONS.get(kind)
    return OutputForm(kind, _ACTIVATIONS[kind] if is_logits else None)


def without_logits(params: CompileParams) -> str:
    """Return compile parameters as text, for a model whose outputs are probabilities instead of logits."""
    values = {
        "optimizer": params.optimizer,
        "loss": params.loss,
        "metrics": params.metrics,
        "loss_weights": params.loss_weights,
        "weighted_metrics": params.weighted_metrics,
    }
    given = {name: _of_probabilities(value) for name, value in values.items() if value is not None}
    return ", ".join(f"{name}={write_value(value)}" for name, value in given.items())


def _of_probabilities(value: Any) -> Any:
    if isinstance(value, CallSpec):
        return CallSpec(value.name, value.args, {k: v for k, v in value.kwargs.items() if k != "from_logits"})
    if isinstance(value, list):
        return [_of_probabilities(item) for item in value]
    if isinstance(value, dict):
        return {name: _of_probabilities(item) for name, item in value.items()}
    return value


def apply(values: np.ndarray, form: OutputForm) -> np.ndarray:
    """Return an output's predictions as probabilities or numbers, float32 ``(n_rows, n_units)``, as Keras does."""
    if form.activation is None:
        return values
    exact = values.astype(np.float64)
    if form.activation == "sigmoid":
        positive = 1 / (1 + np.exp(-np.abs(exact)))
        return np.where(exact >= 0, positive, 1 - positive).astype(np.float32)
    powers: np.ndarray = np.exp(exact - exact.max(axis=1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)


def problem_of(values: np.ndarray, form: OutputForm) -> str | None:
    """Return why the predictions of an output cannot be averaged; None if they can."""
    if not np.isfinite(values).all():
        return "it predicts NaN or infinite values"
    if form.kind in _ACTIVATIONS and (values.min() < -_TOLERANCE or values.max() > 1 + _TOLERANCE):
        return f"it was trained with {form.kind.value}, but does not predict probabilities: its outputs are logits"
    return None


@dataclass(frozen=True)
class EnsembleTarget:
    """The labels of one output.

    Attributes
    ----------
    kind : OutputKind
    labels : numpy.ndarray
        ``(n_rows, n_units)``; or int64 ``(n_rows,)``: the class of each row.
    name : str
        The column, for messages.
    """

    kind: OutputKind
    labels: np.ndarray
    name: str

    @classmethod
    def of(cls, kind: OutputKind, labels: np.ndarray, n_units: int, name: str) -> "EnsembleTarget":
        """Return the labels of an output, packed as class numbers or as values.

        Raises
        ------
        InvalidParameter
            If they do not fit the model's output.
        """
        rows = labels.reshape(len(labels), -1)
        if kind is OutputKind.CLASSES and rows.shape[1] == 1 and n_units > 1:
            index = rows[:, 0].astype(np.int64)
            if (index < 0).any() or (index >= n_units).any():
                worst = int(index.max() if index.max() >= n_units else index.min())
                raise InvalidParameter(
                    f"validation_table: column {name!r} has the class number {worst}, the models have {n_units} outputs"
                )
            return cls(kind, index, name)
        if rows.shape[1] != n_units:
            raise InvalidParameter(
                f"validation_table: column {name!r} has {rows.shape[1]} values a row, the models have {n_units} outputs"
            )
        return cls(kind, rows, name)

    def loss(self, start: int, stop: int, predicted: np.ndarray) -> float:
        """Return the sum of the losses of some rows; ``predicted`` is float64 ``(stop - start, n_units)``."""
        return float(self.row_losses(start, stop, predicted).sum())

    def row_losses(self, start: int, stop: int, predicted: np.ndarray) -> np.ndarray:
        """Return the loss of each of some rows, float64 ``(stop - start,)``; ``predicted`` is as in `loss`."""
        labels = self.labels[start:stop]
        found: np.ndarray
        if self.kind is OutputKind.CLASSES:
            shares = predicted / np.maximum(predicted.sum(axis=1, keepdims=True), _EPSILON)
            logs = np.log(np.clip(shares, _EPSILON, 1 - _EPSILON))
            found = -logs[np.arange(len(labels)), labels] if labels.ndim == 1 else -(labels * logs).sum(axis=1)
        elif self.kind is OutputKind.UNITS:
            clipped = np.clip(predicted, _EPSILON, 1 - _EPSILON)
            logs = labels * np.log(clipped) + (1.0 - labels) * np.log(1 - clipped)
            found = -logs.mean(axis=1)
        else:
            errors = predicted - labels
            found = (np.abs(errors) if self.kind is OutputKind.ABSOLUTE else errors**2).mean(axis=1)
        return found

    def errors(self, start: int, stop: int, predicted: np.ndarray) -> float:
        """Return how many of some rows get a wrong class; of several units, the share of wrong ones."""
        labels = self.labels[start:stop]
        if self.kind is OutputKind.CLASSES:
            right = labels if labels.ndim == 1 else labels.argmax(axis=1)
            return float((predicted.argmax(axis=1) != right).sum())
        return float(((predicted > 0.5) != (labels > 0.5)).mean(axis=1).sum())


def targets_of(
    kinds: Sequence[OutputKind], predictions: Sequence[np.ndarray], labels: Sequence[np.ndarray], names: Sequence[str]
) -> list[EnsembleTarget]:
    """Return the labels of each output.

    Parameters
    ----------
    kinds : sequence of OutputKind
    predictions : sequence of numpy.ndarray
        Of any model: float32 ``(n_rows, n_units)`` for each output.
    labels : sequence of numpy.ndarray
        The packed values of each output, ``(n_rows, ...)``.
    names : sequence of str
        The columns, for messages.

    Raises
    ------
    InvalidParameter
        If they do not fit the outputs.
    """
    return [
        EnsembleTarget.of(kind, rows, values.shape[1], name)
        for kind, rows, values, name in zip(kinds, labels, predictions, names, strict=True)
    ]
