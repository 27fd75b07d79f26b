"""The process that trains gradient boosting on encoded rows: scikit-learn's, in the sandbox of trainers, without Keras.

Started by ``madlib_mop/driver/inference/boosting.py``, which sends frames: ``start``, then the training rows as to a
trainer (``shard_begin``, ``shard_rows``), ``fit``, and any number of ``predict``. What it trains ends with it.
"""

import contextlib
import importlib
import time
import traceback
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob, Channel, Header, PeerGone
from mop_backend.peer import end_with_peer

from madlib_mop.trainer.incoming import IncomingShard
from madlib_mop.trainer.process import lifetime, sandbox, seccomp
from madlib_mop.trainer.process.failures import failure_of, invalid_input
from madlib_mop.trainer.requests import Request, columns_of, malformed, positive

Floats = npt.NDArray[np.float32]

#: joblib would make a semaphore, which the sandbox forbids. Threads of OpenMP wait for each other in loops hundreds of
#: times an iteration: on busy cores, two need many times as long as one.
_ENVIRONMENT = {"JOBLIB_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
_SHARD = "training"
#: Categories with as many codes as scikit-learn has bins are categories there, others are numbers.
_MOST_CODES = 255
_MOST_SEEDS = 1 << 32
#: scikit-learn holds out a share of more rows, by class, to stop early.
_STOPS_EARLY_ABOVE = 10_000
_COLUMNS_AT_ONCE = 256


def main() -> None:
    """Answer requests on standard input until it is closed."""
    serve(*lifetime.set_up(_ENVIRONMENT))


def serve(read_fd: int, write_fd: int) -> None:
    """Answer requests until the end of the input; no exception of a request ends it."""
    channel, service = Channel(read_fd, write_fd), BoostingService(read_fd)
    with contextlib.suppress(PeerGone, ValueError):
        while True:
            header, blobs = channel.receive()
            answer = service.answer(Request(header), blobs)
            del blobs
            if answer is not None:
                channel.send(*answer)


class BoostingService:
    """What the process holds between requests: the training rows, then a model for each target.

    Parameters
    ----------
    read_fd : int
        The process ends when its other end is closed.
    """

    _OPS = frozenset({"start", "shard_begin", "shard_rows", "fit", "predict"})
    _SILENT = frozenset({"shard_begin", "shard_rows"})

    def __init__(self, read_fd: int):
        self._read_fd = read_fd
        self._incoming = IncomingShard()
        self._library: Any = None
        self._chosen: npt.NDArray[np.intp] | None = None
        self._categories: npt.NDArray[np.bool_] | None = None
        self._models: list[_Model] = []

    def answer(self, header: Request, blobs: list[Blob]) -> tuple[Header, Sequence[Blob]] | None:
        """Execute one request; return the answer's header and blobs, None if it has none."""
        op = header.get("op")
        try:
            if op not in self._OPS:
                raise malformed(f"no operation {op!r}")
            found, out = getattr(self, f"_{op}")(header, blobs)
        except Exception as error:  # noqa: BLE001 -- each is answered
            traceback.print_exc()
            failure = failure_of(error)
        else:
            return None if op in self._SILENT else ({"ok": True, **found}, out)
        lifetime.release_memory()
        if op not in self._SILENT:
            return failure.as_answer(), []
        self._incoming.fail(failure)
        return None

    def _start(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        """Enter the sandbox and import scikit-learn; return its version, None if it is not installed."""
        in_force = {"landlock": False, "seccomp": False}
        is_confined = header.get("sandbox", True)
        if is_confined:
            in_force["landlock"] = sandbox.restrict_files()  # defence: files-of-boosting = False
        version = None
        with contextlib.suppress(ImportError):
            self._library = importlib.import_module("sklearn.ensemble")
            version = str(importlib.import_module("sklearn").__version__)
        end_with_peer(self._read_fd)
        if is_confined:
            in_force["seccomp"] = seccomp.restrict_calls()  # defence: calls-of-boosting = False
        lifetime.limit_data(positive(header, "memory_limit_bytes"))
        return {"version": version, **in_force}, []

    def _shard_begin(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        self._incoming.begin(Request({**header, "shard": _SHARD}))
        return {}, []

    def _shard_rows(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        self._incoming.add(header["shapes"], blobs)
        return {}, []

    def _fit(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        """Train a model for each target.

        ``n_classes`` has the number of classes of each target, 0 for a number. At most ``most_rows`` rows are used, and
        ``most_inputs`` numbers of each.
        """
        began = time.monotonic()
        if self._library is None:
            raise malformed("fit came before start, or without scikit-learn")
        shard = self._incoming.finish(_SHARD)
        n_classes = [int(n) for n in header["n_classes"]]
        if len(n_classes) != len(shard.ys):
            raise malformed(f"n_classes has {len(n_classes)} numbers for {len(shard.ys)} targets")
        x, is_index = _numbers(shard.xs)
        ys = [_target(y, n) for y, n in zip(shard.ys, n_classes, strict=True)]
        del shard
        seed = int(header["seed"]) % _MOST_SEEDS
        if len(x) > positive(header, "most_rows"):
            rows = np.sort(np.random.default_rng(seed).choice(len(x), header["most_rows"], replace=False))
            x, ys = x[rows], [y[rows] for y in ys]
        self._chosen = _chosen(x, is_index, ys, n_classes, positive(header, "most_inputs"))
        x, is_index = x[:, self._chosen], is_index[self._chosen]
        self._categories = is_index & (x.max(axis=0) < _MOST_CODES) & (x.min(axis=0) >= 0)
        self._models = [self._model(x, y, n, seed) for y, n in zip(ys, n_classes, strict=True)]
        return {"n_rows": len(x), "n_inputs": x.shape[1], "seconds": time.monotonic() - began}, []

    def _predict(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        """Predict rows: a float32 blob a target, of probabilities (n_rows, n_classes) or of a number (n_rows, 1)."""
        if not self._models:
            raise malformed("predict came before fit")
        x, _ = _numbers(columns_of(header, blobs))
        assert self._chosen is not None, "it was fitted"
        if x.shape[1] <= self._chosen.max(initial=-1):
            raise invalid_input(f"a row has {x.shape[1]} numbers, fewer than in training")
        x = self._codes_in_range(x[:, self._chosen])
        outputs = [model.predict(x) for model in self._models]
        return {"shapes": [list(output.shape) for output in outputs]}, [output.data for output in outputs]

    def _model(self, x: Floats, y: npt.NDArray[Any], n_classes: int, seed: int) -> "_Model":
        if n_classes and len(np.unique(y)) < 2:
            return _Constant(int(y[0]), n_classes)
        options: dict[str, Any] = {"random_state": seed, "categorical_features": self._categories}
        if not n_classes:
            return _Number(self._library.HistGradientBoostingRegressor(**options).fit(x, y))
        if len(x) > _STOPS_EARLY_ABOVE and (np.bincount(y) == 1).any():
            options["early_stopping"] = False  # a class with one row cannot be divided
        return _Classes(self._library.HistGradientBoostingClassifier(**options).fit(x, y), n_classes)

    def _codes_in_range(self, x: Floats) -> Floats:
        """Make codes that are no category of scikit-learn's missing values."""
        assert self._categories is not None, "it was fitted"
        for place in np.flatnonzero(self._categories):
            column = x[:, place]
            x[(column < 0) | (column >= _MOST_CODES), place] = np.nan
        return x


class _Model(Protocol):
    def predict(self, x: Floats) -> Floats: ...


class _Number:
    def __init__(self, model: Any):
        self._model = model

    def predict(self, x: Floats) -> Floats:
        return np.ascontiguousarray(self._model.predict(x)[:, np.newaxis], np.float32)


class _Classes:
    def __init__(self, model: Any, n_classes: int):
        self._model, self._n_classes = model, n_classes

    def predict(self, x: Floats) -> Floats:
        found = np.zeros((len(x), self._n_classes), np.float32)
        found[:, self._model.classes_] = self._model.predict_proba(x)
        return found


class _Constant:
    """All training rows have one class."""

    def __init__(self, code: int, n_classes: int):
        self._code, self._n_classes = code, n_classes

    def predict(self, x: Floats) -> Floats:
        found = np.zeros((len(x), self._n_classes), np.float32)
        found[:, self._code] = 1.0
        return found


def _numbers(columns: Sequence[np.ndarray]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the inputs as one matrix, and which of its columns are indices.

    Returns
    -------
    tuple of numpy.ndarray
        float32 (n_rows, n_numbers), and bool (n_numbers,).
    """
    parts = [column.reshape(len(column), -1) for column in columns]
    is_index = np.concatenate([np.full(part.shape[1], part.dtype == np.int32) for part in parts])
    return np.concatenate([part.astype(np.float32, copy=False) for part in parts], axis=1), is_index


def _target(y: np.ndarray, n_classes: int) -> npt.NDArray[Any]:
    """Return int64 (n_rows,) codes of one-hot or index labels, or float64 (n_rows,) numbers."""
    rows = y.reshape(len(y), -1)
    if not n_classes:
        return rows[:, 0].astype(np.float64)
    codes = rows[:, 0].astype(np.int64) if rows.shape[1] == 1 else rows.argmax(axis=1).astype(np.int64)
    if ((codes < 0) | (codes >= n_classes)).any():
        raise invalid_input(f"a row has a class that is not one of {n_classes}", hint="Pack the table again.")
    return codes


def _chosen(
    x: Floats, is_index: npt.NDArray[np.bool_], ys: Sequence[npt.NDArray[Any]], n_classes: Sequence[int], most: int
) -> npt.NDArray[np.intp]:
    """Return the columns to use, by number: all, or indices and those that are most correlated with a target."""
    if x.shape[1] <= most:
        return np.arange(x.shape[1])
    columns = [y[:, np.newaxis] if not n else y[:, np.newaxis] == np.arange(n)
               for y, n in zip(ys, n_classes, strict=True)]  # fmt: skip
    wanted = np.concatenate(columns, axis=1).astype(np.float64)
    wanted -= wanted.mean(axis=0)
    wanted /= np.maximum(np.sqrt((wanted**2).sum(axis=0)), 1e-12)
    scores = np.empty(x.shape[1])
    for start in range(0, x.shape[1], _COLUMNS_AT_ONCE):
        part = x[:, start : start + _COLUMNS_AT_ONCE].astype(np.float64)
        part -= part.mean(axis=0)
        part /= np.maximum(np.sqrt((part**2).sum(axis=0)), 1e-12)
        scores[start : start + part.shape[1]] = np.abs(part.T @ wanted).max(axis=1)
    scores[is_index] = 2.0
    return np.sort(np.argsort(-scores, kind="stable")[:most])


if __name__ == "__main__":
    main()
