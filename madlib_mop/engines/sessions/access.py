"""How the sessions of a run's segments log in: writers as the server's own user, readers as the run's role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from madlib_mop.catalog.sessions.session_settings import LIFT_NEW_TIMEOUTS
from madlib_mop.engines.sessions.login import RunLogin
from madlib_mop.engines.sessions.options import SUPERUSER_OPTIONS
from madlib_mop.engines.sessions.session import LoginTarget

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
        Settings of the sessions (`sessions.options.options_of`).
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
