"""The caller's backend: starts the driver, runs the SQL it requests in the caller's session, forwards its messages.

Every user-facing SQL function ends in `run`, with the function's name and arguments. The driver validates them. All
its changes of the user's tables are statements that this session runs in its own transaction with its own
rights.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import plpy

from mop_backend import __version__, allocation
from mop_backend.bounded_json import read_json
from mop_backend.forkserver import DRIVERS, of_this_server
from mop_backend.frames import TRUSTED, Blob, Header, Json, ReceivedBlobs
from mop_backend.interrupts import ClientGone, Interrupted, Interrupts
from mop_backend.keras_backends import USUAL, BackendName
from mop_backend.process import LIBRARY, Child, ChildDied, trainers_of
from mop_backend.rights import MixedRoles, caller_roles
from mop_backend.sql_errors import SQL_ERRORS, STOP_STATES, ErrorFields, fields_of, sqlstate_of
from mop_backend.values import decode_arguments, encode_columns, encode_value

_DRIVER = "madlib_mop.driver"
_STOP_GRACE_S = 0.8
_END_RUN_WITHIN_S = 7.0
_MAX_RESTARTS = 50
#: Functions that soon need trainers: the backend of Keras is imported in the background meanwhile.
_BEFORE_TRAINERS = {
    "load_keras_model",
    "training_preprocessor_dl",
    "pack_columns",
    "learn",
    "madlib_keras_fit",
    "madlib_keras_fit_multiple_model",
    "madlib_keras_automl",
    "explain_fit",
    "madlib_keras_evaluate",
    "madlib_keras_predict",
    "madlib_keras_predict_byom",
    "score",
    "importance",
    "partial_dependence",
    "metrics",
    "confusion_matrix",
    "roc_curve",
    "precision_recall_curve",
    "choose_threshold",
    "reliability",
    "make_ensemble",
    "export_model",
    "export_parts",
    "import_model",
    "import_weights",
    "import_version",
    "replay",
    "resume",
}
#: Functions whose driver is restarted if it is killed.
_RUNS = {"madlib_keras_fit", "madlib_keras_fit_multiple_model", "madlib_keras_automl", "replay", "resume"}
#: Commands that only this package starts, by `ask_driver`: their results are more than the caller may see.
_INTERNAL = {"predict", "explain_prediction", "end_lost_run"}
#: The session's setting before the superusers', as the driver reads them.
_BACKEND = """
SELECT coalesce(nullif(pg_catalog.current_setting('madlib_mop.backend', true), ''),
                (SELECT s.value FROM madlib_mop.setting AS s WHERE s.name = 'backend')) AS backend
"""


_ToDriver = tuple[Header, list[Blob]]  # an answer to the driver


class CallError(Exception):
    """An error for the user, as the fields that PostgreSQL's RAISE takes."""

    def __init__(self, message: str, sqlstate: str, detail: str | None = None, hint: str | None = None):
        super().__init__(message)
        self.fields: ErrorFields = {"message": message, "sqlstate": sqlstate, "detail": detail, "hint": hint}


def run(
    function: str,
    arguments: str,
    caller_path: str | None,
    payload_name: str | None,
    payload: bytes | None,
    version: str,
) -> str:
    """Run one of the driver's commands for the caller.

    Errors are returned, not raised, because PL/Python would add a traceback to their context; the calling SQL
    function raises them.

    Parameters
    ----------
    function : str
        SQL name of the function.
    arguments : str
        JSON object of its arguments.
    caller_path : str or None
        The caller's search_path, for names without a schema.
    payload_name, payload : str or None, bytes or None
        Name and value of the one argument that is a bytea.
    version : str
        The extension's version, which must be the library's.

    Returns
    -------
    str
        JSON: ``{"result": ...}`` or ``{"error": {"message", "sqlstate", "detail", "hint"}}``.
    """
    try:
        check_version(version)
        if function in _INTERNAL:  # defence: no-sql-for-internals
            raise CallError(f"{function}: this command cannot be called from SQL", "0A000")
        values = _read_arguments(arguments)
        if payload_name is not None:
            values[payload_name] = payload
        return json.dumps({"result": ask_driver(function, values, caller_path)})
    except Exception as error:
        return json.dumps({"error": error_fields(function, error)})


def run_for_bytes(function: str, arguments: str, caller_path: str | None, version: str) -> tuple[str | None, Json]:
    """Run a command whose result is a bytea, as `run` does; return the error as JSON, or None, and the result."""
    try:
        check_version(version)
        return None, ask_driver(function, _read_arguments(arguments), caller_path)
    except Exception as error:
        return json.dumps(error_fields(function, error)), None


def run_for_parts(
    function: str, arguments: str, caller_path: str | None, version: str
) -> Iterator[tuple[str | None, bytes | None]]:
    """Run a command whose result is a list of bytea, as `run` does; yield each of them, or the error as JSON.

    This process has one of them at a time.
    """
    try:
        check_version(version)
        plpy.execute(plpy.prepare("SELECT madlib_mop_calls._at_coordinator($1)", ["text"]), [function])
        request, blobs = _request(function, _read_arguments(arguments), caller_path)
        try:
            with _Conversation(function).result(request, blobs) as (_, parts):
                for part in parts:
                    yield None, bytes(part)
        except ChildDied as death:
            raise _driver_ended(function, death) from None
    except Exception as error:
        yield json.dumps(error_fields(function, error)), None


def _read_arguments(text: str | None) -> dict[str, Any]:
    """Read a JSON object without nested objects; a direct call of `madlib_mop_calls.call` can pass any JSON."""
    values: dict[str, Any] = {}
    try:
        values = read_json(text or "")  # a direct call can pass NULL
        good = isinstance(values, dict) and not any(map(_holds_object, values.values()))
    except (TypeError, ValueError, RecursionError):
        good = False
    if not good:
        raise CallError("the arguments of a call must be a JSON object of plain values and arrays", "22023")
    return values


def _holds_object(value: Json) -> bool:
    return any(map(_holds_object, value)) if isinstance(value, list) else isinstance(value, dict)


def error_fields(function: str, error: Exception) -> ErrorFields:
    """Return the fields of an exception for the SQL function that raises it: message, sqlstate, detail, hint."""
    if isinstance(error, CallError):
        return error.fields
    if isinstance(error, MixedRoles):
        return {**error.fields, "message": f"{function}: {error}"}
    if isinstance(error, SQL_ERRORS):
        return fields_of(error)
    if isinstance(error, ClientGone):
        return {"message": str(error), "sqlstate": "08006"}
    if isinstance(error, Interrupted):
        return {"message": f"{function}: {error}", "sqlstate": "57014"}
    import traceback  # not at the top: most calls do without it

    plpy.log(f"madlib_mop: {function}: {''.join(traceback.format_exception(error))}")
    fields = {"message": f"{function}: internal error: {type(error).__name__}: {error}", "sqlstate": "XX000"}
    return {**fields, "hint": "The server's log has the details. Please report this."}


def ask_driver(function: str, values: dict[str, Any], caller_path: str | None) -> Json:
    """Start a driver for one command, with its arguments and the caller's search_path; return the command's result.

    Writes of a killed driver, such as incomplete output tables, are rolled back before another one starts. If they
    cannot be rolled back separately, the call and its transaction end.
    """
    can_undo = function in _RUNS and not _in_cluster()
    request, blobs = _request(function, values, caller_path)
    for _ in range(_MAX_RESTARTS):
        conversation = _Conversation(function)
        try:
            with plpy.subtransaction() if can_undo else contextlib.nullcontext():
                return conversation.hold(request, blobs)
        except SQL_ERRORS as error:
            if conversation.run_id is None:
                raise
            hint = f"What was committed is kept: SELECT madlib_mop.resume({conversation.run_id}); goes on with the run."
            found = fields_of(error)
            message = str(found["message"])
            if conversation.cancelled_by is not None:  # by a call that has then ended this statement
                message = f"run {conversation.run_id} was cancelled by {conversation.cancelled_by}"
            raise CallError(message, str(found["sqlstate"]), hint=hint) from None
        except ChildDied as death:
            if conversation.run_id is None or death.returncode != -signal.SIGKILL:
                plpy.log(f"madlib_mop: the driver of {function} ended with status {death.returncode}: {death.stderr}")
                if conversation.run_id is not None:
                    reason = f"the driver process ended with status {death.returncode}"
                    _end_lost_run(request["session"], conversation.run_id, reason)
                raise _driver_ended(function, death) from None
            if conversation.has_written and not can_undo:
                raise CallError(
                    f"{function}: the driver process was killed while it wrote the output tables",
                    "58000",
                    hint=f"Nothing is lost: SELECT madlib_mop.resume({conversation.run_id}); writes them.",
                ) from None
            plpy.notice(f"{function}: the driver process was killed; a new one continues run {conversation.run_id}")
            request = {**request, "continue_run": conversation.run_id}
    raise CallError(f"{function}: the driver process was killed {_MAX_RESTARTS} times", "58000")


def _request(function: str, values: dict[str, Any], caller_path: str | None) -> tuple[Header, list[Blob]]:
    """Return the first frame for a driver."""
    blobs: list[Blob] = []
    return {"function": function, "session": _session(caller_path), "arguments": encode_value(values, blobs)}, blobs


def _driver_ended(function: str, death: ChildDied) -> CallError:
    return CallError(
        f"{function}: the driver process ended with status {death.returncode}",
        "58000",
        detail=death.last_words,
        hint="`madlib-mop doctor` checks the installation; the server's log may have more details.",
    )


def _end_lost_run(session: Header, run_id: int, reason: str) -> str | None:
    """Let another driver end a run whose driver was killed or has died; return who has cancelled the run, if anybody.

    It gets some seconds. If it fails, the next one who looks for such runs ends it.
    """
    blobs: list[Blob] = []
    arguments = encode_value({"run_id": run_id, "reason": reason}, blobs)
    try:
        driver = Child(_DRIVER, forkserver=of_this_server(LIBRARY, DRIVERS))
        try:
            driver.send({"function": "end_lost_run", "session": session, "arguments": arguments}, blobs)
            while driver.await_answer(_END_RUN_WITHIN_S):
                header, blobs = driver.receive()
                if header["do"] == "result":
                    by: str | None = decode_arguments(header["value"], blobs)
                    return by
                if header["do"] == "error":
                    plpy.log(f"madlib_mop: the end of run {run_id} was not recorded: {header['message']}")
                    break
                plpy.log(header["text"])
        finally:
            driver.stop()
    except (OSError, ChildDied) as error:
        plpy.log(f"madlib_mop: the end of run {run_id} was not recorded: {error}")
    return None


def _in_cluster() -> bool:
    """Return whether this is Greenplum.

    There a cancel may arrive while the segments are told of a subtransaction, outside of what PL/Python guards; with an
    open plpy.subtransaction() that ends the session (XX000, RollbackAndReleaseCurrentSubTransaction).
    """
    query = "select pg_catalog.to_regclass('pg_catalog.gp_segment_configuration') is not null as yes"
    found: bool = plpy.execute(query)[0]["yes"]
    return found


class _Conversation:
    """One driver process, from its start to its last frame."""

    def __init__(self, function: str):
        self.function = function
        self.run_id: int | None = None
        self.has_written = False  # whether anything was written since the run was recorded
        self.cancelled_by: str | None = None  # known where the driver did not end by itself
        self._cursors: dict[str, plpy.Cursor] = {}
        self._interrupts = Interrupts()

    def hold(self, request: Header, blobs: Sequence[Blob]) -> Json:
        """Send the request, then run the driver's requests until it returns a result or an error."""
        with self.result(request, blobs) as (value, parts):
            return decode_arguments(value, list(parts))

    @contextlib.contextmanager
    def result(self, request: Header, blobs: Sequence[Blob]) -> Iterator[tuple[Json, ReceivedBlobs]]:
        """As `hold`, but return the result as in its frame, and its blobs, each of which is read when it is used."""
        try:
            if self.function in _BEFORE_TRAINERS and (trainers := trainers_of(_wanted_backend())) is not None:
                trainers.start()
            forkserver = of_this_server(LIBRARY, DRIVERS)
            driver = Child(_DRIVER, check=self._interrupts, forkserver=forkserver, limits=TRUSTED)
        except OSError as error:
            raise CallError(
                f"{self.function}: the library's interpreter cannot be started: {error.strerror}",
                "58P01",
                detail=f"File: {error.filename}",
                hint="`madlib-mop doctor` checks the installation.",
            ) from None
        try:
            allocation.expect_more_like(blobs)
            driver.send(request, blobs)
            while True:
                header, parts = driver.receive_in_turn()
                if header["do"] == "result":
                    yield header["value"], parts
                    return
                blobs = list(parts)
                allocation.expect_more_like(blobs)
                if header["do"] == "error":
                    raise CallError(header["message"], header["sqlstate"], header.get("detail"), header.get("hint"))
                self._serve(driver, header, blobs)
        except (*SQL_ERRORS, ClientGone) as error:
            reason = _reason(error)
            driver.tell({"stop": reason})
            status = driver.stop(_STOP_GRACE_S)
            if self.run_id is not None and (status is None or status < 0):
                self.cancelled_by = _end_lost_run(request["session"], self.run_id, reason)
            raise
        finally:
            driver.stop(_STOP_GRACE_S)
            allocation.return_freed_memory()

    def _serve(self, driver: Child, header: Header, blobs: list[Blob]) -> None:
        action = header["do"]
        if action in ("notice", "warning"):
            # sending a message to a client that has disconnected would end this process
            self._interrupts.check_client()
        if action == "notice":
            plpy.notice(header["text"])
        elif action == "warning":
            plpy.warning(header["text"])
        elif action == "log":
            plpy.log(header["text"])
        elif action == "run":
            self.run_id = header["run_id"]
        elif action == "execute":
            self.has_written |= self.run_id is not None and not header["sql"].lstrip().upper().startswith("SELECT")
            _reply(driver, lambda: _execute(header, blobs))
        elif action == "open":
            allocation.keep_freed_memory()  # rows in batches follow
            _reply(driver, lambda: self._open(header, blobs))
        elif action == "fetch":
            _reply(driver, lambda: encode_columns(self._cursors[header["cursor"]].fetch(header["n_rows"])))
        elif action == "registered":
            from mop_backend import registered  # imports this module

            _reply(driver, lambda: registered.for_driver(header))
        elif action == "close":
            self._cursors.pop(header["cursor"]).close()
        else:
            raise CallError(f"the driver requested {action!r}, which this backend does not support", "XX000")

    def _open(self, header: Header, blobs: Sequence[Blob]) -> _ToDriver:
        plan = plpy.prepare(header["sql"], header["types"])
        self._cursors[header["cursor"]] = plpy.cursor(plan, decode_arguments(header["params"], blobs))
        return {}, []


def _execute(header: Header, blobs: list[Blob]) -> _ToDriver:
    arguments = decode_arguments(header["params"], blobs)
    blobs.clear()  # those are copies; the server makes two more
    result = plpy.execute(plpy.prepare(header["sql"], header["types"]), arguments)
    rows = list(result) if result.status() in _WITH_ROWS else []
    out: list[Blob] = []
    columns = list(rows[0]) if rows else []
    return {"columns": columns, "rows": [[encode_value(row[name], out) for name in columns] for row in rows]}, out


_WITH_ROWS = (5, 11, 12, 13)  # SPI_OK_SELECT and the RETURNING forms of INSERT, DELETE, UPDATE


def _reply(driver: Child, work: Callable[[], _ToDriver]) -> None:
    """Run one request of the driver, and send it the answer."""
    header, blobs = _answer(work)
    allocation.expect_more_like(blobs)
    driver.reply(header, blobs)


def _answer(work: Callable[[], _ToDriver]) -> tuple[Header, list[Blob]]:
    """Run one request of the driver; an error is its answer, except one that stops this session."""
    try:
        return work()
    except plpy.SPIError as error:
        if sqlstate_of(error) in STOP_STATES:
            raise
        return {"error": fields_of(error)}, []
    except CallError as error:
        return {"error": error.fields}, []


def _reason(error: Exception) -> str:
    """Return the reason of the stop, for the record."""
    return str(error) if isinstance(error, ClientGone) else f"the caller's statement was stopped: {str(error)[:500]}"


def check_version(version: str) -> None:
    """Raise CallError unless the library is of the extension's version."""
    if __version__ != version:
        raise CallError(
            f"extension madlib_mop is of version {version}, but its library is of version {__version__}",
            "55000",
            hint="Run ALTER EXTENSION madlib_mop UPDATE, or install the library of the extension's version.",
        )


def _wanted_backend() -> str:
    """Return the backend that the caller's session or a superuser has set; a wrong one is an error later."""
    found = plpy.execute(_BACKEND)[0]["backend"]
    return found if found in set(BackendName) else USUAL


def _session(caller_path: str | None) -> Header:
    """Return the caller's identity and the server's addresses; everything except the search path comes from the server.

    A backend works in the data directory, where postmaster.pid has the port and the socket's directory in its fourth
    and fifth line; the setting of that name is hidden from ordinary roles.
    """
    row = plpy.execute("SELECT current_database()::pg_catalog.text AS database, pg_catalog.pg_backend_pid() AS pid")[0]
    with open("postmaster.pid", encoding="utf-8") as file:
        lines = file.read().splitlines()
    server = {"port": lines[3].strip(), "sockets": lines[4].strip()}
    trainers = of_this_server(LIBRARY)
    forkserver = trainers.words if trainers is not None else None
    return {**caller_roles(plpy.execute), **dict(row), **server, "search_path": caller_path, "forkserver": forkserver}
