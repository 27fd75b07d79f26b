"""Settings of a run's sessions, on this server and on segments' hosts; users' settings must not affect them."""

from psycopg2.extensions import connection

_EVERYWHERE = (
    "-c statement_timeout=0 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=0"
    " -c client_min_messages=error -c jit=off"
    " -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off -c synchronous_commit=on"
    " -c row_security=on -c DateStyle=ISO -c tcp_keepalives_idle=5 -c role=none"
)
_PATH = " -c search_path=pg_catalog"
#: On PostgreSQL, the driver watches the locks that its sessions wait for (`driver.running.lock_waits`), so they wait.
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
