#!/bin/bash
# Sets up and runs the tests; test.sh [pytest's arguments]. The slow ones, those that take defences out, and those that
# need another server or a browser, run only on request: make test ARGS="-m slow". Without arguments, one process for
# each core runs them, each on its own cluster; files are distributed in order, because long ones come first. Then a
# short set of them runs with each other backend of Keras that is installed (MOP_TEST_BACKEND, see tests/conftest.py).

. "$(dirname "$0")/common.sh"

FAST="not slow and not engine and not mutation and not browser"
SHORT=(
    tests/faults/test_killed.py tests/integration/test_exact.py tests/integration/test_fit_outputs.py
    tests/integration/test_predict.py tests/unit/models/test_exported.py tests/unit/trainer/test_evaluate.py
    tests/unit/trainer/test_exact.py tests/unit/trainer/test_failures.py tests/unit/trainer/test_sandbox.py
)

# Compiled tests are kept for the next session and for the other processes of this one, and not in the clone.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$STATE/pycache

run() { "$LIBRARY/venv/bin/python" -m pytest -m "$FAST" "$@"; }

is_installed() { "$LIBRARY/venv/bin/python" -Ic "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))"; }

"$ROOT/make/setup.sh" test
cd "$ROOT"
if [ ! "$PYTHONPYCACHEPREFIX/linked" -nt "$LIBRARY/test.stamp" ]; then
    "$LIBRARY/venv/bin/python" -I make/compiled.py "$PYTHONPYCACHEPREFIX" && touch "$PYTHONPYCACHEPREFIX/linked"
fi
if [ $# -gt 0 ]; then
    run "$@"
    exit
fi
parallel=(--numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder)
status=0
run "${parallel[@]}" || status=$?
for backend in madlib_mop/trainer/backends/*/environment.py; do
    backend=$(basename "$(dirname "$backend")")
    [ "$backend" != tensorflow ] && is_installed "$backend" || continue
    say "a short set of tests with the backend $backend"
    MOP_TEST_BACKEND=$backend run "${parallel[@]}" "${SHORT[@]}" || status=$?
done
exit "$status"
