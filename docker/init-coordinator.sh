#!/bin/bash
# Adds hosts to a coordinator: a foreign server and user mappings for each, and madlib_mop.add_host.
#
#   MOP_HOSTS           name=host:port, with spaces between them; without it nothing is done
#   MOP_HOST_USER       the role at the hosts (init-server.sh made it there)
#   MOP_HOST_PASSWORD_FILE            the file with its password
#   MOP_HOST_SUPERUSER_PASSWORD_FILE  the file with the password of the hosts' superuser, role postgres
#   MOP_HOST_DB         the hosts' database; default: madlib_mop
#   MOP_USER            the role here that trains at the hosts, beside the superuser
#   MOP_DSN             the superuser's login; default: that of the container's first start
#
# add_host is done once as the hosts' superuser; from then on the superuser here too is MOP_HOST_USER there.
set -euo pipefail
[ -n "${MOP_HOSTS:-}" ] || exit 0
for file in "${MOP_HOST_PASSWORD_FILE:-}" "${MOP_HOST_SUPERUSER_PASSWORD_FILE:-}"; do
    [ -r "$file" ] || { echo "$0: cannot read the password file '$file'" >&2 && exit 1; }
done

for item in $MOP_HOSTS; do
    address=${item#*=}
    export MOP_SERVER=${item%%=*} MOP_SERVER_HOST=${address%:*} MOP_SERVER_PORT=${address##*:}
    export MOP_HOST_DB=${MOP_HOST_DB:-madlib_mop}
    psql -Xq -v ON_ERROR_STOP=1 -d "${MOP_DSN:-user=${POSTGRES_USER:-postgres} dbname=${POSTGRES_DB:-madlib_mop}}" <<'SQL'
SET client_min_messages = warning;
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SET log_min_duration_statement = -1;
\getenv server MOP_SERVER
\getenv host MOP_SERVER_HOST
\getenv port MOP_SERVER_PORT
\getenv database MOP_HOST_DB
\getenv remote MOP_HOST_USER
\getenv role MOP_USER
\set password `cat "$MOP_HOST_PASSWORD_FILE"`
\set superusers_password `cat "$MOP_HOST_SUPERUSER_PASSWORD_FILE"`
CREATE EXTENSION IF NOT EXISTS postgres_fdw;
CREATE SERVER :"server" FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host :'host', port :'port', dbname :'database');
CREATE USER MAPPING FOR CURRENT_USER SERVER :"server" OPTIONS (user 'postgres', password :'superusers_password');
SELECT madlib_mop.add_host(:'server') \g /dev/null
ALTER USER MAPPING FOR CURRENT_USER SERVER :"server" OPTIONS (SET user :'remote', SET password :'password');
\if :{?role}
    CREATE USER MAPPING FOR :"role" SERVER :"server" OPTIONS (user :'remote', password :'password');
    GRANT USAGE ON FOREIGN SERVER :"server" TO :"role";
\endif
SQL
done
