"""Measures what tasks cost, by trainers that make visits of rows of zeros; nothing is written, no row is read.

As many trainers as the run keeps busy make the same visits at the same time: beside others, each is slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from mop_backend.frames import Blob, Frame, Header
from mop_backend.messages import EvaluateRequest, ModelStart, TrainRequest, as_request

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.estimates.costs import Measured, Work, rough_costs
from madlib_mop.driver.inference.trainer import LocalTrainer, TrainerLate
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import MopError
from madlib_mop.schedule.forecast.one_server import UnitCosts

#: A request that takes longer ends the probe, with its trainers. Their start may load the backend of Keras.
_LONGEST_REQUEST_S, _START_WITHIN_S = 6.0, 60.0
_MOST_TRAINERS = 8
#: The longer visits of a probe take about so long.
_LONG_VISIT_S, _MOST_LONGER = 0.15, 12.0
_FEW_BATCHES, _MOST_BYTES = 2, 32 << 20
_LEAST_S = 1e-9


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
    n_trainers: int,
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
    n_trainers : int
        How many compute at once.
    seconds : float
        No unit is begun after that.
    """
    found: list[Measured] = []
    try:
        with ExitStack() as stack:
            n_probed = max(1, min(n_trainers, _MOST_TRAINERS))
            trainers = [stack.enter_context(LocalTrainer(session, start=dict(start))) for _ in range(n_probed)]
            probing = _Probing(trainers, packed, _element_bytes(session, packed), n_rows)
            for trainer in trainers:
                trainer.ask({"op": "stats"}, at_most_s=_START_WITHIN_S)
            until = time.monotonic() + seconds
            for unit in units:
                began = time.monotonic()
                if found and began + (began - until + seconds) / len(found) > until:
                    break
                found.append(probing.measure(unit, until))
    except (MopError, TrainerLate):
        pass  # what was measured counts; the run itself reports errors of a model
    return found


class _Probing:
    """The visits of trainers that each make the same ones.

    Parameters
    ----------
    trainers : sequence of LocalTrainer
    packed : PackedTable
    element_bytes : sequence of int
        The bytes of a number of each column.
    n_rows : int
        Of a shard.
    """

    def __init__(
        self, trainers: Sequence[LocalTrainer], packed: PackedTable, element_bytes: Sequence[int], n_rows: int
    ):
        self._trainers = trainers
        self._packed = packed
        self._element_bytes = element_bytes
        self._n_rows = n_rows
        self._row_bytes = sum(prod(shape) * each for shape, each in zip(packed.shapes, element_bytes, strict=True))
        self._loaded: set[str] = set()

    def measure(self, unit: ProbedUnit, until: float) -> Measured:
        """Measure the costs of one unit. Raises MopError, TrainerLate."""
        work = unit.work
        few = self._shard(work, _FEW_BATCHES)
        first_s, states = self._train(unit, few)
        short_s, states = self._train(unit, few, states)
        many, long_s = few, short_s
        while many.n_rows < self._n_rows and long_s < _LONG_VISIT_S / 2 and time.monotonic() < until:
            more = self._longer(work, many, long_s)
            if more.n_rows == many.n_rows:
                break
            many = more
            long_s, states = self._train(unit, many, states)
        if many is few:  # the shards of the run have a batch or two
            many = self._shard(work, 2 * _FEW_BATCHES)
            long_s, states = self._train(unit, many, states)
        features_row_s = 0.0
        if work.is_frozen:  # in the last visit, the output of frozen layers was computed for a new shard
            new_s = long_s
            long_s, states = self._train(unit, many, states)
            features_row_s = max(0.0, new_s - long_s) / many.n_rows
        row_s = max(_LEAST_S, (long_s - short_s) / (many.n_rows - few.n_rows))
        other_s, _ = self._train(unit, few, key=1)  # another model of the graph, which has to be drawn
        rough = rough_costs(work)
        costs = {
            "trace_s": max(_LEAST_S, first_s - short_s),
            "begin_s": max(_LEAST_S, other_s - short_s),
            "visit_s": max(_LEAST_S, short_s - few.n_rows * row_s),
            "row_s": row_s,
            "features_row_s": features_row_s,
        }
        has_evaluation = time.monotonic() < until
        if has_evaluation:
            traced_s, one_s, two_s = (self._evaluate(unit, shard, states) for shard in (few, few, many))
            each_s = max(_LEAST_S, (two_s - one_s) / (many.n_rows - few.n_rows))
            costs |= {
                "evaluation_trace_s": max(_LEAST_S, traced_s - one_s),
                "evaluation_s": max(_LEAST_S, one_s - few.n_rows * each_s),
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
        seconds, (answer, parts) = self._ask(as_request(TrainRequest(members, shard.name, 1, 0)), blobs)
        rest = iter(parts)
        found = [[next(rest) for _ in range(member["n_blobs"])] for member in filter(None, answer["members"])]
        return seconds, found

    def _evaluate(self, unit: ProbedUnit, shard: _Zeros, states: Sequence[Sequence[Blob]]) -> float:
        members, blobs = _members(unit, states, 0)
        seconds, _ = self._ask(as_request(EvaluateRequest(members, shard.name)), blobs)
        return seconds

    def _ask(self, request: Header, blobs: Sequence[Blob]) -> tuple[float, Frame]:
        """Send a request to all trainers; return the mean of their seconds, and one answer."""
        began = time.monotonic()
        for trainer in self._trainers:
            trainer.post(request, blobs)
        answers, seconds = [], 0.0
        for trainer in self._trainers:
            answers.append(trainer.collect(at_most_s=_LONGEST_REQUEST_S))
            seconds += time.monotonic() - began
        return seconds / len(answers), answers[0]

    def _longer(self, work: Work, shard: _Zeros, seconds: float) -> _Zeros:
        """Return a shard of more rows, up to those of the run's: so many that a visit should take the time wanted, but
        not at once, as a short visit takes most of its time for other things than its rows."""
        n_batches = -(-shard.n_rows // work.batch_size)
        factor = min(_MOST_LONGER, max(2.0, _LONG_VISIT_S / max(_LEAST_S, seconds)))
        most = max(2, -(-self._n_rows // work.batch_size))
        return self._shard(work, min(most, int(n_batches * factor)))

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
        shapes = [[shard.n_rows, *shape] for shape in packed.shapes]
        blobs = [bytes(prod(shape) * each) for shape, each in zip(shapes, self._element_bytes, strict=True)]
        for trainer in self._trainers:
            trainer.post({"op": "shard_begin", "shard": shard.name, **form})
            trainer.post({"op": "shard_rows", "shapes": shapes}, blobs)
            trainer.ask({"op": "shard_end", "shard": shard.name}, at_most_s=_LONGEST_REQUEST_S)


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
    names: dict[str, Identifier] = {}
    items = []
    for number, column in enumerate(packed.columns):
        names |= {f"b{number}": Identifier(column), f"s{number}": Identifier(f"{column}_shape")}
        items.append(f"pg_catalog.octet_length({{b{number}}}) AS b{number}, {{s{number}}} AS s{number}")
    query = statement(f"SELECT {', '.join(items)} FROM {{packed}} LIMIT 1", packed=packed.relation, **names)
    rows = session.execute(query)
    if not rows:
        return [4] * len(packed.columns)
    return [rows[0][f"b{n}"] // max(1, prod(rows[0][f"s{n}"])) for n in range(len(packed.columns))]
