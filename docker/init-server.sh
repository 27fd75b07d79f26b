#!/bin/bash
# Prepares a new server: the extension in its database and, where MOP_USER names one, a role that may use it.
#
#   MOP_USER            the role; at a host it is the one that the coordinator's user mappings name
#   MOP_PASSWORD_FILE   the file with its password, such as a secret of the container
#   MOP_DSN             the superuser's login; default: that of the container's first start
#
# A password is read by psql itself, so that no process list shows it, and is not logged.
set -euo pipefail
if [ -n "${MOP_USER:-}" ] && ! [ -r "${MOP_PASSWORD_FILE:-}" ]; then
    echo "$0: cannot read the password file '${MOP_PASSWORD_FILE:-}'" >&2
    exit 1
fi

psql -Xq -v ON_ERROR_STOP=1 -d "${MOP_DSN:-user=${POSTGRES_USER:-postgres} dbname=${POSTGRES_DB:-madlib_mop}}" <<'SQL'
CREATE EXTENSION IF NOT EXISTS madlib_mop CASCADE;
ALTER SYSTEM SET client_connection_check_interval = '500ms';
SELECT pg_reload_conf() \g /dev/null
\getenv role MOP_USER
\if :{?role}
    SET log_statement = 'none';
    SET log_min_error_statement = 'panic';
    SET log_min_duration_statement = -1;
    \set password `cat "$MOP_PASSWORD_FILE"`
    CREATE ROLE :"role" LOGIN PASSWORD :'password';
    SELECT madlib_mop.grant_use(:'role') \g /dev/null
    SELECT format('GRANT CREATE ON DATABASE %I TO %I', current_database(), :'role') \gexec
\endif
SQL
