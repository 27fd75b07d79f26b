"""Reading a packed table whose shards lie at hosts: what must be so before, and how few bytes come here for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.caller import CallerSession
from madlib_mop.errors import InsufficientPrivilege, MopError, NotReady

_RIGHTS = """
SELECT s.srvname::text AS server, pg_catalog.has_server_privilege(s.oid, 'USAGE') AS may_use,
       EXISTS (SELECT FROM pg_catalog.pg_user_mappings m WHERE m.srvid = s.oid AND (m.umuser = 0 OR m.usename = current_user))
           AS is_mapped
FROM pg_catalog.pg_foreign_server s WHERE s.srvname = ANY ($1::pg_catalog.text[]) ORDER BY 1
"""  # noqa: E501
# Each partition's aggregate is then computed where the partition is: else the tensors would come here to be counted.
_SWITCH = "enable_partitionwise_aggregate"


def check_reachable(session: CallerSession, relation: Relation, servers: Sequence[str]) -> None:
    """Refuse a caller who cannot log in at the servers that have shards of a table.

    Raises
    ------
    InsufficientPrivilege, NotReady
        For the first server that the caller may not use, or has no user mapping for.
    """
    if not servers:
        return
    from madlib_mop.engines.hosts import no_mapping, no_usage

    for row in session.execute(_RIGHTS, [list(servers)], ["text[]"]):
        if not row["may_use"]:
            raise no_usage(row["server"], session.info.role)
        if not row["is_mapped"]:
            raise no_mapping(row["server"], session.info.role)


@contextmanager
def reading_elsewhere(session: CallerSession, relation: Relation, is_elsewhere: bool) -> Iterator[None]:
    """Let statements read shards at hosts: aggregates are computed there, and what hosts say is one clear error."""
    if not is_elsewhere:
        yield
        return
    swap = f"SELECT pg_catalog.current_setting('{_SWITCH}') AS old, pg_catalog.set_config('{_SWITCH}', $1, true)"
    (before,) = session.execute(swap, ["on"])
    try:
        yield
    except MopError as error:
        state = error.sqlstate or ""
        if state.startswith("08"):
            raise NotReady(
                f"{relation}: a server that has some of its rows cannot be reached",
                hint="madlib_mop.hosts lists the servers; `madlib-mop doctor` says what is wrong with one.",
            ) from None
        if state == "42501":
            raise InsufficientPrivilege(
                f"{relation}: {error.message}",
                hint="Its rows at other servers are read as the role that your user mapping names: GRANT SELECT there"
                " too, or let it be packed as a role that you are mapped to.",
            ) from None
        raise
    session.execute(swap, [before["old"]])
