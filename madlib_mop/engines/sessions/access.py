"""How the sessions of a run's segments log in: writers as the server's own user, readers as the run's role; and their
settings, on this server and on segments' hosts, which users' settings must not affect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg2.extensions import connection

from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS
from madlib_mop.engines.sessions.login import RunLogin
from madlib_mop.engines.sessions.session import LoginTarget

_EVERYWHERE = (
    "-c statement_timeout=0 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=0"
    " -c client_min_messages=error -c jit=off"
    " -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off -c synchronous_commit=on"
    " -c row_security=on -c DateStyle=ISO -c tcp_keepalives_idle=5 -c role=none"
)
_PATH = " -c search_path=pg_catalog"
#: On PostgreSQL, the driver watches the locks that its sessions wait for (`LockWaits` of the driver), so they wait.
#: Sessions at segments and hosts, whose locks it does not see, fail after ten seconds.
_WAIT_FOR_LOCKS = " -c lock_timeout=0"
_SINCE_14 = {"idle_session_timeout": "0", "client_connection_check_interval": "200"}
#: Settings that some servers lack; a server that lacks a setting rejects connections whose options name it.
_WHERE_KNOWN = {
    **_SINCE_14,
    # Greenplum: ends the segment processes of an idle session, and has two planners.
    "gp_vmem_idle_resource_timeout": "0",
    "optimizer": "off",
    # Cloudberry: parallel workers within a segment, materialized views of users that may answer our queries, and a
    # segment process that executes the coordinator's part of a query.
    "enable_parallel": "off",
    "enable_answer_query_using_materialized_views": "off",
    "enable_offload_entry_to_qe": "off",
}
#: With the role's own search_path, which determines where it creates tables. For PostgreSQL 15 and newer.
OPTIONS_BUT_PATH = _EVERYWHERE + "".join(f" -c {name}={value}" for name, value in _SINCE_14.items())
#: Settings that only superusers can change, for writers. Their statements last as long as visits, so they would fill
#: the server's log as slow statements; a statement with an error is in the run's record.
SUPERUSER_OPTIONS = (
    " -c session_replication_role=origin -c temp_file_limit=-1"
    " -c log_min_duration_statement=-1 -c log_min_error_statement=panic"
)
SESSION_OPTIONS = OPTIONS_BUT_PATH + _PATH
_KNOWN = "SELECT name FROM pg_catalog.unnest(%s) AS name WHERE pg_catalog.current_setting(name, true) IS NOT NULL"


def options_of(catalog: connection) -> str:
    """Return the options for sessions of a run, on the server of the catalog session."""
    with catalog.cursor() as cursor:
        cursor.execute(_KNOWN, [list(_WHERE_KNOWN)])
        known = {name for (name,) in cursor.fetchall()}
    options = "".join(f" -c {name}={_WHERE_KNOWN[name]}" for name in _WHERE_KNOWN if name in known)
    is_greenplum = "gp_vmem_idle_resource_timeout" in known
    return _EVERYWHERE + _PATH + options + ("" if is_greenplum else _WAIT_FOR_LOCKS)


_OPEN_WRITER = "SELECT madlib_mop_internal.writer_open(%s, %s)"
_SET = "SELECT pg_catalog.set_config(%s, %s, false)"
#: Become a role, by its oid: it may be renamed at any time.
BECOME = "SELECT pg_catalog.set_config('role', pg_catalog.pg_get_userbyid(%s::pg_catalog.oid)::pg_catalog.text, false)"


def writer_name(run_id: int) -> str:
    """Return the ``application_name`` of a run's writer sessions."""
    return f"madlib_mop writer of run {run_id}"


def reader_name(run_id: int) -> str:
    """Return the ``application_name`` of a run's reader sessions."""
    return f"madlib_mop reader of run {run_id}"


@dataclass(frozen=True)
class Access:
    """How to log in for one run.

    Attributes
    ----------
    run_id : int
    catalog : mapping
        psycopg2's keywords of a login as the server's own user.
    host, port, database : str
        The server that a reader logs in to.
    options : str
        Settings of the sessions (`options_of`).
    login : RunLogin or None
        The run's role; None for a superuser's run.
    caller : int
        The oid of the role that a reader takes on.
    settings : mapping of str to str
        Parameters of the caller's session that a reader sets, because row policies of its tables read them.
    """

    run_id: int
    catalog: Mapping[str, str] = field(repr=False)
    host: str
    port: str
    database: str
    options: str
    login: RunLogin | None
    caller: int
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def writer(self, segment: int) -> LoginTarget:
        """Return how a segment's writer session is opened."""
        steps = [(LIFT_NEW_TIMEOUTS, []), (_OPEN_WRITER, [self.run_id, segment])]
        return LoginTarget({**self.catalog, **self._session(writer_name(self.run_id), SUPERUSER_OPTIONS)}, steps)

    def reader(self) -> LoginTarget:
        """Return how a reader session is opened: it never has more rights than the caller, so users' code in it cannot
        gain any.

        A superuser's reader does not use a run role: it reads only relations of superusers.
        """
        session = self._session(reader_name(self.run_id))
        settings = [(_SET, [name, value]) for name, value in self.settings.items()]
        # defence: reader-as-caller = [(LIFT_NEW_TIMEOUTS, []), *settings]
        steps: list[tuple[str, list[Any]]] = [(LIFT_NEW_TIMEOUTS, []), *settings, (BECOME, [self.caller])]
        if self.login is None:
            return LoginTarget({**self.catalog, **session}, steps)
        where = {"host": self.host, "port": self.port, "dbname": self.database}
        return LoginTarget({**where, **self.login.keywords(), **session}, steps)

    def policy(self, query: str, search_path: str | None, timeout_s: int) -> LoginTarget:
        """Return how the session of a policy is opened: a reader's, with a time limit, in which ``query`` is prepared
        as ``policy``."""
        reader = self.reader()  # defence: rights-of-a-policy = self.writer(0)
        limits = {"search_path": search_path or "pg_catalog, pg_temp", "statement_timeout": f"{timeout_s}s"}
        settings = [(_SET, [name, value]) for name, value in limits.items()]
        prepare = f"PREPARE policy (pg_catalog.int8) AS {query}"
        return LoginTarget(reader.keywords, [*reader.steps, *settings, (prepare, [])])

    def _session(self, name: str, more: str = "") -> dict[str, Any]:
        return {"application_name": name, "connect_timeout": 10, "options": self.options + more}
