"""The parser of compile and fit parameters: texts in, frozen dataclasses out; used by the driver and by trainers."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from madlib_mop.errors import InvalidParameter, is_missing, not_whole
from madlib_mop.models.parameters.calls import (
    as_spec,
    check_call,
    check_kind,
    is_int,
    is_number,
    suggestion,
    unknown_parameter,
)
from madlib_mop.models.parameters.class_weights import BALANCED
from madlib_mop.models.parameters.early_stopping import read_early_stopping
from madlib_mop.models.parameters.functions import FunctionReader, flat_names
from madlib_mop.models.parameters.keras_names import CALLBACKS, RECORDED_CALLBACKS
from madlib_mop.models.parameters.literals import CallSpec, canonical, read_keywords, read_value, shorten
from madlib_mop.models.parameters.optimizers import check_optimizer, check_rate

COMPILE_KEYS = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics")
FIT_KEYS = (
    "batch_size",
    "epochs",
    "verbose",
    "shuffle",
    "class_weight",
    "initial_epoch",
    "steps_per_epoch",
    "callbacks",
    "early_stopping",
)
MAX_COUNT = 2**31 - 1
_COMPILE_HINT = "Write e.g. loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']."
_KERAS_2_WRITER = ("batch_size", "write_grads", "embeddings_layer_names", "embeddings_data")
_FIT_HINT = "Write e.g. batch_size=32, epochs=1."


@dataclass(frozen=True)
class CompileParams:
    """The arguments of ``model.compile``.

    Attributes
    ----------
    optimizer : CallSpec
        ``kwargs["learning_rate"]``, where given, is a float or the CallSpec of a schedule.
    loss, metrics, weighted_metrics
        A name that Keras or the custom functions know (str), a CallSpec, None, a list of these for several outputs
        (for metrics: several metrics, or a list of them an output), or a dict by output name. A metric's CallSpec
        always has a name, and no two of one list have the same.
    loss_weights : float, list, dict or None
    custom_names : tuple of str
        The custom functions used here.
    text : str
        The original text of the parameters.
    """

    optimizer: CallSpec
    loss: Any
    metrics: Any = None
    loss_weights: Any = None
    weighted_metrics: Any = None
    custom_names: tuple[str, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def learning_rate(self) -> float | None:
        """The plain constant learning rate; None with a schedule or Keras' default."""
        rate = self.optimizer.kwargs.get("learning_rate")
        return rate if isinstance(rate, float) else None

    @property
    def key(self) -> str:
        """Equal for equivalent parameters: names sorted, ``lr`` and ``learning_rate`` alike."""
        parts = (self.optimizer, self.loss, self.metrics, self.loss_weights, self.weighted_metrics)
        return canonical(list(parts))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics in the order in which they were given, as Keras reports them for a single output."""
        return flat_names(self.metrics)


@dataclass(frozen=True)
class FitParams:
    """The arguments of ``model.fit`` for one visit; a visit makes ``epochs - initial_epoch`` passes over its shard.

    Attributes
    ----------
    batch_size, epochs, initial_epoch : int
    shuffle : bool
    class_weight : dict of int to float, 'balanced', or None
        ``'balanced'`` is written out when a run is planned (`class_weights`).
    verbose : int
        Kept for the record only.
    steps_per_epoch : int or None
        Maximum number of mini-batches in a pass.
    callbacks : tuple of CallSpec
        Classes of `keras_names.CALLBACKS`.
    recorded : tuple of str
        Names of callbacks that are not created, because the record of runs already has their output.
    early_stopping : str or None
        What `early_stopping.read_early_stopping` takes, instead of the call's; not used in visits.
    text : str
        The original text of the parameters.
    """

    batch_size: int = 32
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    class_weight: dict[int, float] | str | None = None
    verbose: int = 0
    steps_per_epoch: int | None = None
    callbacks: tuple[CallSpec, ...] = ()
    recorded: tuple[str, ...] = ()
    early_stopping: str | None = None
    text: str = field(default="", compare=False)

    @property
    def key(self) -> str:
        """Equal for equivalent parameters."""
        values = {name: value for name, value in vars(self).items() if name not in ("text", "verbose", "recorded")}
        return canonical(values)


def parse_compile_params(text: str | None, custom_names: Iterable[str] = frozenset()) -> CompileParams:
    """Parse compile parameters: ``name=value, ...`` or a JSON object.

    Parameters
    ----------
    text : str
        E.g. ``loss='categorical_crossentropy', optimizer='Adam(lr=0.01, decay=1e-6)', metrics=['accuracy']``.
    custom_names : iterable of str
        Names of registered functions, allowed as losses and metrics.

    Raises
    ------
    UnreadableText
        If the text cannot be parsed, or contains anything except literals and calls by name.
    InvalidParameter
        If optimizer or loss is missing, or a name, an argument or a value is not one that Keras takes.
    """
    values = _read(text, "compile_params", COMPILE_KEYS, _COMPILE_HINT)
    for name in ("optimizer", "loss"):
        if values.get(name) is None:
            raise InvalidParameter(f"compile_params: {name} is required. Received: {shorten(text)}", hint=_COMPILE_HINT)
    reader = FunctionReader(frozenset(custom_names))
    return CompileParams(
        optimizer=check_optimizer(values["optimizer"], "compile_params: optimizer"),
        loss=reader.losses(values["loss"]),
        metrics=reader.metrics(values.get("metrics"), "metrics"),
        loss_weights=_loss_weights(values.get("loss_weights")),
        weighted_metrics=reader.metrics(values.get("weighted_metrics"), "weighted_metrics"),
        custom_names=tuple(sorted(reader.used)),
        text=text or "",
    )


def parse_fit_params(text: str | None) -> FitParams:
    """Parse fit parameters: ``batch_size=32, epochs=1, ...`` or a JSON object; NULL and '' give the defaults.

    Raises
    ------
    UnreadableText, InvalidParameter
        As for `parse_compile_params`; also for a batch size of 0 and the like.
    """
    if text is None or not text.strip():
        return FitParams(text=text or "")
    values = _read(text, "fit_params", FIT_KEYS, _FIT_HINT)
    given = {name: value for name, value in values.items() if value is not None}
    for name, lowest in (("batch_size", 1), ("epochs", 1), ("initial_epoch", 0), ("steps_per_epoch", 1)):
        if name in given and (not is_int(given[name]) or given[name] < lowest):
            raise not_whole(f"fit_params: {name}", lowest, shorten(given[name]))
        if given.get(name, 0) > MAX_COUNT:
            raise InvalidParameter(f"fit_params: {name} must be at most {MAX_COUNT:,}. Received: {given[name]}")
    if "shuffle" in given:
        check_kind(given["shuffle"], "bool", "fit_params: shuffle")
    verbose = given.pop("verbose", 0)
    if verbose != "auto" and verbose not in (0, 1, 2):
        raise InvalidParameter(f"fit_params: verbose must be 0, 1, 2 or 'auto'. Received: {shorten(verbose)}")
    if "class_weight" in given:
        given["class_weight"] = _class_weight(given["class_weight"])
    if "early_stopping" in given:
        given["early_stopping"] = _early_stopping(given["early_stopping"])
    callbacks = list(_callbacks(given.pop("callbacks", [])))
    params = FitParams(
        **given,
        verbose=0 if verbose == "auto" else int(verbose),
        callbacks=tuple(spec for spec in callbacks if spec.name in CALLBACKS),
        recorded=tuple(dict.fromkeys(spec.name for spec in callbacks if spec.name in RECORDED_CALLBACKS)),
        text=text,
    )
    if params.initial_epoch >= params.epochs:
        raise InvalidParameter(
            f"fit_params: initial_epoch must be below epochs, or nothing is trained. "
            f"Received: initial_epoch={params.initial_epoch}, epochs={params.epochs}"
        )
    return params


def recorded_notice(params: Iterable[FitParams]) -> str | None:
    """Return the notice about callbacks without effect, or None."""
    names = sorted({name for one in params for name in one.recorded})
    if not names:
        return None
    return (
        f"fit_params: callbacks: {', '.join(names)} has no effect, because trainers cannot write files;"
        " madlib-mop tensorboard RUN DIR writes the files from the record, also while the run trains (--follow)"
    )


def _read(text: str | None, what: str, keys: Collection[str], hint: str) -> dict[str, Any]:
    if text is None or not text.strip():
        raise is_missing(what, text, hint)
    values = read_keywords(text, what, hint)
    if values.get("sample_weight_mode", 0) is None:
        del values["sample_weight_mode"]
    for name in values:
        if name not in keys:
            raise unknown_parameter(what, name, keys)
    return values


def _loss_weights(value: Any) -> float | list[float] | dict[str, float] | None:
    what = "compile_params: loss_weights"
    if value is None:
        return None
    if isinstance(value, list):
        return [_weight(item, what) for item in value]
    if isinstance(value, dict):
        return {str(name): _weight(item, what) for name, item in value.items()}
    return _weight(value, what)


def _weight(value: Any, what: str) -> float:
    if not is_number(value):
        raise InvalidParameter(f"{what} must be numbers. Received: {shorten(value)}")
    return float(value)


def _class_weight(value: Any) -> dict[int, float] | str:
    what = "fit_params: class_weight"
    if value == BALANCED:
        return BALANCED
    if not isinstance(value, dict) or not value:
        raise InvalidParameter(
            f"{what} must be 'balanced' or a dict of class index to weight, e.g. {{0: 1.0, 1: 3.0}}."
            f" Received: {shorten(value)}"
        )
    weights = {}
    for key, weight in value.items():
        index = int(key) if isinstance(key, str) and key.isdecimal() else key
        if not is_int(index) or not 0 <= index <= MAX_COUNT:
            raise InvalidParameter(f"{what}: a key must be a class index of 0 or more. Received: {key!r}")
        weights[index] = _weight(weight, what)
        if weights[index] < 0:
            raise InvalidParameter(f"{what}: a weight must not be negative. Received: {weight!r}")
    return weights


def _early_stopping(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidParameter(
            f"fit_params: early_stopping must be a text. Received: {shorten(value)}",
            hint="Write e.g. early_stopping='patience=3, metric=val_loss', or early_stopping='off'.",
        )
    read_early_stopping(value)
    return value


def _callbacks(value: Any) -> Iterator[CallSpec]:
    what = "fit_params: callbacks"
    value = read_value(value, what) if isinstance(value, str) else value
    for item in value if isinstance(value, list) else [value]:
        spec = as_spec(item, what)
        spec = CallSpec(spec) if isinstance(spec, str) else spec
        if isinstance(spec, CallSpec) and spec.name in RECORDED_CALLBACKS:
            kwargs = {name: value for name, value in spec.kwargs.items() if name not in _KERAS_2_WRITER}
            yield check_call(CallSpec(spec.name, spec.args, kwargs), RECORDED_CALLBACKS, what)
            continue
        if not isinstance(spec, CallSpec) or spec.name not in CALLBACKS:
            name = spec.name if isinstance(spec, CallSpec) else spec
            raise InvalidParameter(
                f"{what}: this callback cannot be used. Received: {shorten(name)}",
                hint=suggestion(name, {*CALLBACKS, *RECORDED_CALLBACKS}),
            )
        yield _callback(spec, what)


def _callback(spec: CallSpec, what: str) -> CallSpec:
    kwargs = dict(check_call(spec, CALLBACKS, what).kwargs)
    if spec.name == "LearningRateScheduler":
        schedule = check_rate(kwargs["schedule"], f"{what}: schedule of LearningRateScheduler")
        if isinstance(schedule, float):
            raise InvalidParameter(
                f"{what}: LearningRateScheduler needs the name of a schedule. Received: {schedule!r}"
            )
        kwargs["schedule"] = schedule
    if "monitor" in CALLBACKS[spec.name]:
        monitor = kwargs.setdefault("monitor", "loss")
        if monitor.startswith("val_"):
            raise InvalidParameter(
                f"{what}: {spec.name} cannot monitor validation data, because visits have none. Received: "
                f"monitor={monitor!r}",
                hint="Monitor 'loss' or a metric of the training data.",
            )
    return CallSpec(spec.name, (), kwargs)
