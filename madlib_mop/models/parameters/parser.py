"""The parser of compile and fit parameters: texts in, frozen dataclasses out; used by the driver and by trainers.

Losses, metrics and the optimizer are checked here, including spellings of Keras 2.
"""

import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from madlib_mop.errors import InvalidParameter, is_missing, not_whole
from madlib_mop.models.parameters.calls import (
    as_spec,
    check_call,
    check_kind,
    find_name,
    is_int,
    is_number,
    suggestion,
    unknown_parameter,
)
from madlib_mop.models.parameters.class_weights import BALANCED
from madlib_mop.models.parameters.early_stopping import read_early_stopping
from madlib_mop.models.parameters.keras_names import (
    CALLBACKS,
    DEFAULT_LEARNING_RATES,
    LOSS_STRINGS,
    LOSSES,
    METRIC_NAMES,
    METRIC_STRINGS,
    METRICS,
    OLD_LOSSES,
    OLD_METRICS,
    OPTIMIZERS,
    RECORDED_CALLBACKS,
    REQUIRED,
    SCHEDULES,
    snake_case,
)
from madlib_mop.models.parameters.literals import CallSpec, canonical, read_keywords, read_value, shorten

#: What the name of a metric is, or ends with after ``_``, if higher values are better. In a name of Keras, all others
#: are losses, errors or counts of errors. A network with several outputs has names such as ``kind_accuracy``; Keras
#: adds a number to the second metric of a name.
HIGHER = (
    *("acc", "accuracy", "auc", "auroc", "correlation", "f1", "f1_score", "fbeta", "fbeta_score", "f_beta_score"),
    *("io_u", "iou", "precision", "r2", "r2_score", "recall", "sensitivity", "similarity", "specificity"),
    *("true_negatives", "true_positives"),
    # classes of Keras, where a name is that of the class
    *("binaryaccuracy", "binaryiou", "categoricalaccuracy", "concordancecorrelation", "cosinesimilarity", "f1score"),
    *("fbetascore", "meaniou", "onehotiou", "onehotmeaniou", "pearsoncorrelation", "precisionatrecall", "r2score"),
    *("recallatprecision", "sensitivityatspecificity", "sparsecategoricalaccuracy", "sparsetopkcategoricalaccuracy"),
    *("specificityatsensitivity", "topkcategoricalaccuracy", "truenegatives", "truepositives"),
)
#: For names in lower case; an expression of Python and of PostgreSQL.
PATTERN = f"^(.*_)?({'|'.join(HIGHER)})(_[0-9]+)?$"

_PATTERN = re.compile(PATTERN.removesuffix("$") + r"\Z", re.DOTALL)
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def higher_is_better(name: str) -> bool:
    """Return whether higher values of a metric of this name are better; of any other name, lower ones are."""
    return _PATTERN.match(name.translate(_LOWER)) is not None


_NEEDED = {name.lower(): needed for name, needed in REQUIRED.items() if name in METRICS}


class FunctionReader:
    """Checks losses and metrics, and collects the custom functions that they use."""

    def __init__(self, custom_names: frozenset[str]):
        self.custom_names = custom_names
        self.used: set[str] = set()

    def losses(self, value: Any) -> Any:
        """Check a loss, a list of them or a dict by output; return it with calls as CallSpec."""
        if isinstance(value, list):
            return [self.losses(item) for item in value]
        if isinstance(value, dict) and "class_name" not in value:
            return {str(name): self.losses(item) for name, item in value.items()}
        return self._function(value, "loss", LOSSES, LOSS_STRINGS, OLD_LOSSES)

    def metrics(self, value: Any, key: str) -> Any:
        """Check metrics, in any of the forms that compile() takes; ``key`` is metrics or weighted_metrics."""
        if value is None:
            return None
        is_many = isinstance(value, list) or (isinstance(value, dict) and "class_name" not in value)
        return self._metrics(value if is_many else [value], key, set())

    def _metrics(self, value: Any, key: str, taken: set[str]) -> Any:
        if isinstance(value, list):
            names: set[str] = set()
            return [self._metrics(item, key, names) for item in value]
        if isinstance(value, dict) and "class_name" not in value:
            return {str(name): self._metrics(item, key, set()) for name, item in value.items()}
        return _named(self._function(value, key, METRICS, METRIC_STRINGS, OLD_METRICS), taken)

    def _function(
        self,
        value: Any,
        key: str,
        classes: Mapping[str, tuple[str, ...]],
        strings: Collection[str],
        old: Mapping[str, str],
    ) -> str | CallSpec | None:
        what = f"compile_params: {key}"
        if value is None:
            return None
        if isinstance(value, str) and value in self.custom_names:
            self.used.add(value)
            return value
        spec: object = as_spec(value, what)
        if not isinstance(spec, str | CallSpec):
            raise InvalidParameter(
                f"{what} must be a name or a call of one of Keras' classes. Received: {shorten(value)}"
            )
        name = spec if isinstance(spec, str) else spec.name
        if isinstance(spec, str):
            name = old.get(name, name)
            if needed := _NEEDED.get(name.replace("_", "").lower()):
                raise InvalidParameter(
                    f"{what}: {name} needs {' and '.join(needed)}; write it as a call. Received: {name!r}"
                )
            if name in strings:
                return name
            spec = CallSpec(name, (), {"name": name} if classes is METRICS else {})
        if spec.name not in classes:
            registered = ", ".join(sorted(self.custom_names)) or "none"
            allowed = suggestion(name, {*classes, *strings, *self.custom_names})
            raise InvalidParameter(
                f"{what}: neither Keras nor the custom functions have a function of this name. Received: {name!r}",
                hint=f"Custom functions of the object table: {registered}. {allowed}",
            )
        return check_call(spec, classes, what)


def several_values(metric: str | CallSpec) -> str | None:
    """Return how to write a metric that has an array of values as one with a single number; None if it has one.

    Metrics of classes have one number nevertheless, if the output has a single unit.
    """
    name, given = (metric.name, metric.kwargs) if isinstance(metric, CallSpec) else (metric, {})
    plain = name.replace("_", "").lower()
    if plain in ("f1score", "fbetascore") and given.get("average") is None:
        cls = "F1Score" if plain == "f1score" else "FBetaScore"
        return f"Write {cls}(average='macro'), or another average: 'micro' or 'weighted'."
    if name == "R2Score" and given.get("class_aggregation", "") is None:
        return "Write R2Score(class_aggregation='uniform_average')."
    thresholds = given.get("thresholds")
    if name != "AUC" and isinstance(thresholds, list) and len(thresholds) > 1:
        each = ", ".join(f"{name}(thresholds={one}, name='{snake_case(name)}_at_{one}')" for one in thresholds[:2])
        return f"Write a metric for each threshold: {each}{', ...' if len(thresholds) > 2 else ''}."
    return None


def flat_names(metrics: Any) -> tuple[str, ...]:
    """Return the names of checked metrics, in order, whatever lists and dicts they are in."""
    if metrics is None:
        return ()
    if isinstance(metrics, list | dict):
        items = metrics.values() if isinstance(metrics, dict) else metrics
        return tuple(name for item in items for name in flat_names(item))
    return (metrics.kwargs["name"] if isinstance(metrics, CallSpec) else metrics,)


def _named(metric: str | CallSpec | None, taken: set[str]) -> str | CallSpec | None:
    """Set a distinct name on a metric call: Keras numbers calls without one, and merges calls of one name."""
    if not isinstance(metric, CallSpec):
        taken.add(str(metric))
        return metric
    own = metric.kwargs.get("name") or METRIC_NAMES.get(metric.name) or snake_case(metric.name)
    name, n = own, 0
    while name in taken:
        n += 1
        name = f"{own}_{n}"
    taken.add(name)
    return replace(metric, kwargs={**metric.kwargs, "name": name})


_KERAS_2_SCHEDULE_DECAY = 0.004
_RATES = (
    "initial_learning_rate",
    "end_learning_rate",
    "warmup_target",
    "decay_rate",
    "alpha",
    "power",
    "t_mul",
    "m_mul",
)


def check_optimizer(value: Any, what: str) -> CallSpec:
    """Return the optimizer as a call of a Keras 3 class.

    Parameters
    ----------
    value
        A name in any case (``adam``), a call, a string that holds a call, or Keras' JSON form.
    what : str
        The beginning of messages.

    Returns
    -------
    CallSpec
        ``learning_rate``, if given, is a float or the CallSpec of a schedule. ``lr`` has become ``learning_rate``;
        Keras 2's ``decay`` has become ``InverseTimeDecay(lr, decay_steps=1, decay_rate=decay)``, its equivalent:
        lr / (1 + decay * iterations).

    Raises
    ------
    InvalidParameter
        If the name, an argument or a value is not known to Keras.
    """
    spec = as_spec(value, what)
    if isinstance(spec, str):
        spec = CallSpec(spec)
    if not isinstance(spec, CallSpec):
        raise InvalidParameter(
            f"{what} must be a name or a call such as Adam(learning_rate=0.01). Received: {shorten(value)}"
        )
    name = find_name(spec.name, OPTIMIZERS, what)
    kwargs = dict(spec.kwargs)
    if "lr" in kwargs:
        if "learning_rate" in kwargs:
            raise InvalidParameter(
                f"{what}: lr and learning_rate are the same parameter; use one of them. Received: {shorten(kwargs)}"
            )
        kwargs["learning_rate"] = kwargs.pop("lr")
    decay = kwargs.pop("decay", None)
    _drop_keras_2_defaults(name, kwargs, what)
    rate_first = {"learning_rate": kwargs.pop("learning_rate")} if "learning_rate" in kwargs else {}
    checked = check_call(CallSpec(name, spec.args, {**rate_first, **kwargs}), OPTIMIZERS, what)
    kwargs = dict(checked.kwargs)
    if "learning_rate" in kwargs:
        kwargs["learning_rate"] = check_rate(kwargs["learning_rate"], f"{what}: learning_rate")
    if decay is not None:
        kwargs = {"learning_rate": None, **kwargs}
        kwargs["learning_rate"] = _decayed(name, kwargs["learning_rate"], decay, what)
        if kwargs["learning_rate"] is None:
            del kwargs["learning_rate"]
    return CallSpec(name, (), kwargs)


def check_rate(value: Any, what: str) -> float | CallSpec:
    """Return a learning rate: a float of 0 or more, or the checked call of a schedule."""
    if is_number(value):
        if value < 0:
            raise InvalidParameter(f"{what} must not be negative. Received: {value!r}")
        return float(value)
    spec = as_spec(value, what)
    if not isinstance(spec, CallSpec):
        raise InvalidParameter(
            f"{what} must be a number or a schedule such as ExponentialDecay(0.1, decay_steps=100, decay_rate=0.9). "
            f"Received: {shorten(value)}"
        )
    return check_schedule(spec, what)


def check_schedule(spec: CallSpec, what: str) -> CallSpec:
    """Return a learning-rate schedule as a checked call; rates are floats, because Keras computes in their type."""
    name = find_name(spec.name, SCHEDULES, f"{what}: a schedule of that name")
    kwargs = dict(check_call(CallSpec(name, spec.args, spec.kwargs), SCHEDULES, what).kwargs)
    for argument in _RATES:
        if is_number(kwargs.get(argument)):
            kwargs[argument] = float(kwargs[argument])
    for argument in ("decay_steps", "first_decay_steps"):
        if argument in kwargs and kwargs[argument] <= 0:
            raise InvalidParameter(f"{what}: {argument} of {name} must be above 0. Received: {kwargs[argument]!r}")
    if name == "PiecewiseConstantDecay":
        boundaries, values = kwargs["boundaries"], kwargs["values"]
        if not isinstance(boundaries, list) or not isinstance(values, list) or len(values) != len(boundaries) + 1:
            raise InvalidParameter(
                f"{what}: {name} needs a list of boundaries and a list with one value more. "
                f"Received: boundaries={shorten(boundaries)}, values={shorten(values)}"
            )
        kwargs["values"] = [float(item) for item in values]
    return CallSpec(name, (), kwargs)


def _decayed(name: str, rate: float | CallSpec | None, decay: Any, what: str) -> float | CallSpec | None:
    if not is_number(decay) or decay < 0:
        raise InvalidParameter(f"{what}: decay must be a number of 0 or more. Received: {shorten(decay)}")
    if decay == 0:
        return rate
    if isinstance(rate, CallSpec):
        raise InvalidParameter(
            f"{what}: decay and a learning-rate schedule cannot be used together. Received: decay={decay!r}",
            hint="Remove decay; the schedule alone determines the learning rate.",
        )
    start = DEFAULT_LEARNING_RATES[name] if rate is None else rate
    return CallSpec(
        "InverseTimeDecay",
        (),
        {"initial_learning_rate": start, "decay_steps": 1, "decay_rate": float(decay)},
    )


def _drop_keras_2_defaults(name: str, kwargs: dict[str, Any], what: str) -> None:
    """Remove arguments of Keras 2 that are built into Keras 3: epsilon=None, and Nadam's schedule_decay."""
    if kwargs.get("epsilon", 0) is None:
        del kwargs["epsilon"]
    if name == "Nadam" and "schedule_decay" in kwargs:
        if kwargs["schedule_decay"] != _KERAS_2_SCHEDULE_DECAY:
            raise InvalidParameter(
                f"{what}: schedule_decay of Nadam is always {_KERAS_2_SCHEDULE_DECAY}. "
                f"Received: {shorten(kwargs['schedule_decay'])}"
            )
        del kwargs["schedule_decay"]


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
