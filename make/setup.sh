#!/bin/bash
# Everything short of a running server: packages, the library, the PostgreSQL tree, the extension's files.
# setup.sh [EXTRA...]; may be run at any time, by several at once, and takes a moment when nothing changed.

. "$(dirname "$0")/common.sh"

"$ROOT/make/packages.sh"
make_state
exec 9>"$STATE/lock"
flock 9

"$ROOT/make/library.sh" "$LIBRARY" "$@"

pg_config=$(find_pg_config)
bindir=$("$PYTHON" -I "$ROOT/make/pgtree.py" "$pg_config" "$TREE")
"$PYTHON" -I "$ROOT/make/build_extension.py" \
    --library "$LIBRARY" --output "$("$bindir/pg_config" --sharedir)/extension" >/dev/null
echo "$pg_config" >"$STATE/pg_config"
echo "$bindir" >"$STATE/bindir"
