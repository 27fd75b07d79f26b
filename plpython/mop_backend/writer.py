"""A writer session: sends a model's state to its segment's trainer, and commits the result.

The driver calls `open_writer` once and then `do` for every visit. Each call is one statement in autocommit, and so one
transaction: what a visit writes is committed when its call returns, or not at all. The trainer is behind a channel
(channels.py): a child of this backend, or at the host where the segment is. The session is logged in as the server's
own user, as the driver's catalog session is, and touches no relation of users: their rows are read by a reader session
(shards.py) and come through a socket (rows.py). So no code of users runs here.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

import plpy

from mop_backend import averaging
from mop_backend.channels import HostLost, HostRefused, Local, Remote, place_of
from mop_backend.dispatch import Dispatch
from mop_backend.frames import BlobsInTurn, ChainedBlobs, Check, Header, SomeBlob, lengths_of, of_answers
from mop_backend.host_states import Away, Gone, HostStates, is_at_host
from mop_backend.interrupts import Interrupts
from mop_backend.messages import (
    Answer,
    AverageCommitted,
    AverageStates,
    BadMessage,
    CommittedVisit,
    ComputeMetrics,
    DescribeState,
    Died,
    Done,
    Evaluate,
    Evaluated,
    EvaluatedMember,
    EvaluatedMembers,
    EvaluatedShard,
    EvaluateRequest,
    Failed,
    FailedMember,
    HostGone,
    LoadedRows,
    LoadShard,
    MetricResults,
    MetricsComputed,
    MetricsRequest,
    ModelStart,
    NeedsRows,
    Order,
    ReleaseTrainer,
    ShardLoaded,
    ShardName,
    SqlFailed,
    StartTrainer,
    StateAway,
    StateDescription,
    StateGone,
    StateWrite,
    Train,
    TrainedMember,
    TrainedMembers,
    TrainRequest,
    Unread,
    VisitsCommitted,
    as_request,
    as_text,
    of_answer,
    read_order,
)
from mop_backend.process import ChildDied, backend_of, use_of
from mop_backend.record import LaterStatement, RunRecord
from mop_backend.refusals import (
    STATE_DAMAGED,
    CutShort,
    Refused,
    check_digest,
    checked,
    damaged,
    readable,
    reason_of,
    with_way_out,
)
from mop_backend.rows import RowsLost
from mop_backend.segment_states import SegmentStates
from mop_backend.shard_file import open_shard_file
from mop_backend.shards import with_sample
from mop_backend.states import LARGE_BYTES, NewStates, States, Trainer, is_large

_Answer = TypeVar("_Answer")
_Blobs = TypeVar("_Blobs")
_STEADY_LAPS = ("state_in_s", "compute_s", "state_out_s")
#: A state has at most the larger of these: so many bytes; so many times those of the one before, because a copy for
#: another optimizer gets more variables. The first one of a model that is kept here can have any size.
_SMALL_STATE, _MOST_GROWTH = 64 << 20, 4
_TOO_LARGE = "its states are larger than they can be"
_MOST_S = 1e9  # sums of such times are numbers, and so are their quotients by the number of places
_NOW = "select pg_catalog.clock_timestamp()::text as t"
_LATER = "select greatest($1, least($1 + $2 * interval '1 s', $3))::text as t"
_IS_SUPERUSER = "select rolsuper from pg_catalog.pg_roles where rolname = session_user"

_writer: Writer | None = None


def open_writer(run_id: int, segment_id: int) -> str:
    """Make this session the writer of a run's segment and start its trainer, without waiting for TensorFlow.

    Raises
    ------
    plpy.Error
        42501, if this session is not a superuser's, or a writer already.
    """
    global _writer
    if not plpy.execute(_IS_SUPERUSER)[0]["rolsuper"]:  # defence: writer-of-superusers
        plpy.error(
            "this session has no right to write the record; only the driver uses this function", sqlstate="42501"
        )
    if _writer is not None:
        plpy.error("this session is already a writer; only the driver uses this function", sqlstate="42501")
    _writer = Writer(run_id, segment_id)
    return "open"


def do(order: str) -> str:
    """Run one order of the driver, and return the answer, both as texts of `mop_backend.messages`."""
    if _writer is None:
        plpy.error("this session is not a writer; only the driver uses this function", sqlstate="42501")
    return as_text(_writer.do(read_order(order)))


def step(order: str) -> str:
    """Run one order as `do`; return JSON, ``{"answer", "statements"}``: what is to be executed to complete it.

    Each statement is ``[text, part]``; see `mop_backend.record.LaterStatement`.
    """
    if _writer is None:
        plpy.error("this session is not a writer; only the driver uses this function", sqlstate="42501")
    answer, statements = _writer.step(read_order(order))
    return json.dumps({"answer": as_text(answer), "statements": statements})


def part(number: int) -> bytes:
    """Return the value that belongs to a statement of `step`."""
    if _writer is None:
        plpy.error("this session is not a writer; only the driver uses this function", sqlstate="42501")
    return _writer.part(number)


class Writer:
    """The session of one segment.

    Parameters
    ----------
    run_id, segment_id : int
    """

    def __init__(self, run_id: int, segment_id: int):
        self._run_id = run_id
        self._segment_id = segment_id
        self._record = RunRecord(run_id)
        self._child: Local | Remote | Dispatch | None = None
        self._ready = False  # whether the trainer has reported that it is ready
        self._shards: set[str] = set()
        self._fingerprints: dict[str, str] = {}  # of shards that were loaded
        # The shard that was loaded last: available for one order, even if it is too large for the cache.
        self._fresh: str | None = None
        self._begun_at: str | None = None  # when the visit of the next order has begun, if its rows were arriving
        answer = self._record.plan()
        self._plan = with_sample(answer["plan"])
        self._seed, self._created = answer["seed"], answer["created"]
        self._custom = self._record.custom_functions()
        self._owner = answer["owner"]
        self._place = place_of(self._plan["training"], segment_id)
        self._server: str | None = None if self._place is None else self._place.get("server")
        self._states = self._states_of_run()
        # the first order connects to a host, so that its answer has the error
        if self._place is None or "key" in self._place:
            self._start()

    def close(self) -> None:
        """End the trainer, and what brings its states."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._states.close()

    def step(self, order: Order) -> tuple[Answer, list[LaterStatement]]:
        """Run one order as `do`; return the statements that complete it too."""
        self._states.drop_statements()
        answer = self.do(order)
        return answer, self._states.take_statements() if isinstance(answer, Done) else []

    def part(self, number: int) -> bytes:
        """Return the value that belongs to a statement of `step`, once."""
        return self._states.take_part(number)

    def do(self, order: Order) -> Answer:
        """Run one order of the driver. An answer other than `Done` left nothing behind in the tables."""
        try:
            return self._attempt(order)
        except ChildDied as death:
            self._forget_trainer()
            return Died(death.returncode, death.stderr)
        except BadMessage as reason:  # nothing that this trainer may still send is read
            self._forget_trainer()
            message = f"the trainer's answer is malformed: {reason}"
            return Failed({"sqlstate": "XX000", "message": message, "hint": None}, "internal")
        except Away as away:
            return StateAway(away.server, away.message)
        except Gone as gone:
            return StateGone(gone.server, gone.mst_keys)
        except HostLost as loss:
            self._forget_trainer()
            assert self._place is not None, "what this server has itself is at no host"
            return HostGone(self._place["server"], str(loss))
        except HostRefused as refusal:
            self._forget_trainer()
            return SqlFailed(refusal.error)
        except RowsLost as loss:
            self._forget_trainer()
            return Unread({"sqlstate": "08006", "message": str(loss), "hint": None})
        except Refused as refusal:
            if isinstance(refusal, CutShort):
                self._forget_trainer()
            error, mst_key = refusal.error, _only_model(order)
            return Failed(error if mst_key is None else with_way_out(error, self._run_id, mst_key), refusal.kind)
        except BaseException:
            self._forget_trainer()
            raise

    def _attempt(self, order: Order) -> Answer:
        if isinstance(order, ReleaseTrainer):
            return self._release(order.seconds)
        if self._child is None or not self._child.alive:
            self._forget_trainer()
            self._start()
        self._await_start()
        if isinstance(order, StartTrainer):
            return Done(self._versions)
        if isinstance(order, AverageStates):
            return self._average(order)
        if isinstance(order, LoadShard):
            return self._load(order)
        if isinstance(order, Train) and order.sample is not None:
            sample = ShardName("sample", order.sample)
            if sample.key not in self._shards:
                return self._lack(sample)
        wanted = order.shards if isinstance(order, Evaluate) else (order.shard,)
        present = [shard for shard in wanted if shard.key in self._shards or shard.key == self._fresh]
        self._fresh = None
        if not present:
            return self._lack(wanted[0])
        if isinstance(order, ComputeMetrics):
            return self._compute_metrics(order)
        if isinstance(order, Evaluate):
            return self._evaluate(order, present)
        return self._train(order)

    def _await_start(self) -> None:
        """Wait until the trainer is ready for its first request."""
        if not self._ready:
            try:
                self._versions, _ = checked(self._trainer.receive())
            except Refused as refusal:  # an error of a setting, which would be the same for every model
                self._forget_trainer()
                raise Refused(refusal.error, "input") from None
            self._ready = True

    def _lack(self, shard: ShardName) -> NeedsRows:
        """Return the answer that the trainer lacks a shard."""
        reader = self._trainer.reader_of(self._plan[shard.data_set], shard.segment_id)
        return NeedsRows(shard, None if reader is None else {**reader})

    @property
    def _trainer(self) -> Local | Remote | Dispatch:
        assert self._child is not None, "each order starts it where it is not there"
        return self._child

    def _train(self, order: Train) -> VisitsCommitted:
        """Train the members, and keep a visit of each, or that it failed, all in this transaction."""
        begun_at, self._begun_at = self._begun_at, None
        asked_at: str = plpy.execute(_NOW)[0]["t"]
        models, request, blobs = self._request(order)
        server = self._server if all(write is None or write.slot is None for write in order.members) else None
        if self._plan.get("direct_hops"):
            self._states.let_go(self._trainer)
        new = None if server is None else self._new_states(order.members, request)
        found, parts, times = self._states.train(self._trainer, as_request(request), models, blobs, new)
        answer = of_answer(TrainedMembers, found)
        _check_members(models, answer.members)
        sizes = [trained.n_blobs for trained in answer.members if trained is not None]
        if min(sizes) < 0 or (server is None and sum(sizes) != len(lengths_of(parts))):
            raise BadMessage("its states have not the number of parts that it says")
        if server is None:
            _check_growth(models, answer.members, lengths_of(parts))
        rest = iter(parts)
        try:
            for model, trained in zip(models, answer.members, strict=True):
                if model is not None and trained is not None and trained.figures is not None:
                    check_digest(model, trained.figures)
                    _check_timing({**trained.figures.timing, **times}, len(order.members))
                    if server is not None:
                        _check_bytes(model, trained.figures.state_bytes)
        except Refused:
            deque(rest, maxlen=0)  # the trainer goes on
            raise
        timings = [trained.figures.timing for trained in answer.members if trained is not None and trained.figures]
        started_at = _started_at(begun_at, asked_at, timings)
        # Large states are read from the trainer while they are written. If it ends meanwhile, `do` returns an answer,
        # and what is written by then would be committed.
        with plpy.subtransaction() if isinstance(parts, BlobsInTurn) else nullcontext():
            committed, failed, steady_s = self._keep(order, models, answer, rest, times, started_at, server)
        detours = self._states.new_detours()
        return VisitsCommitted(self._versions, tuple(committed), tuple(failed), steady_s, detours=detours)

    def _keep(
        self,
        order: Train,
        models: Sequence[Header | None],
        answer: TrainedMembers,
        rest: Iterator[SomeBlob],
        times: Mapping[str, float],
        started_at: str,
        server: str | None,
    ) -> tuple[list[CommittedVisit], list[FailedMember], float]:
        """Keep the visits of a trainer's answer, and the failures; ``rest`` are the parts of all new states."""
        committed: list[CommittedVisit] = []
        failed: list[FailedMember] = []
        steady_s = 0.0
        for write, model, trained in zip(order.members, models, answer.members, strict=True):
            if write is None or model is None or trained is None:  # an unused place: all are None
                continue
            own = islice(rest, trained.n_blobs)
            if trained.figures is None:
                deque(own, maxlen=0)
                error = readable({"error": trained.error})["error"]  # defence: readable-error = trained.error
                error = with_way_out(error, self._run_id, write.mst_key)
                failed.append(FailedMember(write.mst_key, reason_of(error, order.place)))
                self._record.fail_member(model, failed[-1].reason)
                continue
            # The new state, the visit row and the model row. The statement in which the driver has called `do` commits
            # them when it returns (`madlib_mop/driver/running/segment_sessions.py`); nothing is committed before.
            state_bytes = trained.figures.state_bytes
            if server is None:
                state_bytes = self._states.put(write, own, order.shard.segment_id if order.is_staged else None)
            figures = replace(trained.figures, timing={**trained.figures.timing, **times})
            self._record.keep(order, write, model, figures, state_bytes, started_at, self._segment_id, server)
            committed.append(CommittedVisit(write.mst_key, trained.figures.digest_out, state_bytes, server))
            steady_s += sum(trained.figures.timing.get(lap, 0.0) for lap in _STEADY_LAPS)
        return committed, failed, steady_s

    def _request(self, order: Train) -> tuple[list[Header | None], TrainRequest, BlobsInTurn[SomeBlob]]:
        """Return, for each place, the model's row or None; the request for their visit, and its blobs."""
        keys = [None if write is None else write.mst_key for write in order.members]
        models, members, blobs = self._members(keys, again_from=order.again_from)
        sample = None if order.sample is None else ShardName("sample", order.sample).key
        return models, TrainRequest(members, order.shard.key, order.epoch, order.shard.segment_id, sample), blobs

    def _new_states(self, writes: Sequence[StateWrite | None], request: TrainRequest) -> NewStates:
        """Return what is said of the states of a visit that stay at the segment's host."""
        shards = [request.shard] if request.sample is None else [request.shard, request.sample]
        origin = [self._created, *(self._fingerprints.get(shard) for shard in shards)]
        return NewStates([None if write is None else (write.mst_key, write.version) for write in writes], origin)

    def _states_of_run(self) -> States:
        """Return what knows where the states of this run are."""
        if self._place is not None and "key" in self._place:
            keys = {shard["segment_id"]: shard["place"]["key"] for shard in self._plan["training"]["segments"]}
            return SegmentStates(self._record, self._run_id, self._segment_id, keys)
        return HostStates(self._record, self._run_id, self._server, self._connect)

    def _connect(self, server: str, check_time: Check | None = None) -> Remote:
        """Return a relay to a host of the run."""
        interrupts = Interrupts()

        def check() -> None:
            interrupts()
            if check_time is not None:
                check_time()

        return Remote(check, server, self._record.host_access(server), self._run_id)

    def _evaluate(self, order: Evaluate, present: Sequence[ShardName]) -> Evaluated:
        """Evaluate the members on those of the order's shards that the trainer has.

        Nothing is written here, so the answer has the times of beginning and end.
        """
        started_at = time.time()
        models, members, blobs = self._members(order.members, is_forward=True)
        evaluated = []
        for shard in present:
            request = as_request(EvaluateRequest(members, shard.key))
            answer = of_answer(EvaluatedMembers, self._states.evaluate(self._trainer, request, models, blobs))
            _check_members(models, answer.members)
            for own in filter(None, answer.members):
                _check_timing(own.timing, len(order.members))
            figures = zip(order.members, answer.members, strict=True)
            found = tuple(EvaluatedMember(key, own) for key, own in figures if key is not None and own is not None)
            ended_at = time.time()
            evaluated.append(EvaluatedShard(shard, started_at, ended_at, found))
            started_at = ended_at
        return Evaluated(self._versions, tuple(evaluated), detours=self._states.new_detours())

    def _compute_metrics(self, order: ComputeMetrics) -> MetricsComputed:
        """Compute a model's metrics from the sums of all shards' evaluations, by data set."""
        model = self._asked(self._record.model(order.mst_key))
        request = MetricsRequest(model, order.shard.key, tuple(order.sums.values()))
        answer, _ = _read(self._trainer.ask(as_request(request)), MetricResults)
        if len(answer.results) != len(order.sums):
            raise BadMessage("its metrics are not those of all data sets")
        return MetricsComputed(self._versions, dict(zip(order.sums, answer.results, strict=True)))

    def _members(
        self, mst_keys: Sequence[int | None], is_forward: bool = False, again_from: int | None = None
    ) -> tuple[list[Header | None], tuple[ModelStart | None, ...], BlobsInTurn[SomeBlob]]:
        """Return, for each place, the model's row and its part of a request, or None; and all blobs."""
        read = self._record.model
        if again_from is not None:
            read = partial(self._record.model_at, version=again_from)
        models = [None if mst_key is None else read(mst_key) for mst_key in mst_keys]
        n_parts = [model["forward_parts"] if model is not None and is_forward else None for model in models]
        members: list[ModelStart | None] = []
        blobs: list[Iterable[SomeBlob]] = []
        for model, parts in zip(models, self._states.bring(models, n_parts), strict=True):
            if model is None:
                members.append(None)
                continue
            start, own = self._start_of(model, parts)
            members.append(start)
            blobs.append(own)
        return models, tuple(members), ChainedBlobs(blobs)

    def _start_of(self, model: Header, parts: Iterable[SomeBlob]) -> tuple[ModelStart, Iterable[SomeBlob]]:
        """Return a model's part of a request, with its start, and its blobs: parts of its state, or weights."""
        has_state = bool(lengths_of(parts))
        has_weights = model["digest"] is None and model["has_weights"]
        if has_weights:
            parts = [self._record.start_weights(model["mst_key"])]
        start = ModelStart(
            model=self._asked(model),
            n_blobs=len(lengths_of(parts)),
            has_state=has_state,
            has_weights=has_weights,
            digest=model["digest"],
            weights_digest=model["weights_digest"],
            taken_over=_unchanged_copy(model),
            begins=model["state_version"] == 0,  # the state of a warm start, perhaps one of another backend
        )
        return start, parts

    def _asked(self, model: Header) -> Header:
        """Return a model's part of a request."""
        names = ("arch", "compile_params", "fit_params")
        seeds = {"seed": self._seed, "mst_key": model["seed_key"]}
        return {**{name: model[name] for name in names}, **seeds, "custom": self._custom}

    def _average(self, order: AverageStates) -> AverageCommitted:
        """Average the segments' states of an iteration, part by part, and commit it as the newest state."""
        for segment_id, recorded in self._record.staged_digests(order).items():
            digest = hashlib.sha256()
            for staged in self._record.staged_state(order, segment_id):
                digest.update(staged)
            if digest.hexdigest() != recorded:
                raise damaged(f"what segment {segment_id} has trained: {STATE_DAMAGED}")
        parts: list[bytes] = []
        own = self._trainer
        try:
            with averaging.with_trainer(own if own.averages else None) as trainer:
                while True:
                    part = self._record.average_part(order, len(parts))
                    if part is None:
                        break
                    parts.append(part)
                described, _ = _read(trainer().ask(as_request(DescribeState()), parts), StateDescription)
        except plpy.SPIError:
            if not own.averages or own.alive:
                raise
            raise own.death() from None
        state_bytes = self._states.put(order.write, parts)
        self._record.keep_average(order, described, state_bytes)
        return AverageCommitted(self._versions, described.digest, state_bytes)

    def _load(self, order: LoadShard) -> ShardLoaded:
        """Load a shard's rows into the trainer; return its figures: rows, bytes and fingerprint."""
        shard = order.shard
        source = self._plan[shard.data_set]
        # some may be dropped for it, also if it cannot be loaded then
        self._shards, self._fresh, self._begun_at = set(), None, None
        begun_at = None if order.begin is None else self._begin(order.begin)
        loaded = self._trainer.load_shard(shard.key, source, shard.segment_id, order.reader_pid)
        rows, _ = _read(loaded, LoadedRows)
        self._shards, self._fresh = set(rows.cached_shards), shard.key
        self._fingerprints[shard.key] = rows.fingerprint
        self._begun_at = begun_at
        return ShardLoaded(self._versions, rows)

    def _begin(self, order: Train) -> str | None:
        """Let the trainer begin a visit while its rows arrive; return the time, or None if it cannot begin now.

        Nothing of it is read before the order itself comes, which is after the driver has checked the rows.
        """
        trainer: Trainer = self._trainer
        if isinstance(trainer, Dispatch):  # its process gets no other request while it loads rows
            return None
        try:
            models, request, blobs = self._request(order)
        except Refused:  # the order has the same error
            return None
        n_bytes = sum(lengths_of(blobs))
        if any(map(is_at_host, models)) or (n_bytes and isinstance(trainer, Remote)):  # states go to hosts once
            return None
        # Each part of a large state is read once: while it is sent.
        if n_bytes > LARGE_BYTES or any(is_large(model) for model in models if model is not None):
            return None
        begun_at: str = plpy.execute(_NOW)[0]["t"]
        trainer.send({**as_request(request), "op": "begin_visit"}, blobs)
        return begun_at

    def _start(self) -> None:
        """Start a trainer, with the GPU of its segment if the run uses any; its answer is read when it is needed."""
        gpus = self._plan.get("gpus") or {}
        own = [gpus.get(str(self._segment_id), 0)] if gpus else []
        start = {"op": "start", **self._plan["trainer"], "gpus": own}
        if self._place is None:
            # A trainer in which code of users runs serves this run only.
            is_own = self._custom is not None  # defence: trainers-of-one-run = False
            use = use_of(self._owner, start) if self._plan.get("trainer_idle_s") and not is_own else None
            self._child = Local(Interrupts(), own, backend_of(start), use, open_shard_file(start))
            start |= {"client": os.getpid(), **self._child.file_header}
        elif "key" in self._place:
            self._child = Dispatch(self._segment_id, self._place["key"], Interrupts())
        else:
            self._child = self._connect(self._place["server"])
        self._ready = False
        self._shards, self._fresh = set(), None
        if isinstance(self._child, Remote) and self._place is not None:
            start["share"] = self._plan.get("shares", {}).get(self._place["server"])
        self._child.send(start)

    def _release(self, seconds: float) -> Done:
        """Release the trainer to later runs, if it is idle and as good as a new one."""
        if isinstance(self._child, Local) and self._child.alive:
            self._await_start()
            answer, _ = checked(self._child.ask({"op": "reset"}))
            if answer.get("reusable") is True and self._child.release(seconds):
                self._child = None
        self._forget_trainer()
        return Done({})

    def _forget_trainer(self) -> None:
        self.close()
        self._shards, self._fresh, self._begun_at = set(), None, None


def _unchanged_copy(model: Header) -> Header | None:
    """Return how a model's newest state was taken over from another model, unless it has been trained since."""
    taken_over: Header | None = model.get("taken_over")
    return taken_over if taken_over and taken_over["version"] == model["state_version"] else None


def _only_model(order: Order) -> int | None:
    """Return the mst_key of the one model that an order is about, if that is so and it is not averaged."""
    if isinstance(order, ComputeMetrics):
        return order.mst_key
    if isinstance(order, Evaluate):
        return order.members[0] if len(order.members) == 1 else None
    if isinstance(order, Train) and len(order.members) == 1 and order.members[0] is not None:
        return order.members[0].mst_key
    return None


def _read(answer: tuple[Header, _Blobs], kind: type[_Answer]) -> tuple[_Answer, _Blobs]:
    """Return a trainer's answer as its class, and the blobs. Raises Refused and BadMessage."""
    header, blobs = checked(answer)
    return of_answer(kind, header), blobs


def _started_at(begun_at: str | None, asked_at: str, timings: Sequence[Mapping[str, float]]) -> str:
    """Return when a visit has begun; of one that began while its rows arrived, without the time of waiting for them."""
    if begun_at is None or not any("rows_s" in timing for timing in timings):
        return asked_at
    waited_s = sum(timing.get("rows_s", 0.0) for timing in timings)
    query = plpy.prepare(_LATER, ["timestamptz", "float8", "timestamptz"])
    started_at: str = plpy.execute(query, [begun_at, waited_s, asked_at])[0]["t"]
    return started_at


def _check_timing(timing: Mapping[str, float], n_places: int) -> None:
    """Raise BadMessage unless views can compute with the times of a task: every role that sees the run queries them."""
    is_right = all(abs(seconds) <= _MOST_S for seconds in timing.values()) and "trainer" not in timing
    if not is_right or timing.get("fused", n_places) != n_places:  # defence: times-of-an-answer
        raise BadMessage("its times are no times of a task")


def _check_bytes(model: Header, n_bytes: int) -> None:
    """Raise BadMessage unless a state that stays at its host is of a size that others can take from there: what they
    take is limited by the recorded one."""
    most = of_answers().blob_bytes or 0  # hosts take a state whole
    if (grown := _most_bytes(model)) is not None:
        most = min(most, grown)
    if not 0 < n_bytes <= most:  # defence: bytes-of-a-held-state
        raise BadMessage(_TOO_LARGE)


def _check_growth(
    models: Sequence[Header | None], answered: Sequence[TrainedMember | None], lengths: Sequence[int]
) -> None:
    """Raise BadMessage unless new states that are to be written here are of sizes that follow those before.

    Of a large state this session holds one part, so its memory limits only that part.
    """
    own = iter(lengths)
    for model, one in zip(models, answered, strict=True):
        n_bytes = 0 if one is None else sum(islice(own, one.n_blobs))
        most = None if model is None else _most_bytes(model)
        if most is not None and n_bytes > most:  # defence: growth-of-a-state
            raise BadMessage(_TOO_LARGE)


def _most_bytes(model: Header) -> int | None:
    """Return the most bytes of a model's next state; None before its first one."""
    if not model["state_version"] or not model["state_bytes"]:  # version 0 can be one of another backend
        return None
    return max(_SMALL_STATE, _MOST_GROWTH * int(model["state_bytes"]))


def _check_members(models: Sequence[object], answered: Sequence[object]) -> None:
    """Raise BadMessage unless a trainer has answered for the members that it was given, and for no others."""
    if [model is None for model in models] != [member is None for member in answered]:  # defence: models-of-an-answer
        raise BadMessage("it is not about the models of the request")
