"""Starts trainer processes and speaks frames with them, for the tests of this directory."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from mop_backend.frames import Channel

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
_RUN = (
    "import sys, runpy; sys.path[:0] = {paths!r}; "
    "runpy.run_module('madlib_mop.trainer', run_name='__main__', alter_sys=True)"
)


class TrainerError(Exception):
    """The trainer answered with an error."""

    def __init__(self, answer):
        super().__init__(answer["error"]["message"])
        self.kind = answer["kind"]
        self.sqlstate = answer["error"]["sqlstate"]
        self.message = answer["error"]["message"]
        self.hint = answer["error"]["hint"]


class Trainer:
    """A trainer process, as ``python -I -m madlib_mop.trainer`` starts it; a context manager that leaves none behind.

    With ``started`` it gets its ``start``, whose settings are the other arguments.
    """

    def __init__(self, *, started=True, **settings):
        self.stderr = tempfile.TemporaryFile()
        to_child, from_child = os.pipe(), os.pipe()
        paths = [str(REPOSITORY), str(REPOSITORY / "plpython")]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _RUN.format(paths=paths)],
            stdin=to_child[0],
            stdout=from_child[1],
            stderr=self.stderr,
            start_new_session=True,
        )
        os.close(to_child[0])
        os.close(from_child[1])
        self.channel = Channel(from_child[0], to_child[1])
        if started:
            defaults = {"threads": 1, "memory_limit_bytes": None, "shard_cache_bytes": 1 << 28, "sandbox": False}
            self.versions = self.ask({"op": "start", **defaults, **settings})[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the pipes, which ends the process, and wait for it."""
        for fd in (self.channel.write_fd, self.channel.read_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()

    def errors(self):
        """What the trainer has written to stderr."""
        self.stderr.seek(0)
        return self.stderr.read().decode(errors="replace")

    def ask(self, header, blobs=()):
        """Send a request; give (answer, blobs) or raise TrainerError."""
        answer, out = self.channel.ask(header, blobs)
        if "error" in answer:
            raise TrainerError(answer)
        assert answer["ok"] is True
        return answer, out

    def send_shard(self, key, xs, ys, *, buffer_size=100, normalizing_const=1.0, **more):
        """Send a shard in buffers of ``buffer_size`` rows; give the answer of ``shard_end``."""
        columns = [np.ascontiguousarray(a) for a in (*xs, *ys)]
        head = {"op": "shard_begin", "shard": key, "n_x": len(xs), "n_y": len(ys)}
        self.channel.send({**head, "normalizing_const": normalizing_const, **more})
        for start in range(0, len(columns[0]), buffer_size):
            rows = [column[start : start + buffer_size] for column in columns]
            self.channel.send({"op": "shard_rows", "shapes": [r.shape for r in rows]}, rows)
        return self.ask({"op": "shard_end", "shard": key})[0]

    def train(self, model, shard, *, epoch=1, segment_id=0, state=None, weights=None):
        """Make a training visit; give (answer, parts)."""
        head = {"op": "train", "model": model, "shard": shard, "epoch": epoch, "segment_id": segment_id}
        return self._visit(head, state, weights)

    def evaluate(self, model, shard, *, state=None, weights=None):
        """Make an evaluation visit; give the answer."""
        return self._visit({"op": "evaluate", "model": model, "shard": shard}, state, weights)[0]

    def load_predictor(self, model, *, normalizing_const=1.0, state=None, weights=None):
        """Load a model to predict with."""
        head = {"op": "predict_load", "model": model, "normalizing_const": normalizing_const}
        return self._visit(head, state, weights)[0]

    def predict(self, *xs):
        """Predict rows; give an array an output."""
        answer, blobs = self.ask({"op": "predict", "shapes": [x.shape for x in xs]}, xs)
        shapes = answer["shapes"]
        return [np.frombuffer(blob, np.float32).reshape(shape) for blob, shape in zip(blobs, shapes, strict=True)]

    def _visit(self, head, state, weights):
        has = {"has_state": state is not None, "has_weights": weights is not None}
        return self.ask({**head, **has}, state if state is not None else [weights] if weights is not None else [])
