"""Gradient boosting on the encoded rows of a packed table: a baseline for networks; used by its command.

scikit-learn trains it in a process of its own, with the sandbox of trainers (``madlib_mop/trainer/boosting.py``), with
its default parameters and limits of time and memory, on so many rows as the time allows. It is no model: it ends with
the process.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from mop_backend.forkserver import ForkServer
from mop_backend.frames import Blob, Frame, Header
from mop_backend.process import Child

from madlib_mop.catalog.names import Relation
from madlib_mop.certainty.measures import of_scaled_numbers
from madlib_mop.columns.preprocessors.fits import ClassFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.describing import read_preprocessor
from madlib_mop.driver.inference.labelled_rows import Buffer, LabelledRows, packed_rows
from madlib_mop.driver.inference.measured import MeasuredTarget, counts_of_classes, measured_targets
from madlib_mop.driver.inference.packed_rows import MAX_BYTES, PredictedBuffer, PredictedTable, collect_predictions
from madlib_mop.driver.inference.trainer import LocalProcess, TrainerLate, start_settings
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import is_own
from madlib_mop.errors import InvalidParameter, MopError

#: The name of what is trained, in messages and results.
GRADIENT_BOOSTING = "gradient boosting"
_MODULE = "madlib_mop.trainer.boosting"
_MEMORY_BYTES = 2 << 30
#: Float32 numbers that are sent, because the process holds up to five times their memory.
_MOST_SENT = 64 << 20
#: Numbers of a row that are used.
_MOST_INPUTS = 512
#: Rows x inputs x trees of an iteration for each second that it may take. A core makes about three times as
#: many, so that slower and busy ones are ready in time too.
_WORK_PER_S = 600_000
_MOST_CLASSES = 50
_WHAT = "packed_table"
#: The sets of held-out rows, which are suffixes of their tables.
SETS = ("validation", "test")
#: The argument that names a table of held-out rows, for messages.
HELD_OUT = "test_table"


class NoBaseline(Exception):
    """There is no baseline; the message is the reason, without a period, the hint what to do."""

    def __init__(self, reason: str, hint: str | None = None):
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True)
class BoostingFit:
    """What was trained.

    Attributes
    ----------
    version : str
        Of scikit-learn.
    n_rows, n_rows_there : int
        Training rows that were used, and all.
    n_inputs, n_inputs_there : int
        Numbers of a row that were used, and all without those of images.
    has_images : bool
        Whether images were left out.
    seconds : float
        Of the training alone.
    """

    version: str
    n_rows: int
    n_rows_there: int
    n_inputs: int
    n_inputs_there: int
    has_images: bool
    seconds: float

    @property
    def library(self) -> str:
        """The library and its version."""
        return f"scikit-learn {self.version}"

    @property
    def note(self) -> str:
        """What it was trained on, without a period."""
        rows = f"{self.n_rows:,} training rows"
        if self.n_rows < self.n_rows_there:
            rows = f"a sample of {self.n_rows:,} of {self.n_rows_there:,} training rows"
        if self.n_inputs < self.n_inputs_there:
            rows += f", with the {self.n_inputs:,} of {self.n_inputs_there:,} inputs most correlated with the target"
        return f"{rows}, without images" if self.has_images else rows


@dataclass(frozen=True)
class MeasuredBoosting:
    """What was trained, and how good it is.

    Attributes
    ----------
    fit : BoostingFit
    sets : dict of str to (list of MeasuredTarget)
        The targets of the rows of each set: ``validation``, ``test``.
    n_rows : dict of str to int
        The rows of each.
    seconds : float
        Of all: reading rows, training and predicting.
    """

    fit: BoostingFit
    sets: dict[str, list[MeasuredTarget]]
    n_rows: dict[str, int]
    seconds: float


def held_out_beside(session: CallerSession, packed: Relation) -> dict[str, str]:
    """Return the tables that pack_columns makes of held-out rows, by set, if they exist and are the caller's own.

    Parameters
    ----------
    session : CallerSession
    packed : Relation
        The table of training rows. The caller has named only this one.
    """
    found = {}
    for data_set in SETS:
        parts = [session.existing(packed.with_suffix(f"_{data_set}{end}").sql) for end in ("", "_summary")]
        # defence: own-held-out-tables = all(part is not None for part in parts)
        is_packed = all(part is not None and is_own(session, part) for part in parts)
        if is_packed and parts[0] is not None:
            found[data_set] = parts[0].sql
    return found


def measure_boosting(
    session: CallerSession,
    process: "BoostingProcess",
    name: str | None,
    preprocessor: Preprocessor,
    held_out: Mapping[str, str],
    seed: int,
    max_seconds: float,
) -> MeasuredBoosting:
    """Train on a packed table, and measure on others.

    Parameters
    ----------
    session : CallerSession
    process : BoostingProcess
    name : str or None
        The packed table, as written by the caller.
    preprocessor : Preprocessor
        Its own.
    held_out : mapping of str to str
        Names of packed tables with the same preprocessor, by set.
    seed : int
    max_seconds : float
        For all of it.

    Raises
    ------
    MopError
        If pack_columns has not made the tables, they have two preprocessors, or they cannot be read.
    NoBaseline
        If there is no scikit-learn, the rows are not for it, or time is over.
    """
    began = time.monotonic()
    counts = counts_of_classes(session, session.relation(name, _WHAT), name, preprocessor)
    rows = {}
    for data_set, table in held_out.items():
        if read_preprocessor(session, table, HELD_OUT).digest != preprocessor.digest:
            raise InvalidParameter(
                f"{HELD_OUT}: {table} was encoded by another preprocessor than {session.relation(name, _WHAT)}."
                f" Received: {name!r}",
                hint="Pack the table again.",
            )
        rows[data_set] = packed_rows(session, table, HELD_OUT)
    fit = process.fit(packed_rows(session, name, _WHAT), preprocessor, seed, max_seconds)
    sets = {
        data_set: _measured(preprocessor, process.predict(one, HELD_OUT), counts) for data_set, one in rows.items()
    }
    n_rows = {data_set: one.n_rows for data_set, one in rows.items()}
    return MeasuredBoosting(fit, sets, n_rows, time.monotonic() - began)


def _measured(
    preprocessor: Preprocessor, rows: PredictedTable, counts: Mapping[str, Sequence[int]]
) -> list[MeasuredTarget]:
    """Return the measures of the predictions; of numbers also those that leaderboards have of proposed networks."""
    targets = measured_targets(preprocessor, rows, counts)
    for place, (target, values, labels) in enumerate(zip(targets, rows.outputs, rows.labels, strict=True)):
        if target.predicted.numbers is not None:
            numbers, truth = (one.reshape(len(one), -1)[:, 0].astype(np.float64) for one in (values, labels))
            targets[place] = replace(target, measures=[*target.measures, *of_scaled_numbers(numbers, truth)])
    return targets


class BoostingProcess(LocalProcess):
    """The process; use it as a context manager.

    Parameters
    ----------
    session : CallerSession
        Source of the settings: the memory of trainers, and whether they have a sandbox.

    Raises
    ------
    MopError
        From any method: the process's error, or its death.
    NoBaseline
        If there is no scikit-learn, the rows are not for it, or time is over.
    """

    def __init__(self, session: CallerSession):
        of_trainers = start_settings(session)
        start: Header = {
            "op": "start",
            "sandbox": of_trainers["sandbox"],
            "memory_limit_bytes": min(of_trainers["memory_limit_bytes"], _MEMORY_BYTES),
        }
        trainers = ForkServer.told(session.info.forkserver, sys.executable)
        forkserver = None if trainers is None else trainers.of_boosting
        super().__init__(Child(_MODULE, python=sys.executable, forkserver=forkserver), start)
        self._max_seconds = self._ends_at = math.inf
        self._n_columns, self._row_bytes = (0, 0), 0
        self._inputs: list[int] = []
        self._index_inputs: list[int] = []

    def fit(self, packed: LabelledRows, preprocessor: Preprocessor, seed: int, max_seconds: float) -> BoostingFit:
        """Train on the rows of a packed table; this and the predictions may take so many seconds.

        Parameters
        ----------
        packed : LabelledRows
        preprocessor : Preprocessor
            Its own.
        seed : int
        max_seconds : float
        """
        self._max_seconds, self._ends_at = max_seconds, time.monotonic() + max_seconds
        n_classes = [len(one.fit.classes) if isinstance(one.fit, ClassFit) else 0 for one in preprocessor.targets]
        if max(n_classes) > _MOST_CLASSES:
            raise NoBaseline(f"a target has {max(n_classes)} classes, and at most {_MOST_CLASSES} are boosted")
        inputs = [(place, tensor) for place, tensor in enumerate(preprocessor.tensors) if tensor.kind != "image"]
        if not inputs:
            raise NoBaseline("the inputs are images only")
        terms = [(place, tensor.n_codes or 1) for place, (_, tensor) in enumerate(inputs) if tensor.kind == "terms"]
        n_sent = sum(math.prod(tensor.shape) for _, tensor in inputs)
        # a text is sent as terms and weights, and used as a column for each term of the vocabulary
        n_of_texts = sum(math.prod(tensor.shape) for _, tensor in inputs if tensor.kind in ("terms", "weights"))
        n_numbers = max(1, n_sent - n_of_texts + sum(n_terms for _, n_terms in terms))
        n_held = max(n_sent, min(n_numbers, _MOST_INPUTS))
        most_rows = most_training_rows(n_held, n_classes, max_seconds)
        self._row_bytes = 4 * sum(max(1, n) for n in n_classes)
        self._inputs = [place for place, _ in inputs]
        self._n_columns = len(preprocessor.tensors), len(n_classes)
        self._index_inputs = [n for n, (_, tensor) in enumerate(inputs) if tensor.dtype == "int32"]
        pairs = [[place, place + 1, n_terms] for place, n_terms in terms]  # the weights follow their terms
        columns = [*self._inputs, *range(len(packed.independent), len(packed.columns))]
        version = self._wait_for_start()
        self._check_columns(packed)
        begin = {"n_x": len(inputs), "n_y": len(n_classes), "names": [packed.columns[place] for place in columns]}
        begin |= {"normalizing_const": packed.normalizing_const, "index_inputs": self._index_inputs}
        with _without_baseline():
            self.post({"op": "shard_begin", **begin})
        for shapes, blobs in sample(packed, most_rows):
            self._check_time()
            rows = [shapes[place] for place in columns], [blobs[place] for place in columns]
            with _without_baseline():
                self.post({"op": "shard_rows", "shapes": rows[0]}, rows[1])
        limits = {"most_rows": most_rows, "most_inputs": _MOST_INPUTS}
        answer, _ = self._ask({"op": "fit", "n_classes": n_classes, "terms": pairs, "seed": seed, **limits})
        return BoostingFit(
            version, answer["n_rows"], packed.n_rows, answer["n_inputs"], n_numbers,
            len(inputs) < len(preprocessor.tensors), answer["seconds"],
        )  # fmt: skip

    def predict(self, packed: LabelledRows, what: str) -> PredictedTable:
        """Return predictions and labels of all rows of a table with the same encoding; ``what`` is for messages."""
        self._check_columns(packed)
        n_bytes = packed.n_rows * self._row_bytes
        if n_bytes > MAX_BYTES:
            raise NoBaseline(f"the predictions of {packed.n_rows:,} rows take {n_bytes >> 20:,} MiB")
        return collect_predictions(self._predicted_buffers(packed), packed, GRADIENT_BOOSTING, what)

    def _predicted_buffers(self, packed: LabelledRows) -> Iterator[PredictedBuffer]:
        for part in packed.parts:
            for shapes, blobs in packed.buffers(part):
                if shapes[0][:1] == [0]:
                    continue
                header: Header = {"op": "predict", "index_inputs": self._index_inputs}
                header["shapes"] = [shapes[place] for place in self._inputs]
                answer, found = self._ask(header, [blobs[place] for place in self._inputs])
                outputs = zip(answer["shapes"], found, strict=True)
                yield shapes, blobs, [np.frombuffer(blob, np.float32).reshape(shape) for shape, blob in outputs]

    def _check_columns(self, packed: LabelledRows) -> None:
        """Raise NoBaseline for a table whose owner has changed its summary."""
        found = len(packed.independent), len(packed.dependent)
        if found != self._n_columns:
            raise NoBaseline(
                f"{packed.relation} has {found[0]} inputs and {found[1]} targets, and its preprocessor"
                f" {self._n_columns[0]} and {self._n_columns[1]}",
                hint="Pack the table again.",
            )

    def _wait_for_start(self) -> str:
        """Return the version of scikit-learn."""
        try:
            with _without_baseline():
                version = self.await_start(self._left_s())["version"]
        except TrainerLate:
            raise self._late() from None
        if version is None:
            raise NoBaseline(
                "scikit-learn is not installed at the server",
                hint="An administrator can install it in the library's Python.",
            )
        return str(version)

    def _ask(self, header: Header, blobs: Sequence[Blob] = ()) -> Frame:
        try:
            with _without_baseline():
                return self.ask(header, blobs, self._left_s())
        except TrainerLate:
            raise self._late() from None

    def _left_s(self) -> float:
        self._check_time()
        return self._ends_at - time.monotonic()

    def _check_time(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise self._late()

    def _late(self) -> NoBaseline:
        return NoBaseline(f"it was not ready after {self._max_seconds:.3g} s", hint="Pass a larger max_seconds.")


@contextmanager
def _without_baseline() -> Iterator[None]:
    """Turn an error of the process into NoBaseline."""
    try:
        yield
    except MopError as error:
        raise NoBaseline(error.message, error.hint) from None


def most_training_rows(n_numbers: int, n_classes: Sequence[int], max_seconds: float) -> int:
    """Return so many rows as can be trained on in time and are not too large together.

    Parameters
    ----------
    n_numbers : int
        Of a row.
    n_classes : sequence of int
        Of each target, 0 for a number: an iteration makes one tree, for more than two classes one each.
    max_seconds : float
    """
    n_trees = sum(n if n > 2 else 1 for n in n_classes)
    in_time = int(max_seconds * _WORK_PER_S) // (min(n_numbers, _MOST_INPUTS) * n_trees)
    return max(1, min(in_time, _MOST_SENT // n_numbers))


def sample(packed: LabelledRows, most_rows: int) -> Iterator[Buffer]:
    """Yield the buffers with about so many rows: the first ones of each part, because their order is that of a hash."""
    share = min(1.0, most_rows / packed.n_rows)
    for part in packed.parts:
        n_rows = 0
        for shapes, blobs in packed.buffers(part):
            yield shapes, blobs
            n_rows += shapes[0][0] if shapes[0] and isinstance(shapes[0][0], int) else 0
            if share < 1.0 and n_rows >= share * part.n_rows:
                break
