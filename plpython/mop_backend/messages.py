"""The messages between the driver of a run, its writers and their trainers: what each may say, for all of them.

The driver gives a writer an order, and the writer returns an answer; both are texts (`as_text`, `read_order`,
`read_answer`). The writer sends its trainer requests about models, whose answers come in frames (`as_request`,
`of_answer`). A message that lacks a field, has another one, or a field of another type is a `BadMessage`: a trainer
runs code of users, and may send anything. Driver, writer and trainer are of one version
(`mop_backend.call.check_version`), so the fields may change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from mop_backend.frames import Header, Json

_Message = TypeVar("_Message")
_Figures = dict[str, float]
_INT8 = range(-(1 << 63), 1 << 63)  # what PostgreSQL's bigint takes


class BadMessage(ValueError):
    """A message has not the fields of its class."""


# From the driver to a writer, and back. Each session of a writer makes all these classes at its first order. Frozen
# ones take twice as long, so only the one that is a key of dictionaries is frozen.


@dataclasses.dataclass(frozen=True)
class ShardName:
    """A shard of a run: the data set, "training", "validation" or "sample", and the number of its segment."""

    data_set: str
    segment_id: int

    @property
    def key(self) -> str:
        """The shard's name in a trainer."""
        return f"{self.data_set}:{self.segment_id}"


@dataclasses.dataclass
class StateWrite:
    """Where a visit writes a model's new state: the slot, None if it stays at the segment's host; its version."""

    mst_key: int
    slot: int | None
    version: int


@dataclasses.dataclass
class StartTrainer:
    """Have the trainer ready. Answered by `Done`."""


@dataclasses.dataclass
class ReleaseTrainer:
    """Release the trainer, with its compiled models, to a later run of the same role. Answered by `Done`.

    Attributes
    ----------
    seconds : float
        How long it waits for one.
    """

    seconds: float


@dataclasses.dataclass
class LoadShard:
    """Load a shard's rows into the trainer. Answered by `ShardLoaded`, or `Unread`.

    Attributes
    ----------
    shard : ShardName
    reader_pid : int or None
        The process of the reader that was told what `NeedsRows` says; None if none is needed.
    """

    shard: ShardName
    reader_pid: int | None


@dataclasses.dataclass
class Train:
    """Make one visit, and commit it. Answered by `VisitsCommitted`.

    Attributes
    ----------
    members : tuple of StateWrite or None
        The model. Or the models that are trained together, by the places of their graph; None for an unused place.
    shard : ShardName
    epoch, position, attempt : int
    place : str
        Says where the visit is, for the reason of a model that fails in it.
    sample : int or None
        The segment of the sample that each model is evaluated on after the visit, if it is due.
    is_staged : bool
        Whether the new state is to be averaged with those of other segments.
    again_from : int or None
        The visit is recorded, but the state that it made is lost: it is made again from the state of this version.
    """

    members: tuple[StateWrite | None, ...]
    shard: ShardName
    epoch: int
    position: int
    attempt: int
    place: str
    sample: int | None = None
    is_staged: bool = False
    again_from: int | None = None


@dataclasses.dataclass
class Evaluate:
    """Evaluate a model, or several together, on shards. Answered by `Evaluated`, with the shards that are loaded.

    Attributes
    ----------
    members : tuple of int or None
        ``mst_key`` of the model, or of the models by the places of their graph.
    shards : tuple of ShardName
    """

    members: tuple[int | None, ...]
    shards: tuple[ShardName, ...]


@dataclasses.dataclass
class ComputeMetrics:
    """Compute a model's metrics from sums over all shards. Answered by `MetricsComputed`.

    Attributes
    ----------
    mst_key : int
    shard : ShardName
        One of the shards; the shapes of the model's columns are those of its rows.
    sums : dict of MetricTotals
        By data set.
    """

    mst_key: int
    shard: ShardName
    sums: dict[str, MetricTotals]


@dataclasses.dataclass
class AverageStates:
    """Average what the segments have trained in an iteration, and commit it. Answered by `AverageCommitted`.

    Attributes
    ----------
    write : StateWrite
    epoch : int
    slots : tuple of int
        The slots of the states to average.
    n_visits : int
        How many states that must be.
    """

    write: StateWrite
    epoch: int
    slots: tuple[int, ...]
    n_visits: int


@dataclasses.dataclass
class Detour:
    """A host could not get states from another one directly: for some time, they go through the coordinator.

    ``sender`` and ``receiver`` are names of foreign servers.
    """

    sender: str
    receiver: str
    reason: str


@dataclasses.dataclass
class Done:
    """An order was completed. ``versions`` are those of the trainer's libraries, by name; ``detours`` have begun."""

    versions: Header
    detours: tuple[Detour, ...] = dataclasses.field(default=(), kw_only=True)


@dataclasses.dataclass
class ShardLoaded(Done):
    """The trainer has a shard's rows."""

    shard: LoadedRows


@dataclasses.dataclass
class CommittedVisit:
    """A visit that was committed: the digest and the size of the model's new state, and the server that holds it if it
    has no slot."""

    mst_key: int
    digest: str
    state_bytes: int
    server: str | None = None


@dataclasses.dataclass
class FailedMember:
    """A model that has failed in a visit of several; its failure was committed with the others' visits."""

    mst_key: int
    reason: str


@dataclasses.dataclass
class VisitsCommitted(Done):
    """A visit was committed, for each model that was trained in it.

    Attributes
    ----------
    committed : tuple of CommittedVisit
    failed : tuple of FailedMember
    steady_s : float
        What the visit took, without what is paid once; 0.0 if that is not known.
    """

    committed: tuple[CommittedVisit, ...]
    failed: tuple[FailedMember, ...]
    steady_s: float


@dataclasses.dataclass
class EvaluatedMember:
    """The figures of one model on a shard."""

    mst_key: int
    figures: EvaluationFigures


@dataclasses.dataclass
class EvaluatedShard:
    """The figures of a shard's evaluation, which began and ended at these times (seconds since 1970)."""

    shard: ShardName
    started_at: float
    ended_at: float
    members: tuple[EvaluatedMember, ...]


@dataclasses.dataclass
class Evaluated(Done):
    """Shards were evaluated: those of the order that the trainer has. The others need another order."""

    shards: tuple[EvaluatedShard, ...]


@dataclasses.dataclass
class MetricsComputed(Done):
    """A model's metrics, by data set."""

    results: dict[str, MetricValues]


@dataclasses.dataclass
class AverageCommitted(Done):
    """An average was committed: its digest and its size."""

    digest: str
    state_bytes: int


@dataclasses.dataclass
class NeedsRows:
    """The trainer lacks the rows of a shard; after `LoadShard`, the order is to be given again.

    ``reader`` has the arguments of a reader that sends the rows (`mop_backend.shards.send_shard`), None if none is
    needed.
    """

    shard: ShardName
    reader: Header | None


# None of these answers left anything behind in the tables. The keys of ``error`` are sqlstate, message, hint, detail.


@dataclasses.dataclass
class Unread:
    """The reader did not hand the rows over."""

    error: Header


@dataclasses.dataclass
class Failed:
    """The trainer could not do it; ``kind`` says what is at fault (`madlib_mop.trainer.process.failures`)."""

    error: Header
    kind: str


@dataclasses.dataclass
class Died:
    """The trainer ended, with this exit status and these last lines of its standard error."""

    status: int
    stderr: str


@dataclasses.dataclass
class HostGone:
    """The segment's host cannot be reached, or was lost."""

    server: str
    message: str


@dataclasses.dataclass
class StateAway:
    """The host that holds a model's state cannot be reached now. The segment itself is ready."""

    server: str
    message: str


@dataclasses.dataclass
class StateGone:
    """The host does not hold the states of these models that the record names."""

    server: str
    mst_keys: tuple[int, ...]


@dataclasses.dataclass
class SqlFailed:
    """A statement failed, or the host refused one."""

    error: Header


Order = StartTrainer | ReleaseTrainer | LoadShard | Train | Evaluate | ComputeMetrics | AverageStates
Answer = Done | NeedsRows | Unread | Failed | Died | HostGone | StateAway | StateGone | SqlFailed
_ORDERS = get_args(Order)
_ANSWERS = (
    Done, ShardLoaded, VisitsCommitted, Evaluated, MetricsComputed, AverageCommitted, NeedsRows, Unread, Failed, Died,
    HostGone, StateAway, StateGone, SqlFailed,
)  # fmt: skip


# From a writer, or the driver of a call, to a trainer, and back.


@dataclasses.dataclass
class ModelStart:
    """A model of a request, and what it starts from: a state, start weights, or random weights.

    Attributes
    ----------
    model : dict
        ``arch``, ``compile_params``, ``fit_params``, ``seed``, ``mst_key``, ``custom``.
    n_blobs : int
        How many of the request's blobs are the model's.
    has_state, has_weights : bool
        What these blobs are: the parts of a state, or start weights.
    digest, weights_digest : str or None
        Those that are recorded for the whole state and its weights.
    taken_over : dict or None
        How the state was copied from another model, if this one has not trained since.
    begins : bool
        Whether a run begins with the state, which may be of another backend then.
    """

    model: Header
    n_blobs: int = 0
    has_state: bool = False
    has_weights: bool = False
    digest: str | None = None
    weights_digest: str | None = None
    taken_over: Header | None = None
    begins: bool = False


@dataclasses.dataclass
class TrainRequest:
    """Make a visit. Answered by `TrainedMembers`, and the blobs of all new states.

    Attributes
    ----------
    members : tuple of ModelStart or None
        The model. Or the models that are trained together, by the places of their graph; None for an unused place.
    shard : str
        Its name in the trainer.
    epoch, segment_id : int
        Seed the order of rows.
    sample : str or None
        The shard that the trained models are evaluated on.
    """

    OP: ClassVar[str] = "train"

    members: tuple[ModelStart | None, ...]
    shard: str
    epoch: int
    segment_id: int
    sample: str | None = None


@dataclasses.dataclass
class EvaluateRequest:
    """Evaluate a model, or several together, on all rows of a shard. Answered by `EvaluatedMembers`."""

    OP: ClassVar[str] = "evaluate"

    members: tuple[ModelStart | None, ...]
    shard: str


@dataclasses.dataclass
class MetricsRequest:
    """Compute a model's loss and metrics from added sums. Answered by `MetricResults`, one for each of ``sums``."""

    OP: ClassVar[str] = "metric_results"

    model: Header
    shard: str
    sums: tuple[MetricTotals, ...]


@dataclasses.dataclass
class DescribeState:
    """Check a whole training state, the request's blobs. Answered by `StateDescription`."""

    OP: ClassVar[str] = "describe_state"


@dataclasses.dataclass
class LoadedRows:
    """A shard that a trainer has loaded, and the names of all that it keeps."""

    n_rows: int
    n_bytes: int
    fingerprint: str
    cached: bool
    cached_shards: tuple[str, ...]


@dataclasses.dataclass
class VisitFigures:
    """What a training visit gives for the record, besides the new state.

    ``sample`` has loss and metrics on the sample. Times of ``timing`` are in seconds; its ``fused`` is the number of
    places of the graph, where several models were trained together.
    """

    digest_in: str
    digest_out: str
    weights_digest: str
    n_rows: int
    n_batches: int
    loss: float
    metrics: _Figures
    model_bytes: int
    state_bytes: int
    forward_parts: int
    timing: _Figures
    sample: _Figures | None = None


@dataclasses.dataclass
class TrainedMember:
    """One model after a visit: its figures, and the number of its blobs; or the ``error`` for which it alone failed."""

    figures: VisitFigures | None
    n_blobs: int
    error: Header | None = None


@dataclasses.dataclass
class TrainedMembers:
    """One entry for each of the request's members; None for an unused place."""

    members: tuple[TrainedMember | None, ...]


@dataclasses.dataclass
class MetricTotals:
    """The sums that a model's loss and metrics are made of.

    Attributes
    ----------
    layout : tuple of (str, int, bool)
        For each metric, the loss first, its name, its number of sums, and whether they are a total and a count.
    data : str
        The sums, little-endian float64 in Base64.
    """

    layout: tuple[tuple[str, int, bool], ...]
    data: str


@dataclasses.dataclass
class EvaluationFigures:
    """Loss and metrics over all rows of a shard, in the order of compile's, and what they are made of."""

    n_rows: int
    loss: float
    metrics: _Figures
    output_losses: _Figures
    sums: MetricTotals
    timing: _Figures


@dataclasses.dataclass
class EvaluatedMembers:
    """One entry for each of the request's members; None for an unused place."""

    members: tuple[EvaluationFigures | None, ...]


@dataclasses.dataclass
class MetricValues:
    """Loss and metrics of a model."""

    loss: float
    metrics: _Figures


@dataclasses.dataclass
class MetricResults:
    """Loss and metrics for each of the request's sums."""

    results: tuple[MetricValues, ...]


@dataclasses.dataclass
class StateDescription:
    """The digests and sizes of a training state."""

    digest: str
    weights_digest: str
    model_bytes: int
    forward_parts: int


# How they are written and read.


def as_text(message: Order | Answer) -> str:
    """Return an order or an answer as JSON, with the name of its class."""
    return json.dumps({"class": type(message).__name__, **to_json(message)})


def read_order(text: str) -> Order:
    """Return the order of a text. Raises BadMessage."""
    found: Order = _from_text(text, _ORDERS)
    return found


def read_answer(text: str) -> Answer:
    """Return the answer of a text. Raises BadMessage."""
    found: Answer = _from_text(text, _ANSWERS)
    return found


def as_request(message: TrainRequest | EvaluateRequest | MetricsRequest | DescribeState) -> Header:
    """Return a request as the header of a frame."""
    return {"op": message.OP, **to_json(message)}


def of_request(kind: type[_Message], header: Header) -> _Message:
    """Return the request of a frame's header. Raises BadMessage."""
    return from_json(kind, {name: value for name, value in header.items() if name != "op"})


def of_answer(kind: type[_Message], header: Header) -> _Message:
    """Return a trainer's answer, which is no error, of a frame's header. Raises BadMessage."""
    return from_json(kind, {name: value for name, value in header.items() if name != "ok"})


def to_json(message: Any) -> Header:
    """Return the fields of a message as a JSON object."""
    return {name: _written(getattr(message, name)) for name in _fields_of(message.__class__)}


def from_json(kind: type[_Message], value: Json) -> _Message:
    """Return the message of a class that a JSON object has.

    Raises
    ------
    BadMessage
        If it lacks a field, has another one, or one has a value of another type.
    """
    found: _Message = _read(kind, value, kind.__name__)
    return found


def _from_text(text: str, kinds: tuple[type, ...]) -> Any:
    fields = json.loads(text)
    name = fields.pop("class", None) if isinstance(fields, dict) else None
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise BadMessage(f"there is no message {name!r}")
    return from_json(kind, fields)


@cache
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Return for each field of a message its type, and whether it may be missing."""
    hints = get_type_hints(kind)
    return {
        field.name: (hints[field.name], field.default is not dataclasses.MISSING)
        for field in dataclasses.fields(kind)
    }


def _written(value: Any) -> Json:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    if isinstance(value, dict) and any(map(dataclasses.is_dataclass, value.values())):
        return {name: _written(item) for name, item in value.items()}
    return value  # JSON, perhaps a large architecture


def _read(kind: Any, value: Json, where: str) -> Any:
    """Return a value of a message as its type; ``where`` names it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where)
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            items = enumerate(zip(kinds, value, strict=True))
            return tuple(_read(one, item, f"{where}[{number}]") for number, (one, item) in items)
    elif origin is dict and isinstance(value, dict):
        return {name: _read(inner[1], item, f"{where}[{name!r:.100}]") for name, item in value.items()}
    elif type(None) in inner:
        return None if value is None else _read(inner[0], value, where)
    elif (kind is int and type(value) is int) or (kind is float and type(value) in (int, float)):
        if type(value) is float or value in _INT8:
            return value
    elif kind in (bool, str) and type(value) is kind:  # defence: type-of-a-field = kind in (bool, str)
        return value
    raise BadMessage(f"{where} has not its type. Received: {_short(value)}")


def _read_fields(kind: Any, value: Json, where: str) -> Any:
    if not isinstance(value, dict):
        raise BadMessage(f"{where} is no object. Received: {_short(value)}")
    fields = _fields_of(kind)
    unknown = value.keys() - fields.keys()
    missing = [name for name, (_, may_lack) in fields.items() if not may_lack and name not in value]
    if unknown or missing:  # defence: fields-of-an-answer = missing
        names = ", ".join(missing) or _short(min(unknown))
        raise BadMessage(f"{where} {'lacks' if missing else 'has no field'} {names}")
    return kind(**{name: _read(fields[name][0], item, f"{where}.{name}") for name, item in value.items()})


def _short(value: Json) -> str:
    return f"{value!r:.100}" if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
