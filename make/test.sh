#!/bin/bash
# Sets up and runs the tests; test.sh [pytest's arguments]. The slow ones, those that take defences out, and those that
# need another server, are asked for by name: make test ARGS="-m slow". Without arguments a process a core runs them,
# each on a cluster of its own; files are dealt out in their order, for those that take long come first.

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" test
cd "$ROOT"
[ $# -gt 0 ] || set -- --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
exec "$LIBRARY/venv/bin/python" -m pytest -m "not slow and not engine and not mutation" "$@"
