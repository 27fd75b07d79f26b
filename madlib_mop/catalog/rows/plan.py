"""The plan of a run, column ``plan`` of `madlib_mop.run`: everything that a resuming driver and its workers need.

A resumed run may have been planned by an older version, so newer keys can be missing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.base import Document, Json


class PreprocessorRow(NamedTuple):
    """A preprocessor: its SHA-256, and its JSON document."""

    digest: str
    document: str


@dataclass(frozen=True, slots=True)
class ShardAccess:
    """How a worker reads a shard that is not read from the whole table on this server.

    Attributes
    ----------
    query : str
    server : str or None
        The foreign server to read it from.
    key : int or None
        Its ``__dist_key__``, if the engine's dispatcher sends its rows.
    """

    query: str
    server: str | None = None
    key: int | None = None

    def as_json(self) -> Json:
        """Return the value from the plan."""
        if self.key is not None:
            return {"key": self.key, "query": self.query}
        return {"server": self.server, "query": self.query}


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard of a packed table.

    Attributes
    ----------
    segment_id, n_rows, n_bytes : int
    place : ShardAccess or None
    key : int or None
        Its ``__dist_key__``, if that differs from the segment's number.
    """

    segment_id: int
    n_rows: int
    n_bytes: int
    place: ShardAccess | None = None
    key: int | None = None

    @property
    def server(self) -> str | None:
        """The foreign server that it is read from; None for this server."""
        return self.place.server if self.place else None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the plan."""
        place = found.get("place")
        place = ShardAccess(place["query"], place.get("server"), place.get("key")) if place else None
        return cls(found["segment_id"], found["n_rows"], found.get("n_bytes", 0), place, found.get("key"))

    def as_json(self) -> Json:
        """Return the value from the plan."""
        written: Json = {"segment_id": self.segment_id, "n_rows": self.n_rows, "n_bytes": self.n_bytes}
        written["place"] = self.place.as_json() if self.place else None
        return written if self.key is None else {**written, "key": self.key}


@dataclass(frozen=True, slots=True)
class PackedData:
    """A packed table as workers read it.

    Attributes
    ----------
    table, sql_name : str
        Its name for messages, and quoted.
    oid : int
    query : str
        The SELECT of one segment's buffers.
    n_x, n_y : int
        How many inputs and outputs it has.
    normalizing_const : float
    segments : tuple of ShardPlan
    index_inputs : tuple of int
        Which inputs, by number, hold int32 indices instead of float32 numbers; both have four bytes.
    """

    table: str
    sql_name: str
    oid: int
    query: str
    n_x: int
    n_y: int
    normalizing_const: float
    segments: tuple[ShardPlan, ...]
    index_inputs: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return what the plan has; where no input holds indices, it does not mention them."""
        own = ("segments", "index_inputs")
        columns = {f.name: found[f.name] for f in dataclasses.fields(cls) if f.name not in own}
        segments = tuple(map(ShardPlan.from_json, found["segments"]))
        return cls(**columns, segments=segments, index_inputs=tuple(found.get("index_inputs", ())))

    def as_json(self) -> Json:
        """Return the value from the plan."""
        written = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if not self.index_inputs:
            del written["index_inputs"]
        return {**written, "segments": [shard.as_json() for shard in self.segments]}


_Part = TypeVar("_Part")
_HOST_WAIT_S = 600  # for plans without this value
_EARLIEST_DRAWING = 1  # for plans without this value


@dataclass(frozen=True, slots=True)
class OutputName(Document):
    """The name of a table that the run writes."""

    schema: str
    name: str
    is_temp: bool

    @classmethod
    def of(cls, table: Relation) -> Self:
        """Return a table for a plan."""
        return cls(table.schema, table.name, table.is_temp)

    @property
    def relation(self) -> Relation:
        """The table."""
        return Relation(self.schema, self.name, 0, "r", self.is_temp)


@dataclass(frozen=True, slots=True)
class FusedGroup(Document):
    """Models that are trained together.

    Attributes
    ----------
    mst_keys : list of int
    n_places : int
        The number of places of their graph.
    until : list of list of int, or None
        In a replay: for each model, epoch and position of the last visit that it makes in the group, 0 and 0 if none.
    dissolves : bool
        In a replay: whether the group is dissolved after these visits.
    """

    mst_keys: list[int]
    n_places: int
    until: list[list[int]] | None = None
    dissolves: bool = False


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """The fused groups of a run.

    Attributes
    ----------
    most : int
        The maximum number of models in a group.
    groups : tuple of FusedGroup
    dissolved : tuple of int
        Numbers of the groups with models that now train separately.
    """

    most: int
    groups: tuple[FusedGroup, ...]
    dissolved: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the plan."""
        return cls(found["most"], tuple(map(FusedGroup.from_json, found["groups"])), tuple(found["dissolved"]))

    def as_json(self) -> Json:
        """Return the value from the plan."""
        groups = [group.as_json() for group in self.groups]
        return {"most": self.most, "groups": groups, "dissolved": list(self.dissolved)}


@dataclass(frozen=True, slots=True)
class PastConfiguration(Document):
    """A configuration of an earlier run that a search begins with.

    Attributes
    ----------
    run_id, mst_key : int
        The earlier run and its model.
    model_id : int
        Its architecture among those of the search.
    compile_params, fit_params : str
        As the search writes them.
    loss : float or None
        In the earlier run; None if it was not finite.
    place : float
        Its place in the order of the losses of its run, from 0 (the best) to 1 (the worst).
    """

    run_id: int
    mst_key: int
    model_id: int
    compile_params: str
    fit_params: str
    loss: float | None
    place: float


@dataclass(frozen=True, slots=True)
class GivenConfiguration(Document):
    """A configuration that a search tries first."""

    model_id: int
    compile_params: str
    fit_params: str


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The arguments of a search.

    Attributes
    ----------
    method, params : str
    budget_s : float or None
    random_state : int
    model_ids : list of int
    compile_params_grid : str
    fit_params_grid : str or None
    archs : dict of str to str
        Architectures, JSON as text, by model_id as text.
    start_weights : dict of str to str
        Origins of start weights by model_id as text.
    custom_names : list of str
    selection : OutputName
        The model selection table to write.
    past : tuple of PastConfiguration
        What it begins with (``start_from``); the earlier runs are not read again.
    drawing : int
        The way in which it draws from ranges; see `search_grid.DRAWING`. Older plans do not have it.
    is_paced : bool
        Whether it begins no more configurations than its time budget allows (`Search.is_paced`). Older plans do not
        have it, and begin all of them.
    given : tuple of GivenConfiguration
        What it tries first (``try_first``); the table is not read again.
    sampler_version : str or None
        The library that draws its configurations, such as ``optuna 5.0.0``. None: the search draws them, or the plan is
        an older one.
    objective : list of str
        What it minimizes besides the loss: names of `search.objectives.COSTS`.
    costs : dict of str to list of int
        These costs of each architecture, by model_id as text.
    """

    method: str
    params: str
    budget_s: float | None
    random_state: int
    model_ids: list[int]
    compile_params_grid: str
    fit_params_grid: str | None
    archs: Mapping[str, str] = field(repr=False)
    start_weights: Mapping[str, str]
    custom_names: Sequence[str]
    selection: OutputName
    past: tuple[PastConfiguration, ...] = ()
    drawing: int = _EARLIEST_DRAWING
    is_paced: bool = False
    given: tuple[GivenConfiguration, ...] = ()
    sampler_version: str | None = None
    objective: Sequence[str] = ()
    costs: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the plan."""
        past = tuple(map(PastConfiguration.from_json, found.get("past", ())))
        given = tuple(map(GivenConfiguration.from_json, found.get("given", ())))
        return cls(**{**found, "selection": OutputName.from_json(found["selection"]), "past": past, "given": given})

    def as_json(self) -> Json:
        """Return the value for the plan; it has neither an empty ``past`` nor what older plans do not have."""
        lists = {"past": self.past, "given": self.given}
        earliest = {"past": [], "drawing": _EARLIEST_DRAWING, "is_paced": False, "given": [], "sampler_version": None}
        earliest |= {"objective": [], "costs": {}}
        written = dataclasses.asdict(self)
        written |= {name: [dataclasses.asdict(one) for one in items] for name, items in lists.items()}
        written |= {"objective": list(self.objective), "costs": {key: list(of) for key, of in self.costs.items()}}
        for name, value in earliest.items():
            if written[name] == value:
                del written[name]
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSummary:
    """Columns of the summary of a run's output that differ from the call's arguments.

    Attributes
    ----------
    model : str
        Name of the output table.
    object_table : str or None
    dependent_varname, independent_varname, dependent_vartype : list of str
    num_classes : list of int
    class_values : list of (str, str or None)
        Of each output the type of its class values, and these as an array's text.
    normalizing_const : float
    class_counts : list of (list of int, or None), or None
        Of each output the training rows of each class; for reports. Older plans do not have them.
    qualified_names : dict of str to str
        Names of tables with their schemas, by the columns that name them.
    model_arch_table : str or None
    automl_method, automl_params, random_state : str or None
        None but of a search.
    metrics_compute_frequency : int or None
        None but of a search.
    preprocessor_digest : str or None
        Of the preprocessor by which the packed tables were encoded (`madlib_mop.preprocessor`).
    """

    model: str
    object_table: str | None
    dependent_varname: list[str]
    independent_varname: list[str]
    dependent_vartype: list[str]
    num_classes: list[int]
    class_values: list[tuple[str, str | None]]
    normalizing_const: float
    class_counts: list[list[int] | None] | None = None
    qualified_names: Mapping[str, str] = field(default_factory=dict)
    model_arch_table: str | None = None
    automl_method: str | None = None
    automl_params: str | None = None
    random_state: str | None = None
    metrics_compute_frequency: int | None = None
    preprocessor_digest: str | None = None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the value from the plan."""
        known = {f.name: found[f.name] for f in dataclasses.fields(cls) if f.name in found}
        return cls(**{**known, "class_values": [tuple(pair) for pair in found["class_values"]]})

    def as_json(self) -> Json:
        """Return what the plan has; a column that is None is left to the call's arguments, but ``object_table``."""
        columns = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in columns.items() if value is not None or name == "object_table"}

    @property
    def class_columns(self) -> list[tuple[str, str, str | None]]:
        """The columns of class values: of each output the column's name, its type, and the value as an array's text."""
        pairs = zip(self.dependent_varname, self.class_values, strict=True)
        return [(f"{name}_class_values", type_name, text) for name, (type_name, text) in pairs]


@dataclass(frozen=True, slots=True)
class SamplePlan(Document):
    """The rows on which models are evaluated between the evaluations on all rows.

    Attributes
    ----------
    data_set : str
        ``validation``, or ``training`` if there is no validation table.
    segment_id : int
        The shard of it that has them.
    n_rows : int
        They are the first rows of that shard.
    every : int
        A model is evaluated after so many visits.
    """

    data_set: str
    segment_id: int
    n_rows: int
    every: int

    def is_due(self, n_visits: int) -> bool:
        """Return whether a model is evaluated after so many visits."""
        return n_visits % self.every == 0


@dataclass(frozen=True, slots=True)
class PolicyPlan(Document):
    """The policy of a run: a query of its owner's, evaluated after metrics.

    Attributes
    ----------
    query : str
    search_path : str or None
        Of the caller, for the names in the query.
    timeout_s : int
    """

    query: str
    search_path: str | None
    timeout_s: int


@dataclass(frozen=True, slots=True)
class HopPlan(Document):
    """Models hop from host to host, and their states stay at hosts between visits.

    Attributes
    ----------
    copies : int
        How many of a model's newest states hosts hold.
    checkpoint_every : int or None
        After every so many iterations, a model's state comes to this server; it does after the last one in any case.
    """

    copies: int = 2
    checkpoint_every: int | None = None


def query_of_policy(given: str) -> str:
    """Return the query of the argument policy."""
    return given.strip().rstrip(";").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run.

    Attributes
    ----------
    training : PackedData
    validation : PackedData or None
    trainer : dict
        The start parameters of a trainer, JSON; see `Settings.trainer_start`.
    shares : dict
        Parameters for sharing a host's memory among its trainers, by the name of its foreign server, JSON; see
        `Settings.share_at_host`.
    gpus : dict of int to int
        The GPU of each segment's trainer that uses one.
    worker_host : str
    host_wait_s : float
        Maximum waiting time for a lost host.
    output : OutputName
    summary : OutputSummary
    class_weight : dict of int to float, or None
        The value of ``class_weight='balanced'``.
    fused_training : FusedPlan or None
    search : SearchPlan or None
    sample : SamplePlan or None
        For metrics between those of all rows.
    policy : PolicyPlan or None
    time_limit_s : float or None
        Seconds of training after which models end with their current iteration. A search has it in its own plan.
    any_trainer : bool
        Whether each trainer keeps the rows of all segments, so that a model can stay with one trainer
        (`schedule.scheduler`). Older plans do not have it.
    trainer_idle_s : float
        How long trainers wait for a later run after the end of this one. In older plans, 0.
    direct_hops : HopPlan or None
        None: all states pass this server.
    """

    training: PackedData
    validation: PackedData | None
    trainer: Mapping[str, Any]
    shares: Mapping[str, Any]
    gpus: Mapping[int, int]
    worker_host: str
    host_wait_s: float
    output: OutputName
    summary: OutputSummary
    class_weight: Mapping[int, float] | None = None
    fused_training: FusedPlan | None = None
    search: SearchPlan | None = None
    sample: SamplePlan | None = None
    policy: PolicyPlan | None = None
    time_limit_s: float | None = None
    any_trainer: bool = False
    trainer_idle_s: float = 0.0
    direct_hops: HopPlan | None = None

    @property
    def all_here(self) -> bool:
        """Whether all rows are read from whole tables on this server."""
        return all(shard.place is None for packed in self.data_sets.values() for shard in packed.segments)

    @property
    def data_sets(self) -> dict[str, PackedData]:
        """The packed tables by the names of their data sets."""
        found = {"training": self.training, "validation": self.validation}
        return {name: packed for name, packed in found.items() if packed is not None}

    def without_groups(self, dissolved: Sequence[int]) -> Self:
        """Return the plan after fused groups were dissolved; ``dissolved`` has the numbers of all such groups."""
        assert self.fused_training is not None, "it has made the groups"
        fused = dataclasses.replace(self.fused_training, dissolved=tuple(dissolved))
        return dataclasses.replace(self, fused_training=fused)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the plan of a run, written by any version."""
        return cls(
            training=PackedData.from_json(found["training"]),
            validation=_if_there(PackedData.from_json, found.get("validation")),
            trainer=found["trainer"],
            shares=found.get("shares", {}),
            gpus={int(segment): gpu for segment, gpu in (found.get("gpus") or {}).items()},
            worker_host=found["worker_host"],
            host_wait_s=found.get("host_wait_s", _HOST_WAIT_S),
            output=OutputName.from_json(found["output"]),
            summary=OutputSummary.from_json(found["summary"]),
            class_weight=dict(map(tuple, found["class_weight"])) if "class_weight" in found else None,
            fused_training=_if_there(FusedPlan.from_json, found.get("fused_training")),
            search=_if_there(SearchPlan.from_json, found.get("search")),
            sample=_if_there(SamplePlan.from_json, found.get("sample")),
            policy=_if_there(PolicyPlan.from_json, found.get("policy")),
            time_limit_s=found.get("time_limit_s"),
            any_trainer=found.get("any_trainer", False),
            trainer_idle_s=found.get("trainer_idle_s", 0.0),
            direct_hops=_if_there(HopPlan.from_json, found.get("direct_hops")),
        )

    def as_json(self) -> Json:
        """Return the plan for the run's row."""
        written: Json = {
            "training": self.training.as_json(),
            "validation": self.validation.as_json() if self.validation else None,
            "trainer": dict(self.trainer),
            "shares": dict(self.shares),
            "gpus": dict(self.gpus),
            "worker_host": self.worker_host,
            "host_wait_s": self.host_wait_s,
            "output": self.output.as_json(),
            "summary": self.summary.as_json(),
        }
        if self.any_trainer:
            written["any_trainer"] = True
        if self.trainer_idle_s:
            written["trainer_idle_s"] = self.trainer_idle_s
        if self.class_weight is not None:
            written["class_weight"] = [list(item) for item in self.class_weight.items()]
        if self.time_limit_s is not None:
            written["time_limit_s"] = self.time_limit_s
        parts = {
            "fused_training": self.fused_training,
            "search": self.search,
            "sample": self.sample,
            "policy": self.policy,
            "direct_hops": self.direct_hops,
        }
        for name, part in parts.items():
            if part is not None:
                written[name] = part.as_json()
        return written


def _if_there(read: Callable[[Mapping[str, Any]], _Part], found: Mapping[str, Any] | None) -> _Part | None:
    return read(found) if found else None
