"""The caller's session: statements that the caller's backend runs in the caller's transaction."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mop_backend.frames import Blob, Channel, Frame, Header
from mop_backend.values import decode_arguments, encode_value
from mop_backend.weights import WEIGHTS_DAMAGED, ModelWeights, WeightErrors

from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.driver.session.relations import RelationLookup
from madlib_mop.errors import Cancelled, DataDamaged, from_dict

_LARGE_BATCH_BYTES, _MOST_LARGE_ROWS = 16 << 20, 128
_FIRST_ROWS = 16  # in the first batch, where batches should have a number of bytes


@dataclass(frozen=True)
class BytesColumn:
    """The ``bytea`` values of one column of a batch.

    Attributes
    ----------
    data : bytearray
        All values, concatenated; NULLs have no bytes.
    lengths : list of int
        Bytes of each value; -1 stands for NULL.
    """

    data: Blob
    lengths: list[int]


@dataclass(frozen=True)
class RegisteredContent:
    """A version of a registered model, as the registry has it.

    Attributes
    ----------
    name : str
    version : int
    document : str
        JSON; see driver/inference/registered.py.
    details : str or None
        JSON: what the registry says of the version, unless the caller only wants to predict.
    """

    name: str
    version: int
    document: str
    details: str | None = None


@dataclass(frozen=True)
class Batch:
    """Some rows of a result, column by column: lists of values, or `BytesColumn` for ``bytea``."""

    n_rows: int
    columns: dict[str, list[Any] | BytesColumn] = field(default_factory=dict)

    def bytes_of(self, name: str) -> BytesColumn:
        """Return a column of ``bytea`` that is not entirely NULL."""
        column = self.columns[name]
        assert isinstance(column, BytesColumn), "it is bytea"
        return column

    def values_of(self, name: str) -> list[Any]:
        """Return a column of another type."""
        column = self.columns[name]
        assert isinstance(column, list), "it is no bytea"
        return column


def batch_limits(batch_rows: int, large: bool) -> tuple[int, int | None]:
    """Return the most rows of a batch of `CallerSession.stream` and the bytes that it should have.

    Parameters
    ----------
    batch_rows : int
        Most rows in a batch of small rows.
    large : bool
        Whether rows can be large, such as those with encoded images. Then a batch has few rows, and a number of bytes.
    """
    return (min(batch_rows, _MOST_LARGE_ROWS), _LARGE_BATCH_BYTES) if large else (batch_rows, None)


class CallerSession(RelationLookup):
    """Runs SQL in the caller's backend over frames.

    One request is in flight at a time. `stream` requests its next batch ahead, and `post` does not wait for its
    statement; their answers are read before anything else is sent, so two full pipes cannot block each other.
    """

    stop_fd = 0  # stdin: end of file means that the backend requests a stop

    def __init__(self, channel: Channel, info: SessionInfo):
        self.info = info
        self._channel = channel
        self._ahead: deque[Frame] = deque()
        self._pending: deque[bool] = deque()  # for each answer to come: whether `stream` waits for it
        self._n_cursors = 0

    def execute(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run one statement with ``$1`` ... parameters; return its rows.

        Parameters
        ----------
        statement : str
            SQL whose names were quoted by `madlib_mop.catalog.names.statement`.
        params : sequence
            Values; ``bytes`` for bytea, None for NULL.
        types : sequence of str
            SQL type of each parameter; text where there are fewer.

        Raises
        ------
        MopError
            The server's error, with its SQLSTATE.
        """
        header, blobs = self._ask(self._request("execute", statement, params, types))
        return [dict(zip(header["columns"], decode_arguments(row, blobs), strict=True)) for row in header["rows"]]

    def post(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> None:
        """Run one statement without waiting for its end; its error is raised by the next request, or by `flush`."""
        self._post(self._request("execute", statement, params, types), streamed=False)

    def flush(self) -> None:
        """Wait for the end of what was posted. Raises MopError, the server's error."""
        self._drain()

    def stream(
        self,
        statement: str,
        params: Sequence[Any] = (),
        types: Sequence[str] = (),
        batch_rows: int = 1000,
        batch_bytes: int | None = None,
    ) -> Generator[Batch, None, None]:
        """Run one query and yield its rows in batches; the next batch is fetched while this one is used.

        Parameters
        ----------
        statement : str
        params, types : sequence
            Of the statement.
        batch_rows : int
            Most rows in a batch.
        batch_bytes : int or None
            Bytes that a batch should have, for rows of very different sizes: a batch gets as many rows as would have
            made so many bytes in the one before it, at first 16.
        """
        self._n_cursors += 1
        cursor = self._n_cursors
        request, blobs = self._request("open", statement, params, types)
        self._ask(({**request, "cursor": cursor}, blobs))
        n_rows = batch_rows if batch_bytes is None else min(batch_rows, _FIRST_ROWS)
        fetch = {"do": "fetch", "cursor": cursor, "n_rows": n_rows}
        try:
            self._post((fetch, []))
            while True:
                header, blobs = self._collect()
                if not header["n_rows"]:
                    break
                if batch_bytes is not None:
                    row_bytes = sum(map(len, blobs)) // header["n_rows"] + 1
                    fetch["n_rows"] = max(1, min(batch_rows, batch_bytes // row_bytes))
                self._post((fetch, []))
                yield _batch(header, blobs)
        finally:
            self._drain()
            self._ahead.clear()
            self._channel.send({"do": "close", "cursor": cursor})

    def registered(self, function: str, model: str, right: str = "PREDICT") -> RegisteredContent:
        """Return the version that a name of a registered model stands for, if the caller has a right to it.

        The backend reads it, because the caller may not be able to read the weights.

        Parameters
        ----------
        function : str
            For messages.
        model : str
            Such as ``churn@champion``.
        right : str
            The name of one of `mop_backend.registered.Right`.

        Raises
        ------
        MopError
            If there is no such version, or the caller has no right to it.
        """
        request = {"do": "registered", "function": function, "model": model, "with_weights": False, "right": right}
        header, _ = self._ask((request, []))
        return RegisteredContent(header["name"], header["version"], header["document"], header["details"])

    def registered_weights(self, function: str, model: str, right: str = "PREDICT") -> ModelWeights:
        """Return the weights of such a version. Raises MopError as `registered`, also while they are iterated over."""
        request = {"do": "registered", "function": function, "model": model, "with_weights": True, "right": right}
        header, blobs = self._ask((request, []))
        errors = WeightErrors(*[lambda: DataDamaged(f"{model} is damaged: {WEIGHTS_DAMAGED}")] * 2)
        if blobs:
            return ModelWeights([len(blobs[0])], lambda _: blobs[0], None, errors)

        def read(number: int) -> Blob | None:
            _, found = self._ask(({**request, "part": number}, []))
            return found[0] if found else None

        return ModelWeights(header["lengths"], read, header["digest"], errors)

    def notice(self, text: str) -> None:
        """Send the client a NOTICE."""
        self._channel.send({"do": "notice", "text": text})

    def warning(self, text: str) -> None:
        """Send the client a WARNING."""
        self._channel.send({"do": "warning", "text": text})

    def run_started(self, run_id: int) -> None:
        """Report the run to the backend, which resumes it if this process is killed."""
        self._channel.send({"do": "run", "run_id": run_id})

    def _request(self, action: str, statement: str, params: Sequence[Any], types: Sequence[str]) -> Frame:
        blobs: list[Blob] = []
        values = [encode_value(value, blobs) for value in params]
        all_types = [*types, *["pg_catalog.text"] * (len(values) - len(types))]
        return {"do": action, "sql": statement, "types": all_types, "params": values}, blobs

    def _ask(self, request: Frame) -> Frame:
        self._drain()
        self._channel.send(*request)
        return _checked(self._channel.receive())

    def _post(self, request: Frame, streamed: bool = True) -> None:
        self._drain()
        self._channel.send(*request)
        self._pending.append(streamed)

    def _drain(self) -> None:
        """Read the answers to come: those of `stream` are kept for it, those of `post` are only checked."""
        while self._pending:
            streamed = self._pending.popleft()
            answer = self._channel.receive()
            if streamed:
                self._ahead.append(answer)
            else:
                _checked(answer)

    def _collect(self) -> Frame:
        self._drain()
        return _checked(self._ahead.popleft())


def _checked(answer: Frame) -> Frame:
    header, blobs = answer
    if "stop" in header:
        raise Cancelled(header["stop"])
    if "error" in header:
        raise from_dict(header["error"])
    return header, blobs


def _batch(header: Header, blobs: Sequence[Blob]) -> Batch:
    columns: dict[str, list[Any] | BytesColumn] = {}
    for name, column in header["columns"].items():
        if "lengths" in column:
            columns[name] = BytesColumn(blobs[column["blob"]], column["lengths"])
        else:
            columns[name] = decode_arguments(column["values"], blobs)
    return Batch(header["n_rows"], columns)
