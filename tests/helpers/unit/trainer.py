"""Starts trainer processes and exchanges frames with them, for the tests of trainers."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import uuid

import numpy as np
from mop_backend.forkserver import FIRST_FD, ForkServer, backend_words
from mop_backend.frames import Channel
from mop_backend.keras_backends import USUAL
from mop_backend.shard_file import open_shard_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
#: The backend of Keras of the tests.
BACKEND = os.environ.get("MOP_TEST_BACKEND", str(USUAL))
#: Not the process' number: it may be that of a process in another container with the same network.
_FORKSERVER = f"madlib_mop.tests.{uuid.uuid4().hex}"
_RUN = "import sys, runpy; sys.path[:0] = {paths!r}; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"


def command(module):
    """Return the command that runs a module of the repository's."""
    paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
    return [sys.executable, "-I", "-c", _RUN.format(paths=paths, module=module)]


def forkserver():
    """Return the fork server of this test process."""
    return ForkServer(_FORKSERVER, os.getpid(), command("madlib_mop.trainer.forkserver"))


class TrainerError(Exception):
    """An error in a trainer's answer."""

    def __init__(self, answer):
        super().__init__(answer["error"]["message"])
        self.kind = answer["kind"]
        self.sqlstate = answer["error"]["sqlstate"]
        self.message = answer["error"]["message"]
        self.hint = answer["error"]["hint"]


def buffers(weights):
    """Return weights as the blobs of a request."""
    return [weights] if isinstance(weights, bytes) else list(weights)


def member(model, state=None, weights=None, **start):
    """Return a model's part of a request, as `mop_backend.messages.ModelStart`."""
    n_blobs = len(state) if state is not None else 0 if weights is None else len(buffers(weights))
    has = {"has_state": state is not None, "has_weights": weights is not None}
    return {"model": model, "n_blobs": n_blobs, **has, **start}


class Trainer:
    """A trainer process; the context manager ends it.

    With ``started`` it gets the request ``start``, with the other arguments as settings. It is forked from the fork
    server, as usual, or, with ``forked=False``, started with ``python -I -m madlib_mop.trainer``. ``shard_disk_bytes``
    and ``shard_directory`` are for its file.
    """

    def __init__(self, *, started=True, forked=True, backend=BACKEND, **settings):
        self.stderr = tempfile.TemporaryFile()
        file = open_shard_file(settings)
        fds = [] if file is None or file.fd is None else [file.fd]
        self.process = (
            forkserver().with_backend(backend).fork(self.stderr.fileno(), None, fds)
            if forked
            else subprocess.Popen(
                [*command("madlib_mop.trainer"), *backend_words(backend)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                bufsize=0,
                pass_fds=fds,
                start_new_session=True,
            )
        )
        if file is not None:
            settings |= file.header(FIRST_FD if forked else file.fd)
            file.close()
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        if started:
            self.versions = self.start(backend=backend, **settings)

    def start(self, **settings):
        """Send the request ``start``; return the answer."""
        defaults = {"threads": 1, "memory_limit_bytes": None, "shard_cache_bytes": 1 << 28, "sandbox": False}
        return self.ask({"op": "start", **defaults, **settings})[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the pipes, which ends the process, and wait for it."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()

    def errors(self):
        """Return the trainer's output to stderr."""
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")

    def ask(self, header, blobs=()):
        """Send a request; return (answer, blobs) or raise TrainerError."""
        answer, out = self.channel.ask(header, blobs)
        if "error" in answer:
            raise TrainerError(answer)
        assert answer["ok"] is True
        return answer, out

    def send_shard(self, key, xs, ys, *, buffer_size=100, normalizing_const=1.0, **more):
        """Send a shard in buffers of ``buffer_size`` rows; return the answer of ``shard_end``."""
        columns = [np.ascontiguousarray(a) for a in (*xs, *ys)]
        indices = [i for i, x in enumerate(xs) if x.dtype == np.int32]
        head = {"op": "shard_begin", "shard": key, "n_x": len(xs), "n_y": len(ys), "index_inputs": indices}
        self.channel.send({**head, "normalizing_const": normalizing_const, **more})
        for start in range(0, len(columns[0]), buffer_size):
            rows = [column[start : start + buffer_size] for column in columns]
            self.channel.send({"op": "shard_rows", "shapes": [r.shape for r in rows]}, rows)
        return self.ask({"op": "shard_end", "shard": key})[0]

    def train(self, model, shard, *, epoch=1, segment_id=0, state=None, weights=None):
        """Make a training visit; return (answer, parts)."""
        head = {"op": "train", "shard": shard, "epoch": epoch, "segment_id": segment_id}
        return self.visit(head, model, state, weights)

    def begin(self, model, shard, *, epoch=1, segment_id=0, state=None, weights=None):
        """Let it begin a training visit while the shard arrives, which is sent next; `train` has the answer."""
        head = {"op": "begin_visit", "shard": shard, "epoch": epoch, "segment_id": segment_id}
        blobs = state if state is not None else [weights] if weights is not None else []
        self.channel.send({**head, "members": [member(model, state, weights)]}, blobs)

    def evaluate(self, model, shard, *, state=None, weights=None):
        """Make an evaluation visit; return the figures."""
        return self.visit({"op": "evaluate", "shard": shard}, model, state, weights)[0]

    def visit(self, head, model, state=None, weights=None, **start):
        """Make a visit of one model; return (figures, parts). ``start`` has other fields of `ModelStart`."""
        blobs = state if state is not None else [] if weights is None else buffers(weights)
        answer, parts = self.ask({**head, "members": [member(model, state, weights, **start)]}, blobs)
        (found,) = answer["members"]
        if head["op"] == "evaluate":
            return found, parts
        assert found["n_blobs"] == len(parts) and found["error"] is None
        return found["figures"], parts

    def load_predictor(self, model, *, normalizing_const=1.0, state=None, weights=None):
        """Load a model for prediction."""
        has = {"has_state": state is not None, "has_weights": weights is not None}
        head = {"op": "predict_load", "model": model, "normalizing_const": normalizing_const, **has}
        return self.ask(head, state if state is not None else [] if weights is None else buffers(weights))[0]

    def predict(self, *xs):
        """Predict rows; return one array for each output."""
        answer, blobs = self.ask({"op": "predict", "shapes": [x.shape for x in xs]}, xs)
        shapes = answer["shapes"]
        return [np.frombuffer(blob, np.float32).reshape(shape) for blob, shape in zip(blobs, shapes, strict=True)]
