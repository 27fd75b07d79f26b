"""Groups configurations of a run that can train together in one graph; pure, called by the driver.

Members of a group share the architecture except L2 strengths (``sharing.signature_of``), the compile parameters
except the learning rate, and the fit parameters. The lists here have what
tests/unit/trainer/test_fused_visits.py compares with separate training; all other configurations train separately,
which is not an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.literals import CallSpec
from madlib_mop.models.parameters.parser import CompileParams, FitParams
from madlib_mop.models.sharing import known_architecture, signature_of

_LAYERS = frozenset(
    "InputLayer Dense Flatten Reshape Activation ReLU LeakyReLU Softmax Dropout BatchNormalization".split()
)
#: Optimizers whose step is elementwise. Arguments that depend on a whole tensor are in `_WHOLE`.
_OPTIMIZERS = frozenset("Adadelta Adagrad Adam AdamW Adamax RMSprop SGD".split())
_WHOLE = frozenset(
    "clipnorm global_clipnorm use_ema ema_momentum ema_overwrite_frequency loss_scale_factor"
    " gradient_accumulation_steps".split()
)
#: In lower case and without underscores, so that a function's name and its class compare equal.
_LOSSES = frozenset(
    "categoricalcrossentropy sparsecategoricalcrossentropy binarycrossentropy mse meansquarederror mae"
    " meanabsoluteerror huber kldivergence kld".split()
)
_METRICS = frozenset(
    "accuracy acc categoricalaccuracy sparsecategoricalaccuracy binaryaccuracy categoricalcrossentropy mse"
    " meansquarederror mae meanabsoluteerror".split()
)
ALONE = "no other configuration has its shape"
FULL = "the groups of its shape are full"
FEW = "there are not more configurations than segments"


@dataclass(frozen=True)
class FusionCandidate:
    """A configuration and its start.

    Attributes
    ----------
    mst_key : int
    configuration : Configuration
    start : hashable
        Further properties that members must share: the epochs to train, and whether a state is continued.
    """

    mst_key: int
    configuration: Configuration
    start: Any = None


@dataclass(frozen=True)
class Group:
    """Keys of configurations that train together, in the candidates' order.

    ``n_places`` is the number of places of the graph, equal for groups of one shape, so they share one graph.
    """

    keys: tuple[int, ...]
    n_places: int


@dataclass(frozen=True)
class Grouping:
    """Groups; and for every other key the reason why it trains separately."""

    groups: tuple[Group, ...]
    separate: Mapping[int, str]


def form_groups(candidates: Sequence[FusionCandidate], most: int, n_segments: int) -> Grouping:
    """Form groups of at most ``most`` configurations of one shape each.

    No group is larger than a segment's share of all configurations; otherwise some segments would wait for the one
    with the group. Groups of one shape differ by one member at most.
    """
    separate: dict[int, str] = {}
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for candidate in candidates:
        c = candidate.configuration
        reason = why_separate(c)
        if reason is None:
            shape = signature_of(c), c.fit.key, candidate.start
            shapes.setdefault(shape, []).append(candidate.mst_key)
        else:
            separate[candidate.mst_key] = reason
    most = min(most, -(-len(candidates) // n_segments))
    groups = []
    for keys in shapes.values():
        split = _split(keys, -(-len(keys) // most))
        for group in split:
            if len(group) > 1:
                groups.append(Group(tuple(group), len(split[0])))
            else:
                separate[group[0]] = ALONE if len(keys) == 1 else FEW if most == 1 else FULL
    return Grouping(tuple(groups), separate)


def why_separate(c: Configuration) -> str | None:
    """Return the part of a configuration that cannot be fused, or None. Raises MopError."""
    arch = known_architecture(c).checked
    for reason in (*_in_architecture(arch), *_in_compile_params(c.compiled), *_in_fit_params(c.fit)):
        return reason
    return None


def _in_architecture(config: Node) -> Iterable[str]:
    if config.get("class_name") != "Sequential":
        yield "the model is not Sequential"
        return
    for layer in config["config"]["layers"]:
        name, inner = layer["class_name"], layer["config"]
        if name not in _LAYERS:
            yield f"layer {name}"
        elif inner.get("trainable") is False:
            yield "frozen layers"
        elif not _is_float32(inner.get("dtype")):
            yield "a type other than float32"
        for key, value in inner.items():
            if value is not None and (key.endswith("_constraint") or key == "activity_regularizer"):
                yield key
            elif key == "activation" and not isinstance(value, str | None):
                yield "an activation of its own"


def _is_float32(dtype: Any) -> bool:
    if isinstance(dtype, dict):
        inner = dtype.get("config")
        return isinstance(inner, dict) and bool(inner.get("name") == "float32")
    return dtype in (None, "float32")


def _in_compile_params(params: CompileParams) -> Iterable[str]:
    optimizer = params.optimizer
    if optimizer.name not in _OPTIMIZERS:
        yield f"optimizer {optimizer.name}"
    if isinstance(optimizer.kwargs.get("learning_rate"), CallSpec):
        yield "a schedule of learning rates"
    yield from sorted(_WHOLE & {name for name, value in optimizer.kwargs.items() if value})
    if params.custom_names:
        yield "custom functions"
    if not _is_known(params.loss, _LOSSES):
        yield "its loss"
    if params.loss_weights is not None or params.weighted_metrics:
        yield "loss_weights or weighted_metrics"
    metrics = params.metrics if isinstance(params.metrics, list) else [params.metrics]
    if params.metrics is not None and not all(_is_known(metric, _METRICS) for metric in metrics):
        yield "its metrics"


def _is_known(function: Any, names: frozenset[str]) -> bool:
    """Return whether a loss or metric is one of these, by name or by class, its ``reduction`` the usual one."""
    if isinstance(function, CallSpec):
        if not set(function.kwargs) <= {"name", "from_logits", "label_smoothing", "threshold", "delta"}:
            return False
        function = function.name
    return isinstance(function, str) and function.replace("_", "").lower() in names


def _in_fit_params(params: FitParams) -> Iterable[str]:
    if params.callbacks:
        yield "callbacks"
    if params.class_weight is not None:
        yield "class_weight"


def _split(keys: list[int], n_groups: int) -> list[list[int]]:
    """Split keys into a number of parts with lengths that differ by at most one, longer ones first."""
    size, longer = divmod(len(keys), n_groups)
    groups, start = [], 0
    for number in range(n_groups):
        stop = start + size + (number < longer)
        groups.append(keys[start:stop])
        start = stop
    return groups
