"""Settings of the sessions that work for a run, here and at segments' hosts; none of a user's may change their work."""

from psycopg2.extensions import connection

from madlib_mop.catalog.one_row import one_row

#: With the role's own search_path, which tells where it makes tables.
OPTIONS_BUT_PATH = (
    "-c statement_timeout=0 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0"
    " -c client_connection_check_interval=200 -c client_min_messages=error -c jit=off"
    " -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off -c synchronous_commit=on"
    " -c row_security=on -c DateStyle=ISO -c tcp_keepalives_idle=5 -c role=none"
)
#: Of a superuser's sessions: what nobody else may set.
SUPERUSER_OPTIONS = " -c session_replication_role=origin"
SESSION_OPTIONS = OPTIONS_BUT_PATH + " -c search_path=pg_catalog"
#: Greenplum 7 has the settings of PostgreSQL 12, and would end the processes at the segments of a session that idles.
GREENPLUM_OPTIONS = (
    SESSION_OPTIONS.replace(" -c idle_session_timeout=0", "").replace(" -c client_connection_check_interval=200", "")
    + " -c gp_vmem_idle_resource_timeout=0 -c optimizer=off"
)


def options_of(catalog: connection) -> str:
    """Return the options for sessions of a run, on the server of the catalog session."""
    with catalog.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL")
        return GREENPLUM_OPTIONS if one_row(cursor)[0] else SESSION_OPTIONS
