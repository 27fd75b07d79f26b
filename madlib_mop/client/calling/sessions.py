"""Sessions of the client: transactions of an SQLAlchemy engine, COPY, LISTEN and cancel, with psycopg2 or psycopg 3.

The client's own statements run with a pinned search_path, because the owner of the database or of a schema on the
person's path can have put functions, operators and types of his own there. The person's path is only for the person's
own statements and for names that the person gave (`own_path`).
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from sqlalchemy import Connection, CursorResult, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from madlib_mop.catalog.live.following import RunListener
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.catalog.sessions.session_settings import (
    KEPT_PATH,
    LIFT_NEW_TIMEOUTS,
    PIN_AND_KEEP_PATH,
    PIN_FOR_TRANSACTION,
    TEXT_SETTINGS,
)
from madlib_mop.client.calling.errors import bad_input, noted, of_login, of_server
from madlib_mop.errors import MopError, Unsupported

_DRIVERS = ("psycopg2", "psycopg")
_SETTING = re.compile(r"[a-z][a-z0-9_]{0,62}")
_CONNECT_TIMEOUT_S = 10
_ENCODING = "UTF8"  # a role's or database's own might lack letters of a frame


def make_engine(dsn: str) -> Engine:
    """Return an engine for a DSN of libpq, with psycopg2, or with psycopg 3 if that is not installed.

    The DSN is not in the engine's URL, so no repr and no log shows its password.

    Raises
    ------
    InvalidParameter
        If libpq cannot read the DSN.
    Unsupported
        If neither driver is installed.
    """
    try:
        check_dsn(dsn)
    except MopError as error:
        raise noted(error) from None
    if dsn.startswith("postgresql+"):
        return _engine_of_url(dsn)
    name = next((driver for driver in _DRIVERS if find_spec(driver)), None)
    if name is None:
        raise noted(Unsupported("no driver of PostgreSQL is installed", hint="pip install psycopg2-binary"))
    _load_driver(name)
    login = _psycopg2_login(dsn) if name == "psycopg2" else _psycopg_login(dsn)
    # One session is kept between calls: it may have a trainer for predictions (600 MB).
    engine = create_engine(
        f"postgresql+{name}://", pool_size=1, max_overflow=-1, pool_pre_ping=True, hide_parameters=True
    )
    return _pinned_at_login(engine, login)


def _engine_of_url(url: str) -> Engine:
    try:
        _load_driver(make_url(url).get_driver_name())
        engine = create_engine(
            url, pool_size=1, max_overflow=-1, pool_pre_ping=True, hide_parameters=True,
            connect_args={"client_encoding": _ENCODING},
        )  # fmt: skip
    except (SQLAlchemyError, ImportError, ValueError):
        raise _unreadable() from None
    return _pinned_at_login(engine)


def _load_driver(name: str) -> None:
    """Import a driver so that TLS works with it where TensorFlow has been imported.

    TensorFlow's library has functions of another OpenSSL (BoringSSL). A driver that is imported after it would call
    them, and its first connection with TLS would end the process (tensorflow/tensorflow#93969). With RTLD_DEEPBIND, a
    library prefers the functions of its own libraries.
    """
    if "tensorflow" not in sys.modules:
        importlib.import_module(name)
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        importlib.import_module(name)
    finally:
        sys.setdlopenflags(flags)


def _pinned_at_login(engine: Engine, login: Callable[[], Any] | None = None) -> Engine:
    """Let the statements of SQLAlchemy and of its drivers at a login run with a pinned search_path.

    They name functions and tables of pg_catalog without their schema.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    login : callable, optional
        Returns a connection of the driver. Default: the engine's URL is used.
    """

    @event.listens_for(engine, "do_connect")
    def pin(dialect: Any, record: Any, arguments: Any, keywords: Any) -> Any:
        raw = dialect.connect(*arguments, **keywords) if login is None else login()
        try:
            with raw.cursor() as cursor:
                cursor.execute(PIN_FOR_TRANSACTION)  # defence: path-of-a-client-login
        except BaseException:
            raw.close()
            raise
        return raw

    @event.listens_for(engine, "connect")  # after the statements of SQLAlchemy, whose listeners are older
    def unpin(raw: Any, record: Any) -> None:
        raw.rollback()

    return engine


def _psycopg2_login(dsn: str) -> Any:
    import psycopg2
    from psycopg2.extensions import parse_dsn

    try:
        keywords = parse_dsn(dsn)
    except psycopg2.Error:
        raise _unreadable() from None
    return lambda: psycopg2.connect(**_with_defaults(keywords))


def _psycopg_login(dsn: str) -> Any:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        keywords = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise _unreadable() from None
    return lambda: psycopg.connect(**_with_defaults(keywords))


def _with_defaults(keywords: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"connect_timeout": _CONNECT_TIMEOUT_S, "application_name": "madlib_mop client"}
    return {**defaults, "client_encoding": _ENCODING, **keywords}


def _unreadable() -> MopError:
    # without the DSN, which may have a password
    return bad_input(
        "the DSN cannot be read",
        "Pass a URI such as 'postgresql://analyst@localhost/mydb', or keywords such as 'host=localhost dbname=mydb'.",
    )


def check_settings(settings: Mapping[str, object] | None) -> dict[str, str]:
    """Return settings of schema madlib_mop as texts. Raises InvalidParameter for a name that cannot be one."""
    for name in settings or {}:
        if not isinstance(name, str) or not _SETTING.fullmatch(name):
            raise bad_input(f"there is no setting {name!r}", "Pass names such as segments or trainer_memory_mb.")
    words = {True: "on", False: "off"}
    return {name: words[value] if isinstance(value, bool) else str(value) for name, value in (settings or {}).items()}


class ClientSessions:
    """Transactions with the settings of a database handle; safe to use from several threads.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Of PostgreSQL, with psycopg2 or psycopg 3.
    settings : mapping of str to str
        Of schema madlib_mop, for each transaction.
    """

    def __init__(self, engine: Engine, settings: Mapping[str, str]):
        if engine.dialect.name != "postgresql" or engine.dialect.driver not in _DRIVERS:
            raise bad_input(
                f"the engine must be of PostgreSQL, with psycopg2 or psycopg. Received:"
                f" {engine.dialect.name}+{engine.dialect.driver}",
                "create_engine('postgresql+psycopg2://...')",
            )
        self.engine = engine
        self._is_psycopg2 = engine.dialect.driver == "psycopg2"
        named = {"jit": "off"} | TEXT_SETTINGS | {f"madlib_mop.{name}": value for name, value in settings.items()}
        self._values = [part for pair in named.items() for part in pair]
        self._set = "SELECT " + ", ".join(["pg_catalog.set_config(%s, %s, true)"] * len(named))

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a session and a transaction, which commits at the end, and rolls back after an error.

        Its search_path is pinned, and is the person's again when it ends.

        Raises
        ------
        MopError
            For each error of the server, without the text of the statement and its values.
        """
        connection = self._connect()
        try:
            with connection, connection.begin():
                # defence: path-of-the-client = (execute(connection, PIN_AND_KEEP_PATH),
                #     execute(connection, KEPT_PATH))
                execute(connection, PIN_AND_KEEP_PATH)
                connection.exec_driver_sql(self._set, tuple(self._values))
                yield connection
        except DBAPIError as error:
            raise of_server(error.orig) from None
        except self.raw_error as error:
            raise of_server(error) from None

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with parameters ``%s`` in a transaction of its own, and return its rows."""
        with self.begin() as connection:
            return rows_of(connection, statement, values)

    def rows_in_turn(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Run one query as `rows`, and yield each row as it is fetched: rows are large, and no other one is held."""
        with self.begin() as connection:
            in_turn = connection.execution_options(stream_results=True, max_row_buffer=1)
            for row in execute(in_turn, statement, values):
                yield tuple(row)

    def copy(self, connection: Connection, statement: str, chunks: Iterable[str]) -> None:
        """Run a ``COPY ... FROM STDIN`` with chunks of its text format; none of them is empty."""
        raw: Any = connection.connection.cursor()
        with raw as cursor:
            if self._is_psycopg2:
                file = _Chunks(chunks)
                try:
                    cursor.copy_expert(statement, file)
                except self.raw_error:
                    if file.error is None:
                        raise
                    raise file.error from None
            else:
                with cursor.copy(statement) as copy:
                    for chunk in chunks:
                        copy.write(chunk)

    def listen(self) -> RunListener:
        """Return a listener to changes of runs, in a session of its own."""
        connection = self._connect()
        raw: Any = connection.connection.driver_connection
        connection.detach()
        raw.autocommit = True
        with raw.cursor() as cursor, suppress(self.raw_error):  # what it lacks is found when a run is read
            cursor.execute(LIFT_NEW_TIMEOUTS)
        return RunListener(raw, connection.close)

    @property
    def raw_error(self) -> type[Exception]:
        """The base class of the errors of the engine's driver."""
        error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return error

    def _connect(self) -> Connection:
        try:
            connection = self.engine.connect()
            # an engine with AUTOCOMMIT has no transactions, and one with REPEATABLE READ reads old rows again
            return connection.execution_options(isolation_level="READ COMMITTED")
        except DBAPIError as error:
            raise of_login(error.orig or error) from None
        except self.raw_error as error:
            raise of_login(error) from None
        except ArgumentError:
            raise _unreadable() from None


@contextmanager
def own_path(connection: Connection) -> Iterator[None]:
    """Run statements with the person's search_path: the person's own ones, and those with a name that the person gave.

    The latter have no operator, and no other name without its schema. An error ends the transaction, and the pin too.
    """
    execute(connection, KEPT_PATH)
    yield
    execute(connection, PIN_FOR_TRANSACTION)


def rows_of(connection: Connection, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run one statement with parameters ``%s`` in an open transaction, and return its rows ([] if it has none)."""
    result = execute(connection, statement, values)
    return [tuple(row) for row in result] if result.returns_rows else []


def execute(connection: Connection, statement: str, values: Sequence[object] = ()) -> CursorResult[Any]:
    """Run one statement in an open transaction; with values, a percent sign is written ``%%``."""
    if values:
        return connection.exec_driver_sql(statement, tuple(values))
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


class _Chunks:
    """The file that psycopg2's COPY reads. It keeps an error of the chunks, which psycopg2 turns into its own."""

    def __init__(self, chunks: Iterable[str]):
        self._chunks = iter(chunks)
        self.error: Exception | None = None

    def read(self, size: int = -1) -> str:
        """Return the next chunk, of any size; '' at the end."""
        try:
            return next(self._chunks, "")
        except Exception as error:
            self.error = error
            raise
