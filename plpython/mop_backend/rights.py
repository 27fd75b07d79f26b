"""Determines the roles of a caller's session, and rejects sessions with only some superuser roles; for `call`,
`predict` and the command line.

A view or function of another role that a query evaluates can do RESET ROLE or RESET SESSION AUTHORIZATION. In a session
that a superuser opened it would then be a superuser. So a call is rejected unless the role that logged in,
session_user and current_user are all superusers, or none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypedDict

#: The owner of the schema n, who may rename it and drop what is in it. The owner of the database is the only member
#: of pg_database_owner, which owns public.
OWNER_OF_SCHEMA = """CASE WHEN pg_catalog.pg_get_userbyid(n.nspowner) = 'pg_database_owner'
        THEN (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
        ELSE n.nspowner END"""

# st_userid (in pg_stat_get_activity) is the role that logged in; SET SESSION AUTHORIZATION does not change it.
_ROLES = """
SELECT c.rolname::pg_catalog.text AS role, c.oid::pg_catalog.int8 AS role_oid, s.rolname::pg_catalog.text AS login,
       coalesce(o.rolname, s.rolname)::pg_catalog.text AS opener,
       c.rolsuper AND s.rolsuper AND coalesce(o.rolsuper, s.rolsuper) AS all_superusers,
       c.rolsuper OR s.rolsuper OR coalesce(o.rolsuper, false) AS any_superuser,
       EXISTS (SELECT FROM pg_catalog.pg_roles x
               -- defence: members-of-superusers = WHERE x.rolsuper AND x.oid = coalesce(o.oid, s.oid)) AS is_superuser
               WHERE x.rolsuper AND pg_catalog.pg_has_role(coalesce(o.oid, s.oid), x.oid, 'MEMBER')) AS is_superuser
FROM pg_catalog.pg_roles c CROSS JOIN pg_catalog.pg_roles s
LEFT JOIN (pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a
           JOIN pg_catalog.pg_roles o ON o.oid = a.usesysid) ON true
WHERE c.rolname = current_user AND s.rolname = session_user
"""
# On a standby, the text of a snapshot does not have the transactions that run, so two snapshots can have the same text.
# Rights are those of now, also where a transaction keeps its snapshot: there, the statement belongs to the text. So it
# does on Greenplum and Citus, where rows can change at segments or other nodes without a transaction number here.
_NOW = """
SELECT current_user::pg_catalog.text AS role, session_user::pg_catalog.text AS login,
       pg_catalog.to_regrole(pg_catalog.quote_ident(current_user))::pg_catalog.oid::pg_catalog.int8 AS role_oid,
       pg_catalog.to_regrole(pg_catalog.quote_ident(session_user))::pg_catalog.oid::pg_catalog.int8 AS login_oid,
       pg_catalog.date_part('epoch', pg_catalog.statement_timestamp()) AS statement,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.txid_current_if_assigned() IS NULL
            THEN pg_catalog.txid_current_snapshot()::pg_catalog.text || CASE
                WHEN pg_catalog.current_setting('transaction_isolation')
                    <> 'read committed'  -- defence: kept-snapshots = = 'none'
                    OR pg_catalog.to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL
                    OR pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL
                THEN ' ' || pg_catalog.statement_timestamp()::pg_catalog.text ELSE '' END
       END AS snapshot
"""

_now_plan: object = None
_seen: set[tuple[str, str]] = set()  # pairs of role and session_user that passed the check in this session


class CallerRoles(TypedDict):
    """The roles of a caller's session; ``is_superuser``: whether it is a superuser or can become one."""

    role: str
    role_oid: int
    login: str
    is_superuser: bool


class Moment(NamedTuple):
    """Who calls, and when.

    Attributes
    ----------
    role, login : str
        current_user and session_user.
    statement : float
        When the client's statement began, in seconds.
    snapshot : str or None
        The transactions that the caller's query sees; None on a standby, and if this transaction may have changed
        something. While this text is the same, a query of tables and catalogs returns the same, except in a cursor.
    oids : tuple of (int or None)
        Those of role and login, whose names can change.
    """

    role: str
    login: str
    statement: float
    snapshot: str | None
    oids: tuple[int | None, int | None] = (None, None)

    @property
    def seen(self) -> tuple[object, ...]:
        """What a query of tables and catalogs depends on, if there is a snapshot."""
        return self.role, self.login, self.oids, self.snapshot


class MixedRoles(Exception):
    """Only some of the session's roles are superusers; ``fields`` as RAISE takes them."""

    def __init__(self, role: str, login: str, opener: str):
        message = (
            "this session has superuser rights that RESET ROLE can restore, so code in other users' views could get "
            "them."
            f" Received: current_user {role}, session_user {login}, logged in as {opener}"
        )
        super().__init__(message)
        hint = f"Log in as {role}: SET ROLE, SET SESSION AUTHORIZATION and SECURITY DEFINER are not enough."
        self.fields = {"message": message, "sqlstate": "42501", "detail": None, "hint": hint}


def caller_roles(execute: Callable[[str], Iterable[Mapping[str, Any]]]) -> CallerRoles:
    """Return the roles of a caller's session.

    Parameters
    ----------
    execute : callable
        Runs a query in that session; returns its rows as dicts.

    Returns
    -------
    dict
        ``role``, ``role_oid`` and ``login``; ``is_superuser``: whether it is a superuser or can become one.

    Raises
    ------
    MixedRoles
        If some of its roles are superusers and some are not.
    """
    (row,) = execute(_ROLES)
    if row["any_superuser"] and not row["all_superusers"]:  # defence: superuser-in-part
        raise MixedRoles(row["role"], row["login"], row["opener"])
    _seen.add((row["role"], row["login"]))
    return CallerRoles(role=row["role"], role_oid=row["role_oid"], login=row["login"], is_superuser=row["is_superuser"])


def check_roles(plpy: ModuleType) -> Moment:
    """Raise MixedRoles as `caller_roles` does; pairs of roles that passed before are cached."""
    global _now_plan
    if _now_plan is None:
        _now_plan = plpy.prepare(_NOW)
    row = plpy.execute(_now_plan)[0]
    if (row["role"], row["login"]) not in _seen:
        caller_roles(plpy.execute)
    oids = row["role_oid"], row["login_oid"]
    return Moment(row["role"], row["login"], row["statement"], row["snapshot"], oids)
