#!/bin/bash
# Sets up everything except a running server: packages, the library, the PostgreSQL tree, the extension's files.
# setup.sh [EXTRA...]; may be run at any time, by several at once, and takes a moment when nothing changed.

. "$(dirname "$0")/common.sh"

"$ROOT/make/packages.sh"
PYTHON=$(choose_python "$LIBRARY")
if id "$OWNER" >/dev/null 2>&1 && ! as_owner "$PYTHON" -I -c '' >/dev/null 2>&1; then
    die "the server's user, $OWNER, cannot run $PYTHON ($(readlink -f "$PYTHON")). Every directory above it must let" \
        "that user pass (chmod o+x), or name another Python: PYTHON=/path/to/python3"
fi
make_state
exec 9>"$STATE/lock"
flock 9

"$ROOT/make/library.sh" "$LIBRARY" "$@"

pg_config=$(find_pg_config)
tree=$STATE/pgsql/$(major_of "$pg_config") # one for each major version: servers of other versions may be running
bindir=$("$LIBRARY/venv/bin/python" -I "$ROOT/make/pgtree.py" "$pg_config" "$tree")
"$LIBRARY/venv/bin/python" -I "$ROOT/make/build_extension.py" \
    --library "$LIBRARY" --output "$("$bindir/pg_config" --sharedir)/extension" --released >/dev/null
echo "$pg_config" >"$STATE/pg_config"
echo "$bindir" >"$STATE/bindir"
