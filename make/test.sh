#!/bin/bash
# Sets up and runs the tests; test.sh [pytest's arguments]. The slow ones, and those that need another server, are
# asked for by name: make test ARGS="-m slow".

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" test
cd "$ROOT"
exec "$LIBRARY/venv/bin/python" -m pytest -m "not slow and not engine" "$@"
