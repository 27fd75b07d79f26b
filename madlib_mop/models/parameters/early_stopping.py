"""Early stopping across iterations: the parser of its parameters, and its rule.

The rule is that of Keras' callback EarlyStopping, with iterations with metrics instead of epochs. It uses recorded
metrics only, so a resumed or replayed run makes the same decisions.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mop_backend.frames import Header

from madlib_mop.errors import InvalidParameter, not_whole
from madlib_mop.models.parameters.calls import is_int, is_number, unknown_parameter
from madlib_mop.models.parameters.literals import read_keywords, shorten

_WHAT = "early_stopping"
_HINT = "Write e.g. patience=3, metric=val_loss, restore_best=true."
_MODES = ("auto", "min", "max")
#: Value in fit_params that turns early stopping off for one configuration.
OFF = "off"


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """The early stopping rule of a model.

    Attributes
    ----------
    patience : int
        The model stops after this number of consecutive computations of the metrics without an improvement.
    metric : str or None
        ``loss``, or a metric's name; with the prefix ``val_`` on the validation data. None: the loss, on the
        validation data if there are any.
    mode : str
        ``min`` or ``max``; ``auto`` until resolved from the metric's name.
    min_delta : float
        The minimum improvement.
    restore_best : bool
        The model ends with the state of its best iteration.
    """

    patience: int
    metric: str | None = None
    mode: str = "auto"
    min_delta: float = 0.0
    restore_best: bool = False

    def __post_init__(self) -> None:
        if not is_int(self.patience) or self.patience < 1:
            raise not_whole(f"{_WHAT}: patience", 1, shorten(self.patience), _HINT)
        if self.metric is not None and (not isinstance(self.metric, str) or not self.metric.strip()):
            raise _wrong("metric must be a name such as val_loss", self.metric)
        if self.mode not in _MODES:
            raise _wrong(f"mode must be one of {', '.join(_MODES)}", self.mode)
        if not is_number(self.min_delta) or not 0 <= self.min_delta < math.inf:
            raise _wrong("min_delta must be a number of 0 or more", self.min_delta)
        if not isinstance(self.restore_best, bool):
            raise _wrong("restore_best must be true or false", self.restore_best)

    @property
    def data_set(self) -> str:
        """``training`` or ``validation``."""
        return "validation" if self._chosen.startswith("val_") else "training"

    @property
    def metric_name(self) -> str:
        """The metric's name without ``val_``."""
        return self._chosen.removeprefix("val_")

    @property
    def _chosen(self) -> str:
        assert self.metric is not None, "the driver chooses the metric where the user did not"
        return self.metric

    def as_json(self) -> Header:
        """Return the parameters for the record."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Course:
    """The result of the rule for a model: its best epoch, and whether it stops now."""

    best_epoch: int
    stops: bool


def read_early_stopping(text: str | None) -> EarlyStopping | None:
    """Parse ``patience=3, metric=val_loss, ...``; NULL and '' stand for none, and so does off.

    Raises
    ------
    UnreadableText, InvalidParameter
        If it cannot be parsed, or has an invalid name or value.
    """
    if text is None or not text.strip() or text.strip().lower() == OFF:
        return None
    values: dict[str, Any] = {name: _boolean(value) for name, value in read_keywords(text, _WHAT, _HINT).items()}
    names = [field.name for field in dataclasses.fields(EarlyStopping)]
    for name in values:
        if name not in names:
            raise unknown_parameter(_WHAT, name, names)
    if "patience" not in values:
        raise InvalidParameter(f"{_WHAT}: patience is missing. Received: {shorten(text)}", hint=_HINT)
    return EarlyStopping(**values)


def follow(rule: EarlyStopping, series: Sequence[tuple[int, float]]) -> Course:
    """Apply the rule to a model's metrics so far.

    Parameters
    ----------
    rule : EarlyStopping
        ``mode`` is min or max.
    series : sequence of (int, float)
        Epochs and values, at least one. A value that is NaN is no improvement; the first epoch is the best one until
        another is better.
    """
    best_epoch, best, waited = series[0][0], None, 0
    for epoch, value in series:
        if not math.isnan(value) and (best is None or _is_better(rule, value, best)):
            best_epoch, best, waited = epoch, value, 0
        else:
            waited += 1
    return Course(best_epoch, waited >= rule.patience)


def _is_better(rule: EarlyStopping, value: float, best: float) -> bool:
    return value + rule.min_delta < best if rule.mode == "min" else value - rule.min_delta > best


def _boolean(value: object) -> object:
    """Normalize SQL's spellings of a boolean."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _wrong(sentence: str, value: object) -> InvalidParameter:
    return InvalidParameter(f"{_WHAT}: {sentence}. Received: {shorten(value)}", hint=_HINT)
