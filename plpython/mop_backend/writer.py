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
import time
from collections.abc import Sequence

import plpy

from mop_backend import averaging
from mop_backend.channels import HostLost, HostRefused, Local, Remote, place_of
from mop_backend.dispatch import Dispatch
from mop_backend.frames import Frame, Header
from mop_backend.interrupts import Interrupts
from mop_backend.process import ChildDied, backend_of
from mop_backend.record import RunRecord
from mop_backend.refusals import STATE_DAMAGED, Refused, check_digest, checked, damaged, reason_of, with_way_out
from mop_backend.rows import RowsLost
from mop_backend.shards import RowsSource, with_sample

_STEADY_LAPS = ("state_in_s", "compute_s", "state_out_s")
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
    if not plpy.execute(_IS_SUPERUSER)[0]["rolsuper"]:
        plpy.error(
            "this session has no right to write the record; only the driver uses this function", sqlstate="42501"
        )
    if _writer is not None:
        plpy.error("this session is already a writer; only the driver uses this function", sqlstate="42501")
    _writer = Writer(run_id, segment_id)
    return "open"


def do(task: str) -> str:
    """Run one visit, evaluation or shard load; see `Writer.do`. ``task`` is a JSON object."""
    if _writer is None:
        plpy.error("this session is not a writer; only the driver uses this function", sqlstate="42501")
    return json.dumps(_writer.do(json.loads(task)))


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
        # The shard that was loaded last: available for one task, even if it is too large for the cache.
        self._fresh: str | None = None
        answer = self._record.plan()
        self._plan = with_sample(answer["plan"])
        self._seed = answer["seed"]
        self._custom = self._record.custom_functions()
        self._place = place_of(self._plan["training"], segment_id)
        # the first task connects to a host, so that its answer has the error
        if self._place is None or "key" in self._place:
            self._start()

    def close(self) -> None:
        """End the trainer."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def do(self, task: Header) -> Header:
        """Run one task of the driver.

        Parameters
        ----------
        task : dict
            ``do``: "start" (have the trainer ready), "load", "train" or "evaluate"; ``data_set``, ``segment_id``, in a
            list ``shards`` for "evaluate"; for "load" also ``reader_pid``, the process of the reader that was told what
            the answer "load" says; for a model its ``mst_key``; for training ``sample``, the segment of the sample, if
            the model is to be evaluated on it, and ``epoch``, ``position``, ``attempt``, ``slot`` and ``version`` of
            the state to write, and ``staged`` where that state is to be averaged with other segments'. A group that is
            trained together has ``members`` in place of these, and ``place``; see `_train_fused`. One that is evaluated
            together has ``members``; see `_evaluate`. Or "average"; see `_average`. It may have ``functions``, as the
            answer may; see `Functions`.

        Returns
        -------
        dict
            ``outcome``: "done" with the figures, "load" where the trainer lacks a shard's rows (``data_set`` and
            ``segment_id`` of the shard; ``reader``: what a reader must be told, None where none is needed; the task is
            to be given again after that), "unread" where
            the reader did not hand them over, "failed" with the trainer's ``error``, "died" with the trainer's exit
            status, "host" where the segment's host is lost, or "sql" where it refused a statement, both with the
            ``error``. Whatever is not "done" left nothing behind in the tables.
        """
        try:
            return self._attempt(task)
        except ChildDied as death:
            self._forget_trainer()
            return {"outcome": "died", "status": death.returncode, "stderr": death.stderr}
        except HostLost as loss:
            self._forget_trainer()
            assert self._place is not None, "what this server has itself is at no host"
            return {"outcome": "host", "error": {"message": str(loss)}, "server": self._place["server"]}
        except HostRefused as refusal:
            self._forget_trainer()
            return {"outcome": "sql", "error": refusal.error}
        except RowsLost as loss:
            self._forget_trainer()
            return {"outcome": "unread", "error": {"sqlstate": "08006", "message": str(loss)}}
        except Refused as refusal:
            error = refusal.error
            if task["do"] != "average" and "mst_key" in task:
                error = with_way_out(error, self._run_id, task["mst_key"])
            return {"outcome": "failed", "error": error, "kind": refusal.kind}
        except BaseException:
            self._forget_trainer()
            raise

    def _attempt(self, task: Header) -> Header:
        if self._child is None or not self._child.alive:
            self._forget_trainer()
            self._start()
        if not self._ready:
            try:
                self._versions, _ = checked(self._trainer.receive())
            except Refused as refusal:  # an error of a setting, which would be the same for every model
                self._forget_trainer()
                raise Refused(refusal.error, "input") from None
            self._ready = True
        if task["do"] == "start":
            return {"outcome": "done", "versions": self._versions}
        if task["do"] == "average":
            return {"outcome": "done", "versions": self._versions, **self._average(task)}
        if "sample" in task and _shard_key("sample", task["sample"]) not in self._shards:
            return self._lack("sample", task["sample"])
        if task["do"] == "load":
            source, shard = self._plan[task["data_set"]], _shard_key(task["data_set"], task["segment_id"])
            return {"outcome": "done", "versions": self._versions, "shard": self._load(task, source, shard)}
        wanted = task.get("shards", [task])
        present = [shard for shard in wanted if self._has(shard)]
        self._fresh = None
        # a task with sums needs no rows: they were computed from rows that were read earlier
        if not present and "sums" not in task:
            return self._lack(wanted[0]["data_set"], wanted[0]["segment_id"])
        if task["do"] == "evaluate":
            return {"outcome": "done", "versions": self._versions, **self._evaluate(task, present)}
        started_at = plpy.execute("select pg_catalog.clock_timestamp()::text as t")[0]["t"]
        if "members" in task:
            return {"outcome": "done", "versions": self._versions, **self._train_fused(task, started_at)}
        model = self._record.model(task["mst_key"])
        answer, parts = self._train(task, model)
        # The new state, the visit row and the model row. The statement in which the driver has called `do` commits them
        # when it returns (`madlib_mop/driver/running/segment_sessions.py`); nothing is committed before.
        self._record.keep(task, model, answer, parts, started_at)
        return {"outcome": "done", "versions": self._versions, **answer}

    def _has(self, shard: Header) -> bool:
        """Return whether the trainer has the rows of a shard, given by ``data_set`` and ``segment_id``."""
        key = _shard_key(shard["data_set"], shard["segment_id"])
        return key in self._shards or key == self._fresh

    def _lack(self, data_set: str, segment_id: int) -> Header:
        """Return the answer that the trainer lacks a shard."""
        reader = self._trainer.reader_of(self._plan[data_set], segment_id)
        return {"outcome": "load", "data_set": data_set, "segment_id": segment_id, "reader": reader}

    @property
    def _trainer(self) -> Local | Remote | Dispatch:
        assert self._child is not None, "each task starts it where it is not there"
        return self._child

    def _train(self, task: Header, model: Header) -> Frame:
        start, parts = self._start_of(model)
        place = {name: task[name] for name in ("epoch", "segment_id")}
        request = {"op": "train", **_shards_of(task), **place, **start}
        answer, new_parts = checked(self._trainer.ask(request, parts))
        check_digest(model, answer)
        return answer, new_parts

    def _evaluate(self, task: Header, present: Sequence[Header]) -> Header:
        """Evaluate a model, or a group's members together (the mst_key of each place, or None).

        Parameters
        ----------
        task : dict
        present : sequence of dict
            ``data_set`` and ``segment_id`` of those of the task's shards that the trainer has; the driver gives the
            task again for the others.

        Returns
        -------
        dict
            ``shards``: for each one its ``data_set`` and ``segment_id`` with the trainer's figures, and the times of
            beginning and end, as nothing is written here. ``results`` for a task with sums, see `_metric_results`.
        """
        started_at = time.time()
        if "members" in task:
            _, members, blobs = self._members(task["members"], is_forward=True)
            request = {"op": "evaluate_fused", "members": members}
        else:
            model = self._record.model(task["mst_key"])
            if "sums" in task:
                return self._metric_results(task["shards"][0], model, task["sums"])
            start, blobs = self._start_of(model, model["forward_parts"])
            request = {"op": "evaluate", **start}
        evaluated: list[Header] = []
        for shard in present:
            answer, _ = checked(self._trainer.ask({**request, "shard": _shard_key(**shard)}, blobs))
            for mst_key, member in zip(task.get("members", ()), answer.get("members", ()), strict=True):
                if member is not None:
                    member["mst_key"] = mst_key
            ended_at = time.time()
            evaluated.append({**answer, **shard, "started_at": started_at, "ended_at": ended_at})
            started_at = ended_at
        return {"shards": evaluated}

    def _metric_results(self, shard: Header, model: Header, sums: Header) -> Header:
        """Compute a model's metrics from the sums of all shards' evaluations, by data set; ``shard`` is one of them."""
        request = {"op": "metric_results", "shard": _shard_key(**shard), "model": self._asked(model)}
        answer, _ = checked(self._trainer.ask({**request, "sums": list(sums.values())}))
        return {"results": dict(zip(sums, answer["results"], strict=True))}

    def _members(
        self, mst_keys: Sequence[int | None], is_forward: bool = False
    ) -> tuple[list[Header | None], list[Header | None], list[bytes]]:
        """Return, for each place of a group, the model's row and its part of a request, or None; and all blobs."""
        models: list[Header | None] = []
        members: list[Header | None] = []
        blobs: list[bytes] = []
        for mst_key in mst_keys:
            model = self._record.model(mst_key) if mst_key is not None else None
            models.append(model)
            if model is None:
                members.append(None)
                continue
            start, parts = self._start_of(model, model["forward_parts"] if is_forward else None)
            members.append({**start, "n_blobs": len(parts)})
            blobs += parts
        return models, members, blobs

    def _start_of(self, model: Header, n_parts: int | None = None) -> tuple[Header, list[bytes]]:
        """Return a model's part of a request, with its start, and its blobs."""
        parts = self._record.state(model, n_parts)
        weights = [] if parts or not model["has_weights"] else [self._record.start_weights(model["mst_key"])]
        start = {
            "model": self._asked(model),
            "has_state": bool(parts),
            "digest": model["digest"],
            "weights_digest": model["weights_digest"],
            "has_weights": bool(weights),
            "taken_over": _unchanged_copy(model),
            "begins": model["state_version"] == 0,  # the state of a warm start, perhaps one of another backend
        }
        return start, parts or weights

    def _asked(self, model: Header) -> Header:
        """Return a model's part of a request."""
        names = ("arch", "compile_params", "fit_params")
        seeds = {"seed": self._seed, "mst_key": model["seed_key"]}
        return {**{name: model[name] for name in names}, **seeds, "custom": self._custom}

    def _train_fused(self, task: Header, started_at: str) -> Header:
        """Train a group of models together and keep a visit of each, or that it failed, all in this transaction.

        Parameters
        ----------
        task : dict
            ``members``: for each place of the group ``mst_key``, ``slot`` and ``version``, or None where the member has
            failed before. ``place`` says where the visit is, for the reason of one that fails now.
        started_at : str

        Returns
        -------
        dict
            ``members``: for each place ``mst_key`` with ``digest_out`` and ``state_bytes``, or with ``failed``, the
            reason; or None. ``timing`` has what the visit took for all of them, without what is paid once.
        """
        models, members, blobs = self._members([member and member["mst_key"] for member in task["members"]])
        place = {name: task[name] for name in ("epoch", "segment_id")}
        request = {"op": "train_fused", **_shards_of(task), **place}
        answer, parts = checked(self._trainer.ask({**request, "members": members}, blobs))
        outcomes: list[Header | None] = []
        timing: dict[str, float] = {}
        for member, model, trained in zip(task["members"], models, answer["members"], strict=True):
            if trained is None:
                outcomes.append(None)
                continue
            assert model is not None, "the trainer answers for members that it was given"
            outcome = {"mst_key": model["mst_key"]}
            outcomes.append(outcome)
            if "error" in trained:
                error = with_way_out(trained["error"], self._run_id, model["mst_key"])
                outcome["failed"] = reason_of(error, task["place"])
                self._record.fail_member(model, outcome["failed"])
                continue
            check_digest(model, trained)
            own, parts = parts[: trained["n_blobs"]], parts[trained["n_blobs"] :]
            self._record.keep({**task, **member}, model, trained, own, started_at)
            outcome.update({name: trained[name] for name in ("digest_out", "state_bytes")})
            for lap in _STEADY_LAPS:
                timing[lap] = timing.get(lap, 0.0) + trained["timing"][lap]
        return {"members": outcomes, "timing": timing}

    def _average(self, task: Header) -> Header:
        """Average the segments' states of an iteration, part by part, and commit it as the newest state.

        Parameters
        ----------
        task : dict
            ``mst_key``, ``epoch``; ``slot`` and ``version`` of the state to write; ``slots`` that hold what is
            averaged; ``n_visits``, how many that must be.
        """
        for segment_id, recorded in self._record.staged_digests(task).items():
            digest = hashlib.sha256()
            for staged in self._record.staged_state(task, segment_id):
                digest.update(staged)
            if digest.hexdigest() != recorded:
                raise damaged(f"what segment {segment_id} has trained: {STATE_DAMAGED}")
        parts: list[bytes] = []
        own = self._trainer
        try:
            with averaging.with_trainer(own if own.averages else None) as trainer:
                while True:
                    part = self._record.average_part(task, len(parts))
                    if part is None:
                        break
                    parts.append(part)
                answer, _ = checked(trainer().ask({"op": "describe_state"}, parts))
        except plpy.SPIError:
            if not own.averages or own.alive:
                raise
            raise own.death() from None
        for number, part in enumerate(parts):
            self._record.put_part(task, number, part)
        kept = {name: task[name] for name in ("epoch", "slot", "version", "slots", "n_visits")}
        figures = {name: answer[name] for name in ("digest", "weights_digest", "model_bytes", "forward_parts")}
        average = {**kept, **figures, "state_bytes": sum(map(len, parts))}
        self._record.keep_average(task["mst_key"], average)
        return {"digest": answer["digest"], "state_bytes": average["state_bytes"]}

    def _load(self, task: Header, source: RowsSource, shard: str) -> Header:
        """Load a shard's rows into the trainer; return its figures: rows, bytes and fingerprint."""
        answer, _ = checked(self._trainer.load_shard(shard, source, task["segment_id"], task["reader_pid"]))
        self._shards, self._fresh = set(answer.pop("cached_shards")), shard
        return answer

    def _start(self) -> None:
        """Start a trainer, with the GPU of its segment if the run uses any; its answer is read when it is needed."""
        gpus = self._plan.get("gpus") or {}
        own = [gpus.get(str(self._segment_id), 0)] if gpus else []
        if self._place is None:
            self._child = Local(Interrupts(), own, backend_of(self._plan["trainer"]))
        elif "key" in self._place:
            self._child = Dispatch(self._segment_id, self._place["key"], Interrupts())
            self._record.keys_as_literals = True
        else:
            access = self._record.host_access(self._place["server"])
            self._child = Remote(Interrupts(), self._place["server"], access, self._run_id)
        self._ready = False
        self._shards, self._fresh = set(), None
        start = {"op": "start", **self._plan["trainer"], "gpus": own}
        if isinstance(self._child, Remote) and self._place is not None:
            start["share"] = self._plan.get("shares", {}).get(self._place["server"])
        self._child.send(start)

    def _forget_trainer(self) -> None:
        self.close()
        self._shards, self._fresh = set(), None


def _unchanged_copy(model: Header) -> Header | None:
    """Return how a model's newest state was taken over from another model, unless it has been trained since."""
    taken_over: Header | None = model.get("taken_over")
    return taken_over if taken_over and taken_over["version"] == model["state_version"] else None


def _shards_of(task: Header) -> Header:
    """Return the part of a request to train that names the shard, and the sample to evaluate the model on."""
    shards = {"shard": _shard_key(task["data_set"], task["segment_id"])}
    return {**shards, "sample": _shard_key("sample", task["sample"])} if "sample" in task else shards


def _shard_key(data_set: str, segment_id: int) -> str:
    return f"{data_set}:{segment_id}"
