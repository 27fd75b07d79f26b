#!/bin/bash
# Sets up and runs the tests; test.sh [pytest's arguments]. The slow ones, those that take defences out, and those that
# need another server or a browser, run only on request: make test ARGS="-m slow". Without arguments, one process for
# each core runs them, each on its own cluster; files are distributed in order, because long ones come first.

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" test
cd "$ROOT"
[ $# -gt 0 ] || set -- --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
exec "$LIBRARY/venv/bin/python" -m pytest -m "not slow and not engine and not mutation and not browser" "$@"
