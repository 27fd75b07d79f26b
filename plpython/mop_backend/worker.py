"""A worker session: hands its segment's rows and a model's state to its trainer, and keeps what comes back.

The driver calls `open_worker` once and then `do` for every visit. The trainer is behind a channel (channels.py): a
child of this backend, or at the host where the segment is. The session is logged in as the run's own role and has done
SET ROLE to the caller, so the rows are read with the caller's rights; the record is read and written through the narrow
functions of sql/24-worker.sql, which ask for this worker's token.

User code runs in this session too: in views and policies that are read, and in deferred triggers that fire when all is
done here. It can call these functions, so each task must bear a seal made with the token, which user code never sees.
"""

import hmac
import json
import time

import plpy

from mop_backend import averaging
from mop_backend.channels import HostLost, HostRefused, Local, Remote, place_of
from mop_backend.dispatch import Dispatch
from mop_backend.interrupts import Interrupts
from mop_backend.narrow import Narrow
from mop_backend.process import ChildDied

_STEADY_LAPS = ("state_in_s", "compute_s", "state_out_s")

_worker = None


def open_worker(run_id, token, segment_id):
    """Make this session the worker of a run's segment and start its trainer, without waiting for TensorFlow.

    Raises
    ------
    plpy.SPIError
        42501, if this session is not logged in as the run's role, or the token is not this session's.
    """
    global _worker
    if _worker is not None:
        plpy.error("this session is a worker already; the driver alone uses this function", sqlstate="42501")
    _worker = _Worker(run_id, token, segment_id)
    return "open"


def do(task, seal):
    """Do one visit, evaluation or shard load; see `_Worker.do`.

    Parameters
    ----------
    task : str
        JSON object.
    seal : str
        HMAC-SHA-256 of ``task`` under the worker's token, in hexadecimal.
    """
    if _worker is None:
        plpy.error("this session is no worker; the driver alone uses this function", sqlstate="42501")
    return json.dumps(_worker.do(_worker.unseal(task or "", seal or "")))


class _Worker:
    def __init__(self, run_id, token, segment_id):
        self._run_id = run_id
        self._token = token
        self._segment_id = segment_id
        self._narrow = Narrow(run_id, token)
        self._busy = False
        self._n_tasks = 0
        self._child = None
        self._shards = set()
        answer = json.loads(self._narrow("plan"))
        self._plan = answer["plan"]
        self._seed = answer["seed"]
        custom = self._narrow("custom_functions")
        self._custom = json.loads(custom) if custom else None
        self._place = place_of(self._plan["training"], segment_id)
        if self._place is None or "key" in self._place:  # a host is called by the first task, which tells its troubles
            self._start()

    def close(self):
        """End the trainer."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def unseal(self, task, seal):
        """Give the driver's task; refuse one that somebody else has made, or one that was there before."""
        ours = hmac.new(self._token.encode(), task.encode(), "sha256").hexdigest()
        values = json.loads(task) if hmac.compare_digest(ours.encode(), seal.encode()) else {}
        if values.get("number", 0) <= self._n_tasks:
            plpy.error("this task is not the driver's; user code may not give a worker tasks", sqlstate="42501")
        self._n_tasks = values["number"]
        return values

    def do(self, task):
        """Do one task of the driver's.

        Parameters
        ----------
        task : dict
            ``do``: "start" (have the trainer ready), "load", "train" or "evaluate"; ``data_set``, ``segment_id``; for
            a model its ``mst_key``; for training also ``epoch``, ``position``, ``attempt``, ``slot`` and ``version`` of
            the state to write, and ``staged`` where that state is to be averaged with other segments'. A group that is
            trained together has ``members`` in place of these, and ``place``; see `_train_stack`. One that is evaluated
            together has ``members``; see `_evaluate`. Or "average"; see `_average`.
            ``number`` counts the session's tasks from 1.

        Returns
        -------
        dict
            ``outcome``: "done" with the figures, "failed" with the trainer's ``error``, "died" with the trainer's exit
            status, "host" where the segment's host is lost, or "sql" where it refused a statement, both with the
            ``error``. Whatever is not "done" left nothing behind in the tables.
        """
        if self._busy:
            plpy.error("this worker is busy; user code may not call it", sqlstate="42501")
        self._busy = True
        try:
            return self._attempt(task)
        except ChildDied as death:
            self._forget_trainer()
            return {"outcome": "died", "status": death.returncode, "stderr": death.stderr}
        except HostLost as loss:
            self._forget_trainer()
            return {"outcome": "host", "error": {"message": str(loss)}, "server": self._place["server"]}
        except HostRefused as refusal:
            self._forget_trainer()
            return {"outcome": "sql", "error": refusal.error}
        except _Refused as refusal:
            return {"outcome": "failed", "error": refusal.error, "kind": refusal.kind}
        except BaseException:
            self._forget_trainer()
            raise
        finally:
            self._busy = False

    def _attempt(self, task):
        if self._child is None or not self._child.alive:
            self._forget_trainer()
            self._start()
        if not self._ready:
            try:
                self._versions, _ = _checked(self._child.receive())
            except _Refused as refusal:  # a setting, so it would be the same for every model
                self._forget_trainer()
                raise _Refused(refusal.error, "input") from None
            self._ready = True
        if task["do"] == "start":
            return {"outcome": "done", "versions": self._versions}
        if task["do"] == "average":
            return {"outcome": "done", "versions": self._versions, **self._average(task)}
        shard = self._load_shard(task["data_set"], task["segment_id"])
        if task["do"] == "load":
            return {"outcome": "done", "versions": self._versions, "shard": shard}
        if task["do"] == "evaluate":
            return {"outcome": "done", "shard": shard, "versions": self._versions, **self._evaluate(task)}
        started_at = plpy.execute("select pg_catalog.clock_timestamp()::text as t")[0]["t"]
        if "members" in task:
            answer = self._train_stack(task, started_at)
            return {"outcome": "done", "shard": shard, "versions": self._versions, **answer}
        model = json.loads(self._narrow("model", task["mst_key"]))
        answer, parts = self._train(task, model)
        self._keep(task, model, answer, parts, started_at)
        return {"outcome": "done", "shard": shard, "versions": self._versions, **answer}

    def _train(self, task, model):
        start, parts = self._start_of(model)
        place = {name: task[name] for name in ("epoch", "segment_id")}
        request = {"op": "train", "shard": _shard_key(task["data_set"], task["segment_id"]), **place, **start}
        answer, new_parts = _checked(self._child.ask(request, parts))
        _check_digest(model, answer)
        return answer, new_parts

    def _evaluate(self, task):
        """Evaluate a model, or a group's members together (the mst_key of each place, or None), on a shard.

        Nothing is written here, so the answer has the times of beginning and end.
        """
        started_at = time.time()
        request = {"shard": _shard_key(task["data_set"], task["segment_id"])}
        if "members" in task:
            _, members, blobs = self._members(task["members"], is_forward=True)
            request |= {"op": "evaluate_stack", "members": members}
        else:
            model = json.loads(self._narrow("model", task["mst_key"]))
            if "sums" in task:
                return self._metric_results(request, model, task["sums"])
            start, blobs = self._start_of(model, model["forward_parts"])
            request |= {"op": "evaluate", "digest": model["digest"], **start}
        answer, _ = _checked(self._child.ask(request, blobs))
        for mst_key, member in zip(task.get("members", ()), answer.get("members", ()), strict=True):
            if member is not None:
                member["mst_key"] = mst_key
        return {**answer, "started_at": started_at, "ended_at": time.time()}

    def _metric_results(self, request, model, sums):
        """Compute a model's metrics from what the evaluations of all shards have summed up, by data set."""
        request |= {"op": "metric_results", "model": self._asked(model), "sums": list(sums.values())}
        answer, _ = _checked(self._child.ask(request))
        return {"results": dict(zip(sums, answer["results"], strict=True))}

    def _members(self, mst_keys, is_forward=False):
        """Give, for each place of a group, the model's row and what a request says of it, or None; and all blobs."""
        models, members, blobs = [], [], []
        for mst_key in mst_keys:
            model = json.loads(self._narrow("model", mst_key)) if mst_key is not None else None
            models.append(model)
            if model is None:
                members.append(None)
                continue
            start, parts = self._start_of(model, model["forward_parts"] if is_forward else None)
            members.append({**start, "n_blobs": len(parts)})
            blobs += parts
        return models, members, blobs

    def _start_of(self, model, n_parts=None):
        """Give what a request says of a model and its start, and the blobs that go with it."""
        parts = self._state(model, n_parts)
        weights = [] if parts or not model["has_weights"] else [self._narrow("start_weights", model["mst_key"])]
        start = {
            "model": self._asked(model),
            "has_state": bool(parts),
            "has_weights": bool(weights),
            "taken_over": _just_taken_over(model),
        }
        return start, parts or weights

    def _asked(self, model):
        """Give what a request says of a model."""
        names = ("arch", "compile_params", "fit_params", "mst_key")
        return {**{name: model[name] for name in names}, "seed": self._seed, "custom": self._custom}

    def _train_stack(self, task, started_at):
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
        request = {"op": "train_stack", "shard": _shard_key(task["data_set"], task["segment_id"]), **place}
        answer, parts = _checked(self._child.ask({**request, "members": members}, blobs))
        outcomes, timing = [], {}
        for member, model, trained in zip(task["members"], models, answer["members"], strict=True):
            if trained is None:
                outcomes.append(None)
                continue
            outcome = {"mst_key": model["mst_key"]}
            outcomes.append(outcome)
            if "error" in trained:
                outcome["failed"] = _reason(trained["error"], task["place"])
                self._narrow("fail_member", model["mst_key"], model["state_version"], outcome["failed"])
                continue
            _check_digest(model, trained)
            own, parts = parts[: trained["n_blobs"]], parts[trained["n_blobs"] :]
            self._keep({**task, **member}, model, trained, own, started_at)
            outcome.update({name: trained[name] for name in ("digest_out", "state_bytes")})
            for lap in _STEADY_LAPS:
                timing[lap] = timing.get(lap, 0.0) + trained["timing"][lap]
        return {"members": outcomes, "timing": timing}

    def _keep(self, task, model, answer, parts, started_at):
        staged = task.get("staged", False)
        place = [task["mst_key"], task["slot"], task["version"], *([task["segment_id"]] if staged else [])]
        for number, part in enumerate(parts):
            self._narrow("put_staged_part" if staged else "put_state_part", *place, number, bytes(part))
        visit = {
            "epoch": task["epoch"],
            "position": task["position"],
            "segment_id": task["segment_id"],
            "attempt": task["attempt"],
            "slot": task["slot"],
            "version": task["version"],
            "old_version": model["state_version"],
            "started_at": started_at,
            "n_rows": answer["n_rows"],
            "state_bytes": sum(map(len, parts)),
            "model_bytes": answer["model_bytes"],
            "forward_parts": answer["forward_parts"],
            "digest_in": answer["digest_in"],
            "digest_out": answer["digest_out"],
            "weights_digest": answer["weights_digest"],
            "loss": answer["loss"],
            "timing": answer.get("timing", {}),
        }
        answer["visit_id"] = self._narrow("keep_staged" if staged else "keep_visit", task["mst_key"], json.dumps(visit))
        answer["state_bytes"] = visit["state_bytes"]

    def _average(self, task):
        """Average what the segments have trained in an iteration, part by part, and keep it as the newest state.

        Parameters
        ----------
        task : dict
            ``mst_key``, ``epoch``; ``slot`` and ``version`` of the state to write; ``slots`` that hold what is
            averaged; ``n_visits``, how many that must be.
        """
        key, parts = task["mst_key"], []
        try:
            with averaging.lending(self._child if self._child.averages else None) as trainer:
                while True:
                    place = key, task["epoch"], task["version"], task["slots"], len(parts)
                    part = self._narrow("average_part", *place)
                    if part is None:
                        break
                    parts.append(part)
                answer, _ = _checked(trainer().ask({"op": "describe_state"}, parts))
        except plpy.SPIError:
            if not self._child.averages or self._child.alive:
                raise
            raise self._child.death() from None
        for number, part in enumerate(parts):
            self._narrow("put_state_part", key, task["slot"], task["version"], number, part)
        kept = {name: task[name] for name in ("epoch", "slot", "version", "slots", "n_visits")}
        figures = {name: answer[name] for name in ("digest", "weights_digest", "model_bytes", "forward_parts")}
        average = {**kept, **figures, "state_bytes": sum(map(len, parts))}
        self._narrow("keep_average", key, json.dumps(average))
        return {"digest": answer["digest"], "state_bytes": average["state_bytes"]}

    def _state(self, model, n_parts=None):
        """Read the parts of a model's state; the first ``n_parts`` of them, where that is known to be enough."""
        parts = []
        if model["digest"] is None:
            return parts
        while n_parts is None or len(parts) < n_parts:
            place = model["state_slot"], model["state_version"], len(parts)
            part = self._narrow("state_part", model["mst_key"], *place)
            if part is None:
                return parts
            parts.append(part)
        return parts

    def _load_shard(self, data_set, segment_id):
        """Send the segment's rows to the trainer unless it has them; give what it said of them."""
        shard = _shard_key(data_set, segment_id)
        if shard in self._shards:
            return None
        answer, _ = _checked(self._child.load_shard(shard, self._plan[data_set], segment_id))
        self._shards = set(answer.pop("cached_shards"))
        return answer

    def _start(self):
        """Start a trainer, with the GPU of its segment if the run uses any; its answer is read when it is needed."""
        gpus = self._plan.get("gpus") or {}
        own = [gpus.get(str(self._segment_id), 0)] if gpus else []
        if self._place is None:
            self._child = Local(Interrupts(), own)
        elif "key" in self._place:
            self._child = Dispatch(self._segment_id, self._place["key"], Interrupts())
        else:
            access = json.loads(self._narrow("host", self._place["server"]))
            self._child = Remote(Interrupts(), self._place["server"], access, self._run_id)
        self._ready = False
        self._shards = set()
        start = {"op": "start", **self._plan["trainer"], "gpus": own}
        if isinstance(self._child, Remote):
            start["share"] = self._plan.get("shares", {}).get(self._place["server"])
        self._child.send(start)

    def _forget_trainer(self):
        self.close()
        self._shards = set()


class _Refused(Exception):
    """The trainer answered with an error: this task cannot be done, the trainer is well."""

    def __init__(self, error, kind):
        super().__init__(error["message"])
        self.error = error
        self.kind = kind


def _checked(answer):
    header, blobs = answer
    if "error" in header:
        raise _Refused(header["error"], header.get("kind", "internal"))
    return header, blobs


def _check_digest(model, answer):
    """Refuse to go on from a stored state that is not the one that the record tells of."""
    if model["digest"] is not None and answer["digest_in"] != model["digest"]:
        raise _Refused(
            {
                "sqlstate": "XX001",
                "message": f"mst_key {model['mst_key']}: the stored state does not have the digest recorded for it",
            },
            "internal",
        )


def _reason(error, place):
    """Say in one line why a member of a group failed, as the driver says it of a model that trains apart."""
    return f"{error['message']} ({place})" + (f"; {error['hint']}" if error.get("hint") else "")


def _just_taken_over(model):
    """Give how a model's newest state was taken over from another model, unless it has been trained since."""
    taken_over = model.get("taken_over")
    return taken_over if taken_over and taken_over["version"] == model["state_version"] else None


def _shard_key(data_set, segment_id):
    return f"{data_set}:{segment_id}"
