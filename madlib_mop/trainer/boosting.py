"""The process that trains gradient boosting on encoded rows: scikit-learn's, in the sandbox of trainers, without Keras.

Usually forked by ``boosting_forkserver.py`` for ``madlib_mop/driver/inference/boosting.py``, which sends frames:
``start``, then the training rows as to a trainer (``shard_begin``, ``shard_rows``), ``fit``, and any number of
``predict``. What it trains ends with it.
"""

import contextlib
import gc
import importlib
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob, Channel, Header, PeerGone
from mop_backend.peer import end_with_peer

from madlib_mop.trainer.incoming import IncomingShard
from madlib_mop.trainer.process import lifetime, loading, sandbox, seccomp
from madlib_mop.trainer.process.failures import failure_of, invalid_input
from madlib_mop.trainer.requests import Request, columns_of, malformed, positive

Floats = npt.NDArray[np.float32]

#: joblib would make a semaphore, which the sandbox forbids. Threads of OpenMP wait for each other in loops hundreds of
#: times an iteration: on busy cores, two need many times as long as one.
ENVIRONMENT = {"JOBLIB_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
#: What scikit-learn takes along if it is installed: a fifth of the time of the import.
_UNUSED = ("pandas", "pyarrow")
_SHARD = "training"
#: Categories with as many codes as scikit-learn has bins are categories there, others are numbers.
_MOST_CODES = 255
_MOST_SEEDS = 1 << 32
#: scikit-learn holds out a share of more rows, by class, to stop early.
_STOPS_EARLY_ABOVE = 10_000
_COLUMNS_AT_ONCE = 256


def main() -> None:
    """Answer requests on standard input until it is closed."""
    serve(*lifetime.set_up(ENVIRONMENT))


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


def load() -> bool:
    """Import scikit-learn, unless it was imported before the fork; return whether it is installed."""
    with contextlib.suppress(ImportError), loading.without(_UNUSED):
        importlib.import_module("sklearn.ensemble")
        return True
    return False


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
        self._terms: list[tuple[int, int, int]] = []
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
        gc.disable()  # without garbage collection, the import takes a tenth less time
        if load():
            self._library = importlib.import_module("sklearn.ensemble")
            version = str(importlib.import_module("sklearn").__version__)
        gc.freeze()
        gc.enable()
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
        ``most_inputs`` numbers of each. ``terms`` has for each text the numbers of two inputs, the indices and the
        weights of its terms, and how many indices there are.
        """
        began = time.monotonic()
        if self._library is None:
            raise malformed("fit came before start, or without scikit-learn")
        shard = self._incoming.finish(_SHARD)
        n_classes = [int(n) for n in header["n_classes"]]
        if len(n_classes) != len(shard.ys):
            raise malformed(f"n_classes has {len(n_classes)} numbers for {len(shard.ys)} targets")
        self._terms = [(int(indices), int(weights), int(n)) for indices, weights, n in header.get("terms", ())]
        inputs = _inputs(shard.xs, self._terms)
        ys = [_target(y, n) for y, n in zip(shard.ys, n_classes, strict=True)]
        del shard
        seed = int(header["seed"]) % _MOST_SEEDS
        if inputs.n_rows > positive(header, "most_rows"):
            rows = np.sort(np.random.default_rng(seed).choice(inputs.n_rows, header["most_rows"], replace=False))
            inputs, ys = inputs.rows(rows), [y[rows] for y in ys]
        self._chosen = _chosen(inputs, ys, n_classes, positive(header, "most_inputs"))
        x, is_index = inputs.columns(self._chosen), inputs.is_index[self._chosen]
        del inputs
        self._categories = is_index & (x.max(axis=0) < _MOST_CODES) & (x.min(axis=0) >= 0)
        self._models = [self._model(x, y, n, seed) for y, n in zip(ys, n_classes, strict=True)]
        return {"n_rows": len(x), "n_inputs": x.shape[1], "seconds": time.monotonic() - began}, []

    def _predict(self, header: Request, blobs: list[Blob]) -> tuple[Header, list[Blob]]:
        """Predict rows: a float32 blob a target, of probabilities (n_rows, n_classes) or of a number (n_rows, 1)."""
        if not self._models:
            raise malformed("predict came before fit")
        inputs = _inputs(columns_of(header, blobs), self._terms)
        assert self._chosen is not None, "it was fitted"
        if len(inputs.is_index) <= self._chosen.max(initial=-1):
            raise invalid_input(f"a row has {len(inputs.is_index)} numbers, fewer than in training")
        x = self._codes_in_range(inputs.columns(self._chosen))
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


@dataclass(frozen=True)
class _Terms:
    """The weights of a text's terms: a sparse matrix (n_rows, n_terms), whose first column is zero.

    Attributes
    ----------
    indices, weights : numpy.ndarray
        int32 and float32 (n_rows, width): the columns and what is in them, 0 and 0 for nothing.
    n_terms : int
    """

    indices: npt.NDArray[np.int32]
    weights: Floats
    n_terms: int

    def columns(self, chosen: npt.NDArray[np.intp]) -> Floats:
        """Return some columns of the matrix."""
        places = np.full(self.n_terms, -1)
        places[chosen] = np.arange(len(chosen))
        found = np.zeros((len(self.indices), len(chosen)), np.float32)
        of_slots = places[self.indices]
        rows, slots = np.nonzero(of_slots >= 0)
        found[rows, of_slots[rows, slots]] = self.weights[rows, slots]
        return found

    def correlations(self, wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the highest correlation of each column with any of ``wanted``, whose means are 0 and lengths 1."""
        indices, weights = self.indices.ravel(), self.weights.ravel().astype(np.float64)
        sums, squares = (np.bincount(indices, one, self.n_terms) for one in (weights, weights**2))
        lengths = np.sqrt(np.maximum(squares - sums**2 / len(self.indices), 1e-24))
        found = np.zeros(self.n_terms)
        for column in wanted.T:
            products = (self.weights * column[:, np.newaxis]).ravel()
            np.maximum(found, np.abs(np.bincount(indices, products, self.n_terms)) / lengths, out=found)
        return found


@dataclass(frozen=True)
class _Inputs:
    """The inputs of some rows as one matrix: numbers, then the weights of each text's terms.

    Attributes
    ----------
    numbers : numpy.ndarray
        float32 (n_rows, n_numbers).
    terms : list of _Terms
    is_index : numpy.ndarray
        bool (n_columns,): which columns are indices of categories.
    """

    numbers: Floats
    terms: list[_Terms]
    is_index: npt.NDArray[np.bool_]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.numbers)

    def rows(self, chosen: npt.NDArray[np.intp]) -> "_Inputs":
        """Return some rows."""
        terms = [_Terms(one.indices[chosen], one.weights[chosen], one.n_terms) for one in self.terms]
        return _Inputs(self.numbers[chosen], terms, self.is_index)

    def columns(self, chosen: npt.NDArray[np.intp]) -> Floats:
        """Return some columns, by ascending number."""
        first = self.numbers.shape[1]
        found = [self.numbers[:, chosen[chosen < first]]]
        for one in self.terms:
            found.append(one.columns(chosen[(first <= chosen) & (chosen < first + one.n_terms)] - first))
            first += one.n_terms
        return np.concatenate(found, axis=1) if self.terms else found[0]


def _inputs(columns: Sequence[np.ndarray], terms: Sequence[tuple[int, int, int]]) -> _Inputs:
    """Return the inputs of some rows, ``terms`` of which are the terms of texts: see `BoostingService._fit`."""
    of_texts = {place for indices, weights, _ in terms for place in (indices, weights)}
    parts = [column.reshape(len(column), -1) for place, column in enumerate(columns) if place not in of_texts]
    is_index = [np.full(part.shape[1], part.dtype == np.int32) for part in parts]
    numbers = [np.zeros((len(columns[0]), 0), np.float32)] if terms else []
    numbers += [part.astype(np.float32, copy=False) for part in parts]
    texts = [_Terms(columns[indices], columns[weights], n_terms) for indices, weights, n_terms in terms]
    for one in texts:
        if one.indices.size and not (one.indices.min() >= 0 and one.indices.max() < one.n_terms):
            raise invalid_input(f"a row has a term that is not one of {one.n_terms:,}", hint="Pack the table again.")
        is_index.append(np.zeros(one.n_terms, np.bool_))
    return _Inputs(np.concatenate(numbers, axis=1), texts, np.concatenate(is_index))


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
    inputs: _Inputs, ys: Sequence[npt.NDArray[Any]], n_classes: Sequence[int], most: int
) -> npt.NDArray[np.intp]:
    """Return the columns to use, by number: all, or indices and those that are most correlated with a target."""
    x, n_columns = inputs.numbers, len(inputs.is_index)
    if n_columns <= most:
        return np.arange(n_columns)
    columns = [y[:, np.newaxis] if not n else y[:, np.newaxis] == np.arange(n)
               for y, n in zip(ys, n_classes, strict=True)]  # fmt: skip
    wanted = np.concatenate(columns, axis=1).astype(np.float64)
    wanted -= wanted.mean(axis=0)
    wanted /= np.maximum(np.sqrt((wanted**2).sum(axis=0)), 1e-12)
    scores = np.empty(n_columns)
    for start in range(0, x.shape[1], _COLUMNS_AT_ONCE):
        part = x[:, start : start + _COLUMNS_AT_ONCE].astype(np.float64)
        part -= part.mean(axis=0)
        part /= np.maximum(np.sqrt((part**2).sum(axis=0)), 1e-12)
        scores[start : start + part.shape[1]] = np.abs(part.T @ wanted).max(axis=1)
    first = x.shape[1]
    for one in inputs.terms:
        scores[first : first + one.n_terms] = one.correlations(wanted)
        first += one.n_terms
    scores[inputs.is_index] = 2.0
    return np.sort(np.argsort(-scores, kind="stable")[:most])


if __name__ == "__main__":
    main()
