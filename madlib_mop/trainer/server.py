"""The trainer's conversation: takes one request after the other and answers each; no exception ends it.

Requests and answers are frames (``mop_backend.frames``); the operations are the methods of ``TrainerService``. A
request that cannot be done is answered by ``{"error": {sqlstate, message, hint, detail}, "kind": a constant of
``process/failures.py``, "ending": bool}``; ``ending`` says that the process ends now, and the next request needs a new
one.
"""

import dataclasses
import importlib
import json
import os
import platform
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mop_backend.frames import TRUSTED, Blob, Channel, Frame, Header, PeerGone, TooLarge, of_sharers
from mop_backend.messages import (
    EvaluatedMembers,
    EvaluateRequest,
    LoadedRows,
    MetricResults,
    MetricsRequest,
    ModelStart,
    TrainedMember,
    TrainedMembers,
    TrainRequest,
    to_json,
)
from mop_backend.pacing import MOST as MOST_ROWS
from mop_backend.peer import end_with_peer

from madlib_mop.errors import InvalidParameter
from madlib_mop.trainer import requests
from madlib_mop.trainer.process import lifetime, loading
from madlib_mop.trainer.process.failures import INPUT, MEMORY, MODEL, RequestFailure, blaming, failure_of, not_shared
from madlib_mop.trainer.process.seats import Seats
from madlib_mop.trainer.requests import (
    Request,
    gpu_numbers_of,
    key_of,
    malformed,
    members_of,
    message_of,
    positive,
    start_of,
)

if TYPE_CHECKING:  # these import NumPy and Keras
    from madlib_mop.trainer.backends.base.interface import Backend
    from madlib_mop.trainer.data.shards import Shard
    from madlib_mop.trainer.recipe import Recipe
    from madlib_mop.trainer.visits import Start, Trained

Reply = tuple[Header, Sequence[Blob]]

#: Fraction of the memory beyond that which failed requests may lose before the process is replaced.
_MOST_LOST = 0.25
#: Bytes of the variables of compiled models that a process keeps while it waits for another client.
_MOST_IDLE_BYTES = 256 << 20
#: Models that a process keeps for sessions that share it.
_MODELS_OF_MANY = 64
#: Bytes of a record that is predicted together with those of other sessions.
_MOST_TOGETHER = 1 << 16
#: Element types of plain arrays, by NumPy's names.
_NUMBERS = frozenset({"i2", "i4", "i8", "f4", "f8"})


def serve(read_fd: int, write_fd: int) -> None:
    """Answer requests until ``stop``, the end of the input, or an idle time that ``start`` may have set."""
    channel, incoming = Channel(read_fd, write_fd), lifetime.RequestInput(read_fd)
    session = TrainerService(partial(end_with_peer, read_fd), channel=channel)
    try:
        while not session.stopped and incoming.has_more(session.idle_s):
            header, blobs = channel.receive()
            answer, out = _handle(session, header, blobs)
            del blobs
            if answer is not None:
                if "error" in answer:
                    answer["ending"] = session.recover()
                channel.send(answer, out)
            del out
    except (PeerGone, ValueError):  # end of file, or a header that is not JSON: there is no client to answer
        pass


def serve_seats(fd: int) -> None:
    """Answer the requests of several sessions that predict (`Seats`), until the idle time that ``start`` has set, or
    until all have left."""
    seats = Seats(fd)
    serve_sessions(seats, TrainerService(seats.watch, is_shared=True))


def serve_sessions(seats: Seats, session: "TrainerService") -> None:
    """Answer requests; single rows of one model that wait at the same time are predicted together."""

    def send(seat: int, answer: Header | None, out: Sequence[Blob]) -> None:
        if answer is None:
            return
        try:
            session.limits.check_blobs([memoryview(blob).nbytes for blob in out])  # defence: size-of-shared-answers
        except TooLarge:
            answer, out = not_shared("send as large answers").as_answer(), ()
        if answer.get("kind") == MEMORY:
            answer["ending"] = session.recover()
        seats.send(seat, answer, out)

    def alone(seat: int, request: Frame) -> None:
        seats.serves([seat])
        answer = _handle(session, *request)
        seats.serves([])  # before its seat may be closed
        send(seat, *answer)

    def together(rows: dict[str, dict[int, Frame]]) -> None:
        for requests_of in rows.values():
            answers = None
            if len(requests_of) > 1:
                seats.serves(list(requests_of))
                answers = session.predict_together(list(requests_of.values()))
                seats.serves([])
            for number, (seat, request) in enumerate(requests_of.items()):
                if answers is None:
                    alone(seat, request)
                else:
                    send(seat, *answers[number])
        rows.clear()

    while not session.stopped and (ready := seats.ready(session.idle_s)) is not None:
        rows: dict[str, dict[int, Frame]] = {}
        for seat in ready:
            request = seats.receive(seat, session.limits)
            form = None if request is None or len(ready) == 1 else session.form_of_row(*request)
            if request is not None and form is not None:
                rows.setdefault(form, {})[seat] = request
            elif request is not None:
                together(rows)  # before a request that may end this process, or take long
                alone(seat, request)  # at once: the blobs may be large
            del request
            if session.stopped:
                return
        together(rows)


def _handle(session: "TrainerService", header: Header, blobs: list[Blob]) -> tuple[Header | None, Sequence[Blob]]:
    """Execute one request; return the answer's header and blobs, or None if the protocol has no answer."""
    op = header.get("op") if isinstance(header, dict) else None
    op = op if isinstance(op, str) else None
    silent = op in TrainerService.SILENT
    try:
        if op not in TrainerService.OPS:
            raise malformed(f"no operation {op!r}")
        if op not in TrainerService.ANY_TIME and not session.started:
            raise malformed(f"operation {op} came before start")
        session.is_reusable &= op not in TrainerService.LAST
        answer, out = getattr(session, op)(Request(header), blobs)
        return (None if silent else {"ok": True, **answer}), out
    except Exception as error:
        traceback.print_exc()
        failure = failure_of(error)
        session.is_reusable &= failure.kind == MODEL
        if silent:
            session.fail(failure)
            return None, []
        return failure.as_answer(), []


class TrainerService:
    """What the trainer holds between requests. An operation takes header and blobs, and gives those of its answer."""

    OPS = frozenset(
        "start reset confine begin_visit shard_begin shard_rows shard_end train evaluate metric_results"
        " predict_load predict predict_values predict_row explain_row average_add average_end"
        " describe_state describe_model export_model import_file drop_shard stats stop".split()
    )
    #: Requests that do not need Keras.
    ANY_TIME = frozenset({"start", "confine", "average_add", "average_end", "describe_state"})
    SILENT = frozenset({"begin_visit", "shard_begin", "shard_rows"})
    #: The requests that bring a shard.
    OF_SHARDS = frozenset({"shard_begin", "shard_rows", "shard_end"})
    #: After these, the process serves no other client: Keras keeps something of models that are described or converted.
    LAST = frozenset({"describe_model", "export_model", "import_file"})

    def __init__(self, end_with_client: Callable[[], None], is_shared: bool = False, channel: Channel | None = None):
        self.is_shared = is_shared
        self._channel = channel
        self.started = False
        self.stopped = False
        self.is_reusable = True
        self.idle_s: float | None = None
        self.limits = TRUSTED
        self._end_with_client = end_with_client
        self._memory_limit: int | None = None
        self._gpus: list[str] = []
        self._idle_bytes = 0
        self._start: tuple[Request, Header] | None = None
        self._idle_start: tuple[Request, Header] | None = None
        #: Of the shard in the file that was used last: its name, a number of inputs, and the shard dealt out to them.
        self._dealt: tuple[str, int, Shard] | None = None
        self._begun: _BegunVisit | None = None

    def start(self, header: Request, blobs: list[Blob]) -> Reply:
        """Import Keras and its backend, then enter the sandbox; return versions and the protections in force.

        An idle trainer only begins to serve another client, whose start must be the same; it keeps its file.
        """
        client, file_form = header.pop("client", None), header.pop("shard_file", None)
        if self._idle_start is not None:
            (asked, answer), self._idle_start = self._idle_start, None
            if header != asked:
                raise malformed("the trainer is idle, and was started in another way")
            if client is not None:
                lifetime.set_client(client)
            return answer, []
        if self.is_shared and self._start is not None and header == self._start[0]:
            return self._start[1], []
        if self.started:
            raise malformed("the trainer has been started already")
        threads = positive(header, "threads")
        cache_bytes = positive(header, "shard_cache_bytes", least=0)
        gpu_numbers = gpu_numbers_of(header)
        from madlib_mop.trainer.backends import choice

        if gpu_numbers:
            lifetime.show_gpus(gpu_numbers, choice.environment_with_gpus())
        in_force = {"landlock": False, "seccomp": False}
        loading.load_dill()
        if header.get("sandbox", True):
            from madlib_mop.trainer.process import sandbox, seccomp

            in_force["landlock"] = sandbox.restrict_files(with_gpus=bool(gpu_numbers))
        backend = choice.load()
        if header.get("backend", choice.DEFAULT) != backend.name:
            raise malformed(f"the trainer's backend is {backend.name}, not {header['backend']}")
        import keras
        import numpy

        from madlib_mop.trainer import incoming, visits
        from madlib_mop.trainer.data import shard_file, shards, state

        backend.set_threads(threads)
        before_gpus = lifetime.data_bytes()
        self._gpus = backend.open_gpus() if gpu_numbers else []
        if gpu_numbers and not self._gpus and header.get("need_gpus", True):
            raise backend.no_gpu()
        backend.start_threads()
        self._end_with_client()
        if header.get("sandbox", True):
            with_file = file_form is not None and file_form["fd"] is not None
            # defence: seccomp = False
            in_force["seccomp"] = seccomp.restrict_calls(bool(gpu_numbers), with_file, with_seats=self.is_shared)
        taken_bytes = lifetime.data_bytes() - before_gpus if self._gpus else 0  # the limit applies to models only
        self._limit_memory(header.get("memory_limit_bytes"), taken_bytes, backend)
        file, without_file = None, ""
        try:
            file = shard_file.ShardFile.of(file_form)
        except shard_file.FileFull as none:
            without_file = str(none)
            self.is_reusable = False  # another one may get a file
        self._shards = shards.ShardCache(cache_bytes, file, without_file, self._free_file)
        self._incoming = incoming.IncomingShard(self._shards.allocate)
        self.idle_s = header.get("idle_s")
        materialises = header.get("materialise_features", True)
        self._visitor = visits.Visitor(
            header.get("part_bytes") or state.DEFAULT_PART_BYTES,  # only in plans of version 1.0.0
            features_room=(lambda: self._shards.room) if materialises else None,
            file=file,
        )
        if self.is_shared:
            self.limits = of_sharers(self._memory_limit)
            half = None if self._memory_limit is None else (self._memory_limit - self._idle_bytes) // 2
            self._visitor.predictors.limit(_MODELS_OF_MANY, half)
        self.started = True
        self._start = header, {
            "pid": os.getpid(),
            "python": platform.python_version(),
            str(backend.name): backend.version(),
            "keras": keras.__version__,
            "numpy": numpy.__version__,
            "memory_limit_bytes": self._memory_limit,
            "memory_bytes": lifetime.data_bytes(),
            "gpus": self._gpus,
            **in_force,
        }
        return self._start[1], []

    def reset(self, header: Request, blobs: list[Blob]) -> Reply:
        """Drop all of a run or a call but small compiled models; answer whether this process can serve another one."""
        from madlib_mop.trainer import incoming

        self._shards.clear()
        self._dealt = self._begun = None
        self._incoming = incoming.IncomingShard(self._shards.allocate)
        self._visitor.forget()
        self._visitor.models.shrink(_MOST_IDLE_BYTES)
        self._idle_start = self._start
        if self.recover() or self._shards.file_bytes:  # defence: rows-in-files-of-idle-trainers = self.recover()
            self.is_reusable = False
        return {"reusable": self.is_reusable}, []

    def confine(self, header: Request, blobs: list[Blob]) -> Reply:
        """Drop what sums of training states do not need, as ``start`` does, but without loading Keras."""
        from madlib_mop.trainer.process import sandbox, seccomp

        in_force = {"landlock": sandbox.restrict_files()}
        importlib.import_module("madlib_mop.trainer.data.averaging")
        self._end_with_client()
        in_force["seccomp"] = seccomp.restrict_calls()
        return in_force, []

    def recover(self) -> bool:
        """Clean up after a failed request; return whether too much memory was lost to continue; then the process ends.

        A loop that runs out of memory half-way may leave its tensors behind for good, at the cost of the next model. A
        shared trainer drops all its models, because the bytes of so many graphs are unknown; sessions load them again.
        """
        if self.is_shared and self.started:
            self._visitor.predictors.clear()
        lifetime.release_memory()
        if self._memory_limit is not None:
            held = self._shards.n_bytes + self._visitor.features.n_bytes + self._visitor.models.n_bytes
            held += self._visitor.predictors.n_bytes
            lost = lifetime.data_bytes() - self._idle_bytes - held
            self.stopped = lost > _MOST_LOST * (self._memory_limit - self._idle_bytes)
        return self.stopped

    def begin_visit(self, header: Request, blobs: list[Blob]) -> Reply:
        """Begin the visit of a request "train" while its shard arrives, whose requests follow and are answered here.

        What comes of it is kept for this request only. If the visit fails, the request makes it anew, and has the
        error.
        """
        failed: str | None = None
        from madlib_mop.trainer.data.arrival import RowsMissing
        from madlib_mop.trainer.data.shards import is_dealt_out

        self._begun = None
        if self._channel is None:
            raise malformed("a shared trainer makes no visits")
        with self._incoming.arriving(self._channel, self._take) as shard:
            try:
                request, place = _train_request(header)
                recipes, starts = members_of(request.members, blobs)
                n_inputs = next(recipe.n_inputs for recipe in recipes if recipe is not None)
                if shard is not None and not is_dealt_out(shard, n_inputs):
                    self._begun = _BegunVisit(request, place, self._made(request, place, recipes, starts, shard))
            except RowsMissing:
                pass
            except Exception as error:
                traceback.print_exc()
                failed = failure_of(error).kind
        if failed is not None:
            self.is_reusable &= failed == MODEL
            lifetime.release_memory()  # for the request
        return {}, []

    def _take(self, header: Header, blobs: list[Blob]) -> bool:
        """Do and answer a request that brings a shard; return whether another one follows."""
        op = header.get("op") if isinstance(header, dict) else None
        if op not in self.OF_SHARDS:
            header = {"op": None}  # which is answered as what the protocol does not know
        answer, out = _handle(self, header, blobs)
        if answer is not None:
            assert self._channel is not None, "the request came from it"
            if "error" in answer:
                answer["ending"] = False
            self._channel.send(answer, out)
        return op in self.OF_SHARDS and op != "shard_end"

    def shard_begin(self, header: Request, blobs: list[Blob]) -> Reply:
        """Begin to take a shard; errors wait for ``shard_end``."""
        self._shards.drop(str(header["shard"]))
        self._dealt = self._begun = None  # of rows that may be others now
        self._incoming.begin(header)
        return {}, []

    def shard_rows(self, header: Request, blobs: list[Blob]) -> Reply:
        """Take one buffer of the shard."""
        self._incoming.add(header["shapes"], blobs)
        return {}, []

    def fail(self, failure: RequestFailure) -> None:
        """Remember why the shard that is being taken cannot be."""
        self._incoming.fail(failure)

    def shard_end(self, header: Request, blobs: list[Blob]) -> Reply:
        """Finish the shard and keep it, if the cap allows; a sample is always kept."""
        key = str(header["shard"])
        shard = self._incoming.finish(key)
        cached = self._incoming.is_whole
        if self._incoming.is_sample:
            self._shards.add_sample(key, shard)
        elif cached:
            cached = self._shards.add(key, shard)
            self._visitor.features.shrink()
        names = tuple(self._shards.keys())
        return to_json(LoadedRows(shard.n_rows, shard.n_bytes, shard.fingerprint, cached, names)), []

    def train(self, header: Request, blobs: list[Blob]) -> Reply:
        """Make a training visit, of one model or of several together; see `TrainRequest`."""
        request, place = _train_request(header)
        begun, self._begun = self._begun, None
        if begun is not None and (begun.request, begun.place) == (request, place):
            self._shards.take(request.shard)
            outcomes = begun.outcomes
        else:
            recipes, starts = members_of(request.members, blobs)
            outcomes = self._made(request, place, recipes, starts, self._shard(request.shard, *recipes))
        parts = [part for outcome in outcomes for part in getattr(outcome, "parts", ())]
        return to_json(TrainedMembers(tuple(map(_as_member, outcomes)))), parts

    def _made(
        self,
        request: TrainRequest,
        place: tuple[int, int],
        recipes: "Sequence[Recipe | None]",
        starts: "Sequence[Start]",
        shard: "Shard",
    ) -> "list[Trained | RequestFailure | None]":
        """Make a training visit; return what each member was trained to."""
        from madlib_mop.trainer import fused_visits, sampled
        from madlib_mop.trainer.data.arrival import RowsMissing

        outcomes = fused_visits.train(self._visitor, recipes, starts, shard, *place)
        if shard.whole().n_rows != shard.n_rows:  # a visit may need only the first rows of a shard
            raise RowsMissing
        if request.sample is not None:
            outcomes = sampled.evaluate(self._visitor, recipes, outcomes, self._shard(request.sample, *recipes))
        return outcomes

    def evaluate(self, header: Request, blobs: list[Blob]) -> Reply:
        """Make an evaluation visit, of one model or of several together; see `EvaluateRequest`."""
        from madlib_mop.trainer import fused_visits

        request = message_of(EvaluateRequest, header)
        recipes, starts = members_of(request.members, blobs)
        shard = self._shard(request.shard, *recipes)
        return to_json(EvaluatedMembers(tuple(fused_visits.evaluate(self._visitor, recipes, starts, shard)))), []

    def metric_results(self, header: Request, blobs: list[Blob]) -> Reply:
        """Compute loss and metrics from the ``sums`` of evaluations, a list, that are added up over shards."""
        from madlib_mop.trainer.recipe import Recipe

        request = message_of(MetricsRequest, header)
        recipe = Recipe.read(request.model)
        results = self._visitor.metric_results(recipe, self._shard(request.shard, recipe), request.sums)
        return to_json(MetricResults(tuple(results))), []

    def predict_load(self, header: Request, blobs: list[Blob]) -> Reply:
        """Load a model to predict with, under a key where there are to be several."""
        from madlib_mop.trainer.recipe import Recipe

        if self.is_shared and key_of(header) in self._visitor.predictors.keys():  # another session has loaded it
            return {"loaded": self._visitor.predictors.keys()}, []
        recipe, constant = Recipe.read(header["model"]), float(header["normalizing_const"])
        preprocessor = header.get("preprocessor")
        has_state, has_weights = bool(header.get("has_state")), bool(header.get("has_weights"))
        start = start_of(ModelStart(header["model"], len(blobs), has_state, has_weights), blobs)
        self._visitor.load_predictor(recipe, start, constant, key_of(header), preprocessor)
        return {"loaded": self._visitor.predictors.keys()}, []

    def predict(self, header: Request, blobs: list[Blob]) -> Reply:
        """Predict rows; answers shapes, and a float32 blob an output."""
        outputs = self._visitor.predict(requests.columns_of(header, blobs), key_of(header))
        return {"shapes": [list(output.shape) for output in outputs]}, [output.data for output in outputs]

    def average_add(self, header: Request, blobs: list[Blob]) -> Reply:
        """Add two parts of training states, or sums of such, weighted by their rows."""
        from madlib_mop.trainer.data import averaging

        if len(blobs) != 2:
            raise malformed(f"average_add has {len(blobs)} blobs, expected 2")
        a, b = blobs
        return {}, [averaging.add(a, b, header["n_rows"], header["summed"])]

    def average_end(self, header: Request, blobs: list[Blob]) -> Reply:
        """Divide such a sum by its rows."""
        from madlib_mop.trainer.data import averaging

        if len(blobs) != 1:
            raise malformed(f"average_end has {len(blobs)} blobs, expected 1")
        return {}, [averaging.finish(blobs[0], positive(header, "n_rows"), bool(header["summed"]))]

    def describe_state(self, header: Request, blobs: list[Blob]) -> Reply:
        """Check a whole training state; return its digests."""
        from madlib_mop.trainer.data import averaging

        return to_json(averaging.describe(blobs)), []

    def predict_values(self, header: Request, blobs: list[Blob]) -> Reply:
        """Predict one row or many from plain arrays; answers whether it was one, widths of the outputs, and a float32
        blob (rows, values)."""
        from numpy import frombuffer

        dtypes, shapes = header["dtypes"], header["shapes"]
        if not (len(shapes) == len(dtypes) == len(blobs)) or not set(dtypes) <= _NUMBERS:
            raise malformed(f"{len(blobs)} columns of the types {dtypes} and the shapes {shapes}")
        columns = [frombuffer(b, d).reshape(s) for b, d, s in zip(blobs, dtypes, shapes, strict=True)]
        # the first size is the number of rows, or that of a long row
        if self.is_shared and columns and columns[0].shape[:1] > (MOST_ROWS,):
            self._check_rows(self._visitor.predictors.get(key_of(header)).n_rows(columns))
        single, values, widths = self._visitor.predict_values(columns, key_of(header))
        return {"single": single, "shape": values.shape, "widths": widths}, [values.data]

    def predict_row(self, header: Request, blobs: list[Blob]) -> Reply:
        """Predict one record, or many if there are ``lengths``; answers widths of the outputs, and a float64 blob
        (rows, values). Of many, those that cannot be encoded are left out; ``predicted`` numbers the others."""
        if len(blobs) != 1:
            raise malformed(f"predict_row has {len(blobs)} blobs, expected 1")
        (data,) = blobs
        lengths = header.get("lengths")
        self._check_rows(1 if lengths is None else len(lengths))
        values, widths, predicted = self._visitor.predict_rows(
            data, lengths or [len(data)], header["fields"], str(header["encoding"]), key_of(header), lengths is not None
        )
        answer = {"single": lengths is None, "shape": values.shape, "widths": widths}
        return (answer if lengths is None else {**answer, "predicted": predicted}), [values.data]

    def _check_rows(self, n_rows: int) -> None:
        if self.is_shared and n_rows > MOST_ROWS:  # defence: rows-of-shared-requests
            raise not_shared(f"predict more than {MOST_ROWS:,} rows at once")

    def form_of_row(self, header: Header, blobs: list[Blob]) -> str | None:
        """Return what requests for single records must have in common to be predicted together; None for others."""
        if not (self.started and isinstance(header, dict) and header.get("op") == "predict_row"):
            return None
        # defence: records-predicted-together = "lengths" in header or len(blobs) != 1
        if "lengths" in header or len(blobs) != 1 or len(blobs[0]) > _MOST_TOGETHER:
            return None
        if not self._visitor.predictors.is_same_in_batches(key_of(Request(header))):
            return None
        return json.dumps([header.get(name) for name in ("key", "fields", "encoding")])

    def predict_together(self, requests: Sequence[tuple[Header, list[Blob]]]) -> list[Reply] | None:
        """Predict records of one form (`form_of_row`); return each answer, or None if one cannot be predicted."""
        header, records = Request(requests[0][0]), [blobs[0] for _, blobs in requests]
        try:
            values, widths, _ = self._visitor.predict_rows(
                b"".join(records),
                list(map(len, records)),
                header["fields"],
                str(header["encoding"]),
                key_of(header),
            )
        except Exception:  # each alone gets its values or its error
            return None
        answer = {"ok": True, "single": True, "shape": (1, values.shape[1]), "widths": widths}
        return [({**answer}, [row.data]) for row in values]

    def explain_row(self, header: Request, blobs: list[Blob]) -> Reply:
        """Explain the prediction of one record, by encoded rows as background, which are the other blobs.

        Answers the columns, what is explained, and a float64 blob (outputs, columns + 1, 2): contribution and standard
        error of each column, then the mean prediction of the background and the prediction."""
        from madlib_mop.trainer.explaining import explain_row

        if self.is_shared:
            raise not_shared("explain predictions")
        if not blobs:
            raise malformed("explain_row has no blobs")
        data, *encoded = blobs
        n_orders = header["n_orders"]
        found = explain_row(
            self._visitor.predictors.get(key_of(header)),
            (data, header["fields"], str(header["encoding"])),
            requests.columns_of(header, encoded),
            header["of_class"],
            None if n_orders is None else positive(header, "n_orders"),
            int(header["seed"]),
        )
        return {"columns": found.columns, "outputs": found.outputs}, [found.explanation.table.data]

    def describe_model(self, header: Request, blobs: list[Blob]) -> Reply:
        """Describe an architecture by Keras; with ``seed``, the answer's blob are the weights drawn with it."""
        from madlib_mop.models import described

        with blaming(INPUT):
            answer = described.as_answer(described.describe_architecture(header["arch"]))
            seed = header.get("seed")
            return answer, [] if seed is None else [described.draw_weights(header["arch"], seed)]

    def export_model(self, header: Request, blobs: list[Blob]) -> Reply:
        """Convert a model to a file format; the answer's blob is the file."""
        from madlib_mop.trainer import exporting

        return {}, [exporting.convert(exporting.read_request(header, blobs))]

    def import_file(self, header: Request, blobs: list[Blob]) -> Reply:
        """Read a file of a model or of weights; the answer's blob are the weights."""
        from madlib_mop.trainer import importing

        return importing.run(importing.read_request(header, blobs))

    def drop_shard(self, header: Request, blobs: list[Blob]) -> Reply:
        """Let go of a shard."""
        self._dealt = None
        self._shards.drop(str(header["shard"]))
        return {"cached_shards": self._shards.keys()}, []

    def stats(self, header: Request, blobs: list[Blob]) -> Reply:
        """Return what is held."""
        return {
            "cached_shards": self._shards.keys(),
            "shard_bytes": self._shards.n_bytes,
            "shard_file_bytes": self._shards.file_bytes,
            "features": len(self._visitor.features),
            "feature_bytes": self._visitor.features.n_bytes,
            "compiled_models": len(self._visitor.models),
            "compiled_model_bytes": self._visitor.models.n_bytes,
            "memory_bytes": lifetime.data_bytes(),
            "memory_limit_bytes": self._memory_limit,
            "gpus": self._gpus,
        }, []

    def stop(self, header: Request, blobs: list[Blob]) -> Reply:
        """End the process after this answer."""
        self.stopped = True
        return {}, []

    def _free_file(self) -> bool:
        """Drop features from the file, where they give way to shards, as in memory; return whether there were any."""
        return self._visitor.features.drop_from_file()

    def _shard(self, name: str, *recipes: "Recipe | None") -> "Shard":
        """Return the shard of this name, as models of one form take it; None stands for a model that has failed."""
        from madlib_mop.trainer.data.shards import dealt_out

        n_inputs = next(recipe.n_inputs for recipe in recipes if recipe is not None)
        shard = self._shards.take(name)
        if shard.file is None:
            return dealt_out(shard, n_inputs)
        if self._dealt is None or self._dealt[:2] != (name, n_inputs):
            self._dealt = None
            self._dealt = name, n_inputs, dealt_out(shard, n_inputs)
        return self._dealt[2]

    def _limit_memory(self, limit: int | None, taken_bytes: int, backend: "Backend") -> None:
        if limit is None:
            return
        limit += taken_bytes
        used = lifetime.data_bytes()
        if limit < used + backend.least_free_bytes:
            raise RequestFailure(
                MEMORY,
                InvalidParameter(
                    f"a trainer's memory limit of {limit >> 20} MB is too small, {backend.title} needs {used >> 20} MB",
                    hint="Raise the setting madlib_mop.trainer_memory_mb.",
                ),
            )
        lifetime.limit_data(limit)
        self._memory_limit, self._idle_bytes = limit, used


@dataclasses.dataclass(frozen=True)
class _BegunVisit:
    """A training visit that was made before its request came: the request, epoch and segment, and the outcomes."""

    request: TrainRequest
    place: tuple[int, int]
    outcomes: "list[Trained | RequestFailure | None]"


def _train_request(header: Request) -> tuple[TrainRequest, tuple[int, int]]:
    """Return a request for a training visit, and its epoch and segment."""
    request = message_of(TrainRequest, header)
    return request, (positive(header, "epoch", least=0), positive(header, "segment_id", least=0))


def _as_member(outcome: "Trained | RequestFailure | None") -> TrainedMember | None:
    """Return what a member was trained to, or why it alone failed, for the answer."""
    if isinstance(outcome, RequestFailure):
        return TrainedMember(None, 0, outcome.error.as_dict())
    return None if outcome is None else TrainedMember(outcome.figures, len(outcome.parts))
