"""Measures what tasks cost, by a trainer that makes visits of rows of zeros; nothing is written, no row is read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mop_backend.frames import Blob, Header
from mop_backend.messages import EvaluateRequest, ModelStart, TrainRequest, as_request

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.estimates.costs import Measured, Work, rough_costs
from madlib_mop.driver.inference.trainer import LocalTrainer, TrainerLate
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import MopError
from madlib_mop.schedule.forecast.one_server import UnitCosts

#: A request that takes longer ends the probe, with its trainer.
_LONGEST_REQUEST_S = 6.0
#: The longer visits of a probe take about so long.
_LONG_VISIT_S = 0.12
_FEW_BATCHES, _MOST_BATCHES, _MOST_BYTES = 2, 256, 32 << 20
_SHARES_LEAST = 1e-9


@dataclass(frozen=True)
class ProbedUnit:
    """A unit to probe: what decides its costs, and its models as a trainer gets them.

    ``models`` has an entry for each place of its graph; None for an unused one.
    """

    work: Work
    models: Sequence[Header | None]


def probe(
    session: CallerSession,
    packed: PackedTable,
    start: Mapping[str, object],
    units: Sequence[ProbedUnit],
    n_rows: int,
    evaluates: bool,
    seconds: float,
) -> list[Measured]:
    """Measure units, one after the other, while there is time; return what was measured.

    Parameters
    ----------
    session : CallerSession
    packed : PackedTable
        Its shapes and types; its rows are not read.
    start : mapping
        The start parameters of the run's trainers.
    units : sequence of ProbedUnit
    n_rows : int
        Of a shard.
    evaluates : bool
    seconds : float
        No unit is begun after that.
    """
    found: list[Measured] = []
    try:
        with LocalTrainer(session, start=dict(start)) as trainer:
            probing = _Probing(trainer, packed, _element_bytes(session, packed), n_rows)
            trainer.ask({"op": "stats"}, at_most_s=60.0)  # it has started
            until = time.monotonic() + seconds
            for unit in units:
                began = time.monotonic()
                if found and began + (began - until + seconds) / len(found) > until:
                    break
                found.append(probing.measure(unit, evaluates, until))
    except (MopError, TrainerLate):
        pass  # what was measured counts; the run itself reports errors of a model
    return found


class _Probing:
    """The visits of a trainer.

    Parameters
    ----------
    trainer : LocalTrainer
    packed : PackedTable
    element_bytes : sequence of int
        The bytes of a number of each column.
    n_rows : int
        Of a shard.
    """

    def __init__(self, trainer: LocalTrainer, packed: PackedTable, element_bytes: Sequence[int], n_rows: int):
        self._trainer = trainer
        self._packed = packed
        self._element_bytes = element_bytes
        self._n_rows = n_rows
        self._row_bytes = sum(prod(shape) * each for shape, each in zip(packed.shapes, element_bytes, strict=True))
        self._loaded: set[str] = set()

    def measure(self, unit: ProbedUnit, evaluates: bool, until: float) -> Measured:
        """Measure the costs of one unit. Raises MopError, TrainerLate."""
        work = unit.work
        few = self._shard(work, _FEW_BATCHES)
        first_s, states = self._train(unit, few)
        short_s, states = self._train(unit, few, states)
        batch_s = max(_SHARES_LEAST, short_s / _FEW_BATCHES)
        n_batches = max(3 * _FEW_BATCHES, min(_MOST_BATCHES, int(_LONG_VISIT_S / batch_s)))
        many = self._shard(work, n_batches)
        long_s, states = self._train(unit, many, states)
        long_s = min(long_s, self._train(unit, many, states)[0]) if long_s < _LONG_VISIT_S else long_s
        row_s = max(_SHARES_LEAST, (long_s - short_s) / (many.n_rows - few.n_rows))
        other_s, _ = self._train(unit, few, key=1)  # another model of the graph, which has to be drawn
        rough = rough_costs(work)
        costs = {
            "trace_s": max(_SHARES_LEAST, first_s - short_s),
            "begin_s": max(_SHARES_LEAST, other_s - short_s),
            "visit_s": max(_SHARES_LEAST, short_s - few.n_rows * row_s),
            "row_s": row_s,
        }
        has_evaluation = evaluates and time.monotonic() < until
        if has_evaluation:
            traced_s, one_s, two_s = (self._evaluate(unit, shard, states) for shard in (few, few, many))
            each_s = max(_SHARES_LEAST, (two_s - one_s) / (many.n_rows - few.n_rows))
            costs |= {
                "evaluation_trace_s": max(_SHARES_LEAST, traced_s - one_s),
                "evaluation_s": max(_SHARES_LEAST, one_s - few.n_rows * each_s),
                "evaluation_row_s": each_s,
            }
        else:
            names = ("evaluation_trace_s", "evaluation_s", "evaluation_row_s")
            costs |= {name: getattr(rough, name) for name in names}
        n_bytes = sum(len(part) for parts in states for part in parts)
        n_used = sum(model is not None for model in unit.models)
        measured = UnitCosts(graph=rough.graph, most_rows=work.most_rows, **costs)
        return Measured(work, measured, n_bytes * work.n_places // max(1, n_used), None, has_evaluation)

    def _train(
        self, unit: ProbedUnit, shard: _Zeros, states: Sequence[Sequence[Blob]] = (), key: int = 0
    ) -> tuple[float, list[list[Blob]]]:
        """Make a visit; return its seconds and the new states of the models."""
        members, blobs = _members(unit, states, key)
        request = as_request(TrainRequest(members, shard.name, 1, 0))
        began = time.monotonic()
        answer, parts = self._trainer.ask(request, blobs, at_most_s=_LONGEST_REQUEST_S)
        seconds = time.monotonic() - began
        rest = iter(parts)
        found = [[next(rest) for _ in range(member["n_blobs"])] for member in filter(None, answer["members"])]
        return seconds, found

    def _evaluate(self, unit: ProbedUnit, shard: _Zeros, states: Sequence[Sequence[Blob]]) -> float:
        members, blobs = _members(unit, states, 0)
        request = as_request(EvaluateRequest(members, shard.name))
        began = time.monotonic()
        self._trainer.ask(request, blobs, at_most_s=_LONGEST_REQUEST_S)
        return time.monotonic() - began

    def _shard(self, work: Work, n_batches: int) -> _Zeros:
        """Return a shard of so many batches, at least two if that is not too much memory; load it if it is new."""
        most = max(1, _MOST_BYTES // max(1, self._row_bytes) // work.batch_size)
        rest = self._n_rows % work.batch_size > 0  # whether the last batch of a shard is smaller, as in the run
        n_rows = max(1, min(n_batches, most)) * work.batch_size + rest
        shard = _Zeros(f"zeros:{n_rows}", n_rows)
        if shard.name not in self._loaded:
            self._load(shard)
            self._loaded.add(shard.name)
        return shard

    def _load(self, shard: _Zeros) -> None:
        packed = self._packed
        form = {
            "n_x": len(packed.independent), "n_y": len(packed.dependent),
            "normalizing_const": packed.normalizing_const, "index_inputs": list(packed.index_inputs),
        }  # fmt: skip
        self._trainer.post({"op": "shard_begin", "shard": shard.name, **form})
        shapes = [[shard.n_rows, *shape] for shape in packed.shapes]
        blobs = [bytes(prod(shape) * each) for shape, each in zip(shapes, self._element_bytes, strict=True)]
        self._trainer.post({"op": "shard_rows", "shapes": shapes}, blobs)
        self._trainer.ask({"op": "shard_end", "shard": shard.name}, at_most_s=_LONGEST_REQUEST_S)


@dataclass(frozen=True)
class _Zeros:
    name: str
    n_rows: int


def _members(
    unit: ProbedUnit, states: Sequence[Sequence[Blob]], key: int
) -> tuple[tuple[ModelStart | None, ...], list[Blob]]:
    """Return the models of a request, and its blobs; ``key`` is added to theirs, so they are drawn anew."""
    members: list[ModelStart | None] = []
    blobs: list[Blob] = []
    rest: Iterator[Sequence[Blob]] = iter(states)
    for number, model in enumerate(unit.models, 1):
        if model is None:
            members.append(None)
            continue
        parts = next(rest, ())
        own = {**model, "mst_key": number + key * len(unit.models)}
        members.append(ModelStart(own, n_blobs=len(parts), has_state=bool(parts)))
        blobs += parts
    return tuple(members), blobs


def _element_bytes(session: CallerSession, packed: PackedTable) -> list[int]:
    """Return the bytes of a number of each packed column, by one buffer of the table."""
    names, items = {}, []
    for number, column in enumerate(packed.columns):
        names |= {f"b{number}": Identifier(column), f"s{number}": Identifier(f"{column}_shape")}
        items.append(f"pg_catalog.octet_length({{b{number}}}) AS b{number}, {{s{number}}} AS s{number}")
    query = statement(f"SELECT {', '.join(items)} FROM {{packed}} LIMIT 1", packed=packed.relation, **names)
    rows = session.execute(query)
    if not rows:
        return [4] * len(packed.columns)
    return [rows[0][f"b{n}"] // max(1, prod(rows[0][f"s{n}"])) for n in range(len(packed.columns))]
