"""Every error that a user can meet, with its SQLSTATE; raised in the library, turned into SQL by the backend.

MopError
├── InvalidParameter        22023
├── UnreadableText          22P02   JSON, list or keyword text that does not parse
├── UndefinedTable          42P01
├── UndefinedColumn         42703
├── DuplicateTable          42P07
├── InsufficientPrivilege   42501
├── Unsupported             0A000
├── NotReady                55000   the server, an installation or a run is not in a state that allows it
├── ReadOnly                25006   the caller's transaction may not write
├── Cancelled               57014
├── OutOfResources          53000   memory, connections, disk
├── ModelFailed             38000   one configuration cannot be trained; the others are not touched
└── DataDamaged             XX001   stored bytes do not have the SHA-256 that is recorded for them
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mop_backend.registered_names import key_beside_name


class MopError(Exception):
    """One clear sentence for the user: what, which value was received; the hint says what to do."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def as_dict(self) -> dict[str, str | None]:
        """Return the error as it travels in a frame between processes."""
        return {"sqlstate": self.sqlstate, "message": self.message, "hint": self.hint, "detail": self.detail}


class InvalidParameter(MopError):
    """A parameter has a value that cannot be used."""

    sqlstate = "22023"


class UnreadableText(MopError):
    """A JSON document, a list or a keyword text cannot be parsed."""

    sqlstate = "22P02"


class UndefinedTable(MopError):
    """A table that was named does not exist."""

    sqlstate = "42P01"


class UndefinedColumn(MopError):
    """A column that was named does not exist."""

    sqlstate = "42703"


class DuplicateTable(MopError):
    """An output table exists already."""

    sqlstate = "42P07"


class InsufficientPrivilege(MopError):
    """The caller may not do this."""

    sqlstate = "42501"


class Unsupported(MopError):
    """A known thing that is not done here."""

    sqlstate = "0A000"


class NotReady(MopError):
    """The server, the installation or the run is not in a state that allows this."""

    sqlstate = "55000"


class ReadOnly(MopError):
    """The caller's transaction may not write, and this would."""

    sqlstate = "25006"


class Cancelled(MopError):
    """The run was told to stop."""

    sqlstate = "57014"


class OutOfResources(MopError):
    """Memory, connections or disk do not suffice."""

    sqlstate = "53000"


class ModelFailed(MopError):
    """One configuration cannot be trained; the message is the reason that its row will show."""

    sqlstate = "38000"


class DataDamaged(MopError):
    """Stored bytes are gone, or do not have the SHA-256 that is recorded for them."""

    sqlstate = "XX001"


def from_dict(fields: Mapping[str, Any]) -> MopError:
    """Rebuild an error that travelled in a frame, as the class of its SQLSTATE.

    Parameters
    ----------
    fields : dict
        ``sqlstate``, ``message`` and optionally ``hint`` and ``detail``.
    """
    classes = {cls.sqlstate: cls for cls in MopError.__subclasses__()}
    sqlstate = fields.get("sqlstate") or MopError.sqlstate
    error = classes.get(sqlstate, MopError)(fields["message"], hint=fields.get("hint"), detail=fields.get("detail"))
    error.sqlstate = sqlstate
    return error


@dataclass(frozen=True)
class ServerError:
    """An error that psycopg2 or psycopg has raised.

    Attributes
    ----------
    sqlstate : str or None
        None if it is the driver's own: usually the connection was lost, or there is none.
    message : str
        The server's sentence, or else the whole text of the exception.
    hint, detail : str or None
    source_file : str
        The server's source file that raised it; empty if it is the driver's own.
    """

    sqlstate: str | None
    message: str
    hint: str | None = None
    detail: str | None = None
    source_file: str = ""

    @property
    def first_line(self) -> str:
        """The first line of the message."""
        return (self.message.splitlines() or ["no reason was given"])[0]

    def as_error(self) -> MopError:
        """Return it as the class of its SQLSTATE."""
        return from_dict(vars(self))


_N_SHOWN = 20
_MOST_CHARACTERS = 10_000  # of a text; users' code can raise one of a gigabyte, which would be copied many times


def read_server_error(error: Any) -> ServerError:
    """Return the fields of an exception of psycopg2 or psycopg, cut to 10,000 characters each.

    No other function knows the attributes of these exceptions.
    """
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    diag = getattr(error, "diag", None)
    message, hint, detail = (getattr(diag, f"message_{name}", None) for name in ("primary", "hint", "detail"))
    source_file = getattr(diag, "source_file", None) or ""
    return ServerError(sqlstate, _cut(message or str(error).strip()) or "", _cut(hint), _cut(detail), source_file)


def _cut(text: str | None) -> str | None:
    return text and text[:_MOST_CHARACTERS]


# What code of several folders says: `tests/unit/test_texts.py` finds a text that is in two files


def shown(value: object) -> str:
    """Return the value of an argument as messages show it: None is NULL."""
    return "NULL" if value is None else repr(value)


def no_such_class(known: Sequence[str], received: object) -> InvalidParameter:
    """Return the error for a class that a model does not have; ``known`` are those that it has."""
    more = ", ..." if len(known) > _N_SHOWN else ""
    has = f"it has the classes {', '.join(known[:_N_SHOWN])}{more}" if known else "it predicts a number"
    return InvalidParameter(f"of_class: the model has no such class: {has}. Received: {received!r}")


def is_missing(what: str, value: object, hint: str | None) -> InvalidParameter:
    """Return the error for an argument without a value: NULL, or an empty text."""
    return InvalidParameter(f"{what} is missing. Received: {shown(value)}", hint=hint)


def array_of(values: Iterable[object]) -> str:
    """Return the elements of an array as SQL has them: texts, numbers and NULL, in ``ARRAY[...]``."""
    quoted = ("'" + one.replace("'", "''") + "'" if isinstance(one, str) else str(one) for one in values)
    return f"ARRAY[{', '.join('NULL' if one == 'None' else one for one in quoted)}]"


def not_whole(what: str, least: int, received: str, hint: str | None = None) -> InvalidParameter:
    """Return the error for a value that is no whole number, or a smaller one than the least."""
    return InvalidParameter(f"{what} must be a whole number of {least} or more. Received: {received}", hint=hint)


def cannot_be_read(what: object, reason: str | None, hint: str | None = None) -> InvalidParameter:
    """Return the error for a file, or a data frame, that cannot be read."""
    return InvalidParameter(f"{what} cannot be read: {reason}", hint=hint)


def cannot_be_written(path: object, reason: str | None, hint: str) -> InvalidParameter:
    """Return the error for a file that cannot be written."""
    return InvalidParameter(f"{path} cannot be written: {reason}", hint=hint)


def cannot_log_in(error: Exception, hint: str) -> NotReady:
    """Return the error for a login that failed, with the first line of the driver's error."""
    return NotReady(f"cannot log in: {(str(error).strip().splitlines() or ['no reason was given'])[0]}", hint=hint)


#: What to do if a command cannot log in.
NAME_THE_SERVER = "Specify the server and the role with --dsn, for instance --dsn dbname=mydb."


def connection_lost(hint: str) -> NotReady:
    """Return the error for a session that has ended without a word of the server."""
    return NotReady("the connection to the server was lost", hint=hint)


def no_run(run_id: int, hint: str) -> InvalidParameter:
    """Return the error for a run that does not exist, or that row-level security hides."""
    return InvalidParameter(f"there is no run {run_id} that this role may see", hint=hint)


def not_your_run(run_id: object, what: str = "") -> InvalidParameter:
    """Return the error for a run that does not exist, or that the role may not see; ``what`` comes before the text."""
    return InvalidParameter(
        f"{what}you have no run with this run_id. Received: {run_id}",
        hint="SELECT run_id, state, model_output_table FROM madlib_mop.progress;",
    )


def may_not_create(role: str, schema: str, received: str, what: str = "") -> InsufficientPrivilege:
    """Return the error for a table in a schema where the role may create none; ``what`` comes before the text."""
    return InsufficientPrivilege(
        f"{what}role {role} may not create tables in schema {schema}. Received: {received}",
        hint=f"GRANT CREATE ON SCHEMA {schema} TO {role}; or use a schema of your own.",
    )


def no_command(name: object) -> Unsupported:
    """Return the error for a function that the library does not have."""
    return Unsupported(f"there is no command {name!r}")


def mst_key_with_name(name: str, mst_key: int, hint: str | None = None) -> InvalidParameter:
    """Return the error for the key of a model beside the name of a registered one."""
    return InvalidParameter(key_beside_name(name, mst_key), hint=hint)


def hint_of_extra(extra: str) -> str:
    """Return the hint to install an extra of pyproject.toml. The library is not on PyPI, so pip needs a clone of it."""
    return f"Run pip install '.[{extra}]' in a clone of madlib_mop."


#: JAX reports a lack of memory while it computes as an internal error.
_TEXTS_ABOUT_MEMORY = {
    "JaxRuntimeError": ("RESOURCE_EXHAUSTED", "Out of memory allocating"),
    "RuntimeError": ("can't allocate memory", "CUDA out of memory", "std::bad_alloc"),
}


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error of Python, or of a backend of Keras, means too little memory.

    It is known by the name of its class and by its text, so that no backend is imported.

    TensorFlow: a constant that does not fit into memory (Grappler makes such of a batch whose size is known) is told
    as one that cannot be parsed. JAX has no class for it, and PyTorch only for the memory of GPUs, outside of graphs.
    """
    kinds, text = {cls.__name__ for cls in type(error).__mro__}, str(error)
    return (
        isinstance(error, MemoryError)
        or bool(kinds & {"ResourceExhaustedError", "OutOfMemoryError"})
        or ("OpError" in kinds and "Cannot parse tensor from proto" in text)
        or any(is_about_memory(kind, text) for kind in kinds)
    )


def is_about_memory(kind: str, text: str) -> bool:
    """Return whether an error of a class that JAX or PyTorch uses for all kinds of errors means too little memory."""
    return any(part in text for part in _TEXTS_ABOUT_MEMORY.get(kind, ()))
