"""Settings of the extension's own sessions, which override those of the database or a role.

Used where the driver, the command line and planning open sessions; workers' are in ``engines/sessions/access.py``.
"""

#: For libpq's ``options``. Every role that can log in may set them.
NO_TIMEOUTS = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
PLAIN_TRANSACTIONS = (
    "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off"
    " -c default_transaction_deferrable=off"
)
PLAIN_TEXT = (
    "-c standard_conforming_strings=on -c bytea_output=hex -c DateStyle=ISO -c IntervalStyle=postgres"
    " -c extra_float_digits=1 -c array_nulls=on -c quote_all_identifiers=off -c transform_null_equals=off"
)
#: For the catalog session, which is a superuser's. The last setting is for Citus, which would otherwise create each
#: run's login role on every node.
CATALOG_OPTIONS = (
    f"{NO_TIMEOUTS} {PLAIN_TRANSACTIONS} {PLAIN_TEXT} -c role=none -c row_security=on -c search_path=pg_catalog"
    " -c default_table_access_method=heap -c jit=off -c plan_cache_mode=auto -c client_min_messages=warning"
    " -c citus.enable_ddl_propagation=off"
)
# pg_settings has more than 64 kB: it would need a temporary file if work_mem is as small, and temp_file_limit may be 0.
_LIFT = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.unnest(ARRAY[{names}]) AS name"
    " WHERE pg_catalog.current_setting(name, true) OPERATOR(pg_catalog.<>) '0'"
)
#: The first statement of a new session, whose search_path may not be pinned: lifts timeouts of PostgreSQL 14 and 17,
#: which older servers reject as options.
LIFT_NEW_TIMEOUTS = _LIFT.format(names="'idle_session_timeout', 'transaction_timeout'")
#: Settings that only superusers may change. A statement, not an option: as an option, it would reject roles that are
#: not superusers before a clear error. The server's views of sessions and locks can need a temporary file.
AS_SUPERUSER = (
    "SELECT pg_catalog.set_config('session_replication_role', 'origin', false),"
    " pg_catalog.set_config('temp_file_limit', '-1', false)"
    " FROM pg_catalog.pg_roles WHERE rolname = current_user AND rolsuper"
)
#: The same as `LIFT_NEW_TIMEOUTS` for a session whose options we do not choose, such as that of the command line.
LIFT_TIMEOUTS = _LIFT.format(
    names="'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout',"
    " 'transaction_timeout'"
)
#: The first statement of a session that logs in with somebody else's DSN; returns the search_path of the login. The
#: owner of a database can set the path of every login to it, and so serve functions, operators and types of his own to
#: each statement that names one without a schema.
PIN_SEARCH_PATH = (
    "SELECT pg_catalog.current_setting('search_path'),"
    " pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)"
)
#: The same within one transaction, for the login of an engine of SQLAlchemy: the end of the transaction undoes it.
PIN_FOR_TRANSACTION = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
#: The same, for the client: setting madlib_mop_client.search_path has the person's path, for names that they gave.
PIN_AND_KEEP_PATH = (
    "SELECT pg_catalog.set_config('madlib_mop_client.search_path', pg_catalog.current_setting('search_path'), true),"
    " pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
)
#: In a transaction with this pin: returns to the person's path.
KEPT_PATH = (
    "SELECT pg_catalog.set_config('search_path', pg_catalog.current_setting('madlib_mop_client.search_path'), true)"
)
#: The same, for a session that will create tables: setting madlib_mop.own_schemas has the schemas of that path.
PIN_AND_KEEP_SCHEMAS = (
    "SELECT pg_catalog.set_config('madlib_mop.own_schemas', pg_catalog.current_schemas(false)::pg_catalog.text, false),"
    " pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)"
)
#: For `set_config`, within one transaction: the text formats of values that are read in the caller's session; the same
#: as in function _call.
TEXT_SETTINGS = {
    "quote_all_identifiers": "off", "array_nulls": "on", "transform_null_equals": "off", "extra_float_digits": "1",
    "DateStyle": "ISO", "IntervalStyle": "postgres", "standard_conforming_strings": "on", "bytea_output": "hex",
}  # fmt: skip
