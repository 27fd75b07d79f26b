#!/bin/bash
# `make server`: set up, start the private cluster, and have the extension in its database madlib_mop.

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" "$@"
exec 8>"$STATE/server.lock"
flock 8
cluster=$ROOT/make/cluster.sh
"$cluster" start 8>&-

bindir=$("$cluster" bindir)
dsn=$("$cluster" dsn)
installed=$STATE/clusters/server/extension.sql # the SQL that created the extension in the database
version=$("$LIBRARY/venv/bin/python" -I "$ROOT/make/build_extension.py" --print-version)
built=$("$bindir/pg_config" --sharedir)/extension/madlib_mop--$version.sql

# Runs SQL in a database of the cluster and prints only its output.
sql() { "$bindir/psql" -XAtq -v ON_ERROR_STOP=1 -d "$("$cluster" dsn "$1")" -c "$2"; }

create_extension() {
    sql madlib_mop "SET client_min_messages = warning; CREATE EXTENSION madlib_mop CASCADE"
    cp "$built" "$installed"
}

# Prints the tables of the extension with rows that pg_dump would dump.
kept_tables() {
    "$bindir/psql" -XAtq -v ON_ERROR_STOP=1 -d "$dsn" <<'END' | paste -sd ' '
SELECT format('SELECT %L WHERE EXISTS (SELECT FROM %s %s)', class.oid::regclass, class.oid::regclass, condition)
FROM pg_extension, unnest(extconfig, extcondition) AS config (oid, condition) JOIN pg_class AS class USING (oid)
WHERE extname = 'madlib_mop' AND relkind = 'r' \gexec
END
}

if [ -z "$(sql postgres "SELECT 1 FROM pg_database WHERE datname = 'madlib_mop'")" ]; then
    sql postgres "CREATE DATABASE madlib_mop"
fi

has=$(sql madlib_mop "SELECT extversion FROM pg_extension WHERE extname = 'madlib_mop'")
if [ -z "$has" ]; then
    create_extension
elif [ "$has" != "$version" ] && sql madlib_mop "ALTER EXTENSION madlib_mop UPDATE" >/dev/null; then
    cp "$built" "$installed"
    say "the extension was updated from version $has to $version"
elif ! cmp -s "$built" "$installed"; then
    kept=$(kept_tables)
    if [ -n "$kept" ]; then
        say "the extension's SQL has changed, but the database keeps its version, because these tables have rows: $kept." \
            "The Python behind it is new. To start anew without them: make clean server"
    elif sql madlib_mop "DROP EXTENSION madlib_mop" >/dev/null; then
        create_extension
        say "the extension's SQL has changed: the extension was created again"
    else
        say "the extension's SQL has changed, but the database keeps its version, because of the error above." \
            "To start anew: make clean server"
    fi
fi
"$cluster" work madlib_mop
say "PostgreSQL is running, with the extension in database madlib_mop. Connect with make psql, or"
say "  psql '$dsn'"
