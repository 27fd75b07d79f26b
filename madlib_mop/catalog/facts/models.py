"""The models of a run: leaderboard, hyper-parameters, networks, failures, and where weights came from."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from madlib_mop.catalog.facts.layers import layers_in_words
from madlib_mop.catalog.facts.shared import BOARD, SECONDS_OF_VISITS, FactsReader
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.errors import MopError

#: What models are ranked by, unless all have the same first metric.
LOSS = "loss"

#: The value of one hyper-parameter; texts stand for everything that is not a number or a boolean.
Value = float | int | bool | str
#: Hyper-parameters by name, such as ``learning_rate``.
HyperParameters = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One network of the run: its number in the table of architectures, and its layers in words."""

    model_id: int
    layers: str
    n_models: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a model's weights came from, if not from random numbers.

    Attributes
    ----------
    kind : str
        ``clone``, ``exploit`` (population based training), ``warm start`` or ``start weights``.
    mst_key : int
        The model.
    from_key : int or None
        The other model of this run.
    epoch, position : int or None
        Of the newest visit that the copied state contains.
    origin : str or None
        The run, table or architecture that the weights are from.
    at_s : float or None
        When, if that is recorded.
    """

    kind: str
    mst_key: int
    from_key: int | None = None
    epoch: int | None = None
    position: int | None = None
    origin: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One configuration, with its place and its figures in view ``leaderboard``.

    Attributes
    ----------
    rank, mst_key, model_id : int
    state : str
        ``waiting``, ``training``, ``trained``, ``stopped`` or ``failed``.
    detail : str or None
        Why it failed, was stopped or ended early.
    epoch, position : int
        Of its newest visit.
    last_epoch : int
    pinned : bool
    metric_epoch : int or None
        The iteration of the figures.
    comparable : bool
    metric_name : str or None
        Its first metric.
    validation_metric, validation_loss, training_metric, training_loss : float or None
        As they were recorded: NaN and infinite values too.
    compile_params, fit_params : str
    ranked_by : str
        What the models of the run are ranked by: their first metric if all have the same one, else ``loss``.
    baseline : str or None
        The name of the baseline that it is, such as ``linear model``.
    """

    rank: int
    mst_key: int
    model_id: int
    state: str
    detail: str | None
    epoch: int
    position: int
    last_epoch: int
    pinned: bool
    metric_epoch: int | None
    comparable: bool
    metric_name: str | None
    validation_metric: float | None
    validation_loss: float | None
    training_metric: float | None
    training_loss: float | None
    compile_params: str
    fit_params: str
    ranked_by: str = LOSS
    baseline: str | None = None

    @property
    def figures(self) -> tuple[tuple[str, float | None], ...]:
        """Its figures with their names, those on validation data first."""
        metric = self.metric_name or "metric"
        return (
            (f"validation {metric}", self.validation_metric), ("validation loss", self.validation_loss),
            (f"training {metric}", self.training_metric), ("training loss", self.training_loss),
        )  # fmt: skip

    @property
    def is_validated(self) -> bool:
        """Whether the figures on validation data count; otherwise those on training data."""
        return self.validation_loss is not None

    @property
    def score(self) -> float | None:
        """The figure that ranks it; None if there is none, or it is NaN or infinite."""
        if self.ranked_by == LOSS:
            found = self.validation_loss if self.is_validated else self.training_loss
        else:
            found = self.validation_metric if self.is_validated else self.training_metric
        return found if found is not None and math.isfinite(found) else None

    @property
    def is_scored(self) -> bool:
        """Whether it can be compared with other models of its run: it has a figure, and has not failed."""
        return self.state != ModelState.FAILED and self.score is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(ModelLine):
    """One configuration with its hyper-parameters and its work, which takes reading all visits.

    Attributes
    ----------
    ordinal : int
        Its place in the order in which the run got its models.
    first_epoch : int
    hyper_parameters : dict
        As the record has them, by Keras' names, with ``architecture``; of version 1.0.0, parsed from the parameters.
    state_bytes : int or None
    multiplications, size_bytes : int or None
        For a prediction of one row, and of the weights; None if they are not known.
    weights_digest : str or None
        SHA-256 of its weights, in hexadecimal.
    started_at, ended_at : float or None
        Of its first and its last visit, in seconds since 1970.
    seconds : float
        Of its visits; those of models that trained together are divided among them.
    """

    ordinal: int = 0
    first_epoch: int
    hyper_parameters: HyperParameters
    state_bytes: int | None
    weights_digest: str | None
    started_at: float | None = None
    ended_at: float | None = None
    seconds: float
    multiplications: int | None = None
    size_bytes: int | None = None


_M = TypeVar("_M", bound=ModelLine)


def best_model(models: Iterable[_M]) -> _M | None:
    """Return the best model with a figure, in the order of the leaderboard; None before there are figures."""
    return next((model for model in in_order(models) if model.is_scored), None)


def in_order(models: Iterable[_M]) -> list[_M]:
    """Return models in the order of the leaderboard."""
    return sorted(models, key=lambda model: (model.rank, model.mst_key))


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Models that failed or were stopped for the same reason; ``mst_keys`` has the first ones of ``n_models``."""

    state: str
    reason: str
    n_models: int
    mst_keys: tuple[int, ...]


#: Models of the leaderboard that are listed.
MAX_LISTED = 500
#: Models in figures of hyper-parameters.
MAX_SAMPLE = 500
_MAX_LINEAGE = 500
_MAX_REASONS = 100
_MAX_KEYS = 20

_MODELS = f"""
SELECT {BOARD}, m.first_epoch, m.hyper_parameters::pg_catalog.text, m.ordinal, m.state_bytes, m.weights_digest,
       m.multiplications, m.model_bytes AS size_bytes,
       v.started_at, v.ended_at, coalesce(v.seconds, 0) AS seconds
FROM madlib_mop.leaderboard l
JOIN madlib_mop.model m ON m.run_id = l.run_id AND m.mst_key = l.mst_key
LEFT JOIN (SELECT x.mst_key, EXTRACT(epoch FROM min(x.started_at))::pg_catalog.float8 AS started_at,
                  EXTRACT(epoch FROM max(x.ended_at))::pg_catalog.float8 AS ended_at, {SECONDS_OF_VISITS} AS seconds
           FROM madlib_mop.visit x WHERE x.run_id = $1::pg_catalog.int8 GROUP BY x.mst_key) v ON v.mst_key = l.mst_key
WHERE l.run_id = $1::pg_catalog.int8 AND ($2::pg_catalog.int8 IS NULL OR l.rank <= $2::pg_catalog.int8
    OR l.rank % $3::pg_catalog.int8 = 0)
ORDER BY l.rank, l.mst_key
"""
_FAILURES = """
SELECT x.state, x.reason, count(*) AS n, (array_agg(x.mst_key ORDER BY x.mst_key))[1:$2::pg_catalog.int4] AS keys
FROM (SELECT m.state, m.mst_key, coalesce(m.state_detail, 'No reason was recorded.') AS reason FROM madlib_mop.model m
      WHERE m.run_id = $1::pg_catalog.int8 AND m.state IN ('failed', 'stopped')) x
GROUP BY x.state, x.reason ORDER BY x.state, count(*) DESC, min(x.mst_key) LIMIT $3::pg_catalog.int8
"""
_ARCHITECTURES = """
SELECT a.model_id, a.n, (SELECT m.model_arch::pg_catalog.text FROM madlib_mop.model m
                         WHERE m.run_id = $1::pg_catalog.int8 AND m.mst_key = a.mst_key) AS arch
FROM (SELECT m.model_id, min(m.mst_key) AS mst_key, count(*) AS n FROM madlib_mop.model m
      WHERE m.run_id = $1::pg_catalog.int8 GROUP BY m.model_id ORDER BY m.model_id LIMIT 100) a ORDER BY a.model_id
"""
_LINEAGE = """
SELECT x.*, count(*) OVER () AS n FROM (
    SELECT 'clone' AS kind, m.mst_key, (m.cloned_from ->> 'mst_key')::pg_catalog.int4 AS from_key,
           (m.cloned_from ->> 'epoch')::pg_catalog.int4 AS epoch,
           (m.cloned_from ->> 'position')::pg_catalog.int4 AS position,
           NULL::pg_catalog.text AS origin,
           EXTRACT(epoch FROM c.settled_at - r.created_at)::pg_catalog.float8 AS at_s, 0 AS place
    FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
    LEFT JOIN madlib_mop.change c ON c.run_id = m.run_id AND c.change_id = m.command_id
    WHERE m.run_id = $1::pg_catalog.int8 AND m.cloned_from IS NOT NULL
    UNION ALL
    SELECT 'exploit', (c.work ->> 'mst_key')::pg_catalog.int4, (c.work ->> 'source')::pg_catalog.int4,
           s.epoch, NULL, NULL,
           EXTRACT(epoch FROM e.at - r.created_at)::pg_catalog.float8, 1
    FROM madlib_mop.change c JOIN madlib_mop.run r ON r.run_id = c.run_id
    JOIN madlib_mop.search_event e ON e.run_id = c.run_id AND e.ordinal = c.event
    LEFT JOIN LATERAL (SELECT max(b.epoch) AS epoch FROM madlib_mop.search_event b
                       WHERE b.run_id = e.run_id AND b.ordinal <= e.ordinal AND b.event = 'result'
                             AND b.mst_key = (c.work ->> 'source')::pg_catalog.int4) s ON true
    WHERE c.run_id = $1::pg_catalog.int8 AND c.change = 'exploit'
    UNION ALL
    SELECT 'warm start', m.mst_key, NULL, m.first_epoch - 1, NULL, 'run ' || r.parent_run_id, NULL, 2
    FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
    WHERE m.run_id = $1::pg_catalog.int8 AND r.warm_start AND m.first_epoch > 1 AND m.cloned_from IS NULL
    UNION ALL
    SELECT 'start weights', m.mst_key, NULL, NULL, NULL, m.start_weights, NULL, 3
    FROM madlib_mop.model m WHERE m.run_id = $1::pg_catalog.int8 AND m.start_weights IS NOT NULL
) x ORDER BY x.place, x.at_s NULLS FIRST, x.mst_key LIMIT $2::pg_catalog.int8
"""


def read_all_models(reader: FactsReader, run_id: int) -> tuple[ModelFacts, ...]:
    """Return all models of a run, in the order in which the run got them."""
    found = map(_model, reader.rows(_MODELS, run_id, None, None))
    return tuple(sorted(found, key=lambda model: (model.ordinal, model.mst_key)))


def read_models(
    reader: FactsReader, run_id: int, n_models: int
) -> tuple[tuple[ModelFacts, ...], tuple[ModelFacts, ...]]:
    """Return the first models of the leaderboard, and an even choice over all ranks for figures.

    Both are all models if there are few.
    """
    step = max(1, -(-n_models // MAX_SAMPLE))
    found = [_model(row) for row in reader.rows(_MODELS, run_id, MAX_LISTED, step)]
    listed = tuple(model for model in found if model.rank <= MAX_LISTED)
    return listed, tuple(model for model in found if model.rank % step == 0 or model.rank == 1)


def _model(row: dict[str, Any]) -> ModelFacts:
    recorded = json.loads(row["hyper_parameters"])
    found = hyper_parameters(recorded, row["model_id"], row["compile_params"], row["fit_params"])
    return ModelFacts(**{**row, "hyper_parameters": found})


def read_failures(reader: FactsReader, run_id: int) -> tuple[FailureGroup, ...]:
    """Return why models failed or were stopped, the most frequent reason first."""
    rows = reader.rows(_FAILURES, run_id, _MAX_KEYS, _MAX_REASONS)
    return tuple(FailureGroup(r["state"], r["reason"], int(r["n"]), tuple(r["keys"])) for r in rows)


def read_architectures(reader: FactsReader, run_id: int) -> tuple[Architecture, ...]:
    """Return the networks of a run, at most 100."""
    rows = reader.rows(_ARCHITECTURES, run_id)
    return tuple(Architecture(r["model_id"], layers_in_words(json.loads(r["arch"])), int(r["n"])) for r in rows)


def read_lineage(reader: FactsReader, run_id: int) -> tuple[tuple[Lineage, ...], int]:
    """Return where weights came from, at most 500 origins, and how many there are."""
    rows = reader.rows(_LINEAGE, run_id, _MAX_LINEAGE)
    names = ("kind", "mst_key", "from_key", "epoch", "position", "origin", "at_s")
    return tuple(Lineage(**{n: row[n] for n in names}) for row in rows), int(rows[0]["n"]) if rows else 0


def hyper_parameters(
    recorded: Mapping[str, Any], model_id: int, compile_params: str, fit_params: str | None
) -> HyperParameters:
    """Return the hyper-parameters of a model by Keras' names, with ``architecture``.

    Parameters
    ----------
    recorded : mapping of str to (int, float, bool or str)
        The column ``hyper_parameters`` of the model. It is empty for models of version 1.0.0: their texts are parsed.
    model_id : int
        The number of the model's network.
    compile_params, fit_params : str
        A text that cannot be parsed, such as that of a custom function, is one parameter as it is.
    """
    found = recorded or {"architecture": model_id, **_parsed(model_id, compile_params, fit_params)}
    return {str(name): _plain(value) for name, value in found.items()}


def _parsed(model_id: int, compile_params: str, fit_params: str | None) -> Mapping[str, Any]:
    from madlib_mop.models.configuration import Configuration  # only for models of version 1.0.0

    try:
        return Configuration(model_id, compile_params, fit_params or "", {}).hyper_parameters
    except MopError:
        return {"compile_params": compile_params, **({"fit_params": fit_params} if fit_params else {})}


def _plain(value: Any) -> Value:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)
