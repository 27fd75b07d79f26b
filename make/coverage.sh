#!/bin/bash
# Runs the tests and reports which lines of the library and of the backend's part they ran; coverage.sh [pytest's arguments].
# Measured are the tests' own process, drivers, the command line, and what PL/Python runs in the server's sessions. Trainers
# are not measured: their sandbox lets them write no file. The unit tests run their code in the tests' process, which is.

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" test coverage
python=$LIBRARY/venv/bin/python
results=$STATE/coverage
data=$results/data
# sorts before coverage's own
start=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/a0_madlib_mop_coverage.pth
backend=$LIBRARY/backend/mop_backend/__init__.py # the built copy, not the source

rm -rf "$results"
mkdir -p "$data"
chmod 1777 "$data" # the server's user writes here too, but not beside it, where imported files are
cat >"$results/config.ini" <<END
[run]
source_pkgs = madlib_mop, mop_backend
branch = true
parallel = true
data_file = $data/lines
patch =
    _exit
    fork
[paths]
library =
    $ROOT/madlib_mop
    */site-packages/madlib_mop
backend =
    $ROOT/plpython/mop_backend
    */backend/mop_backend
    */site-packages/mop_backend
[report]
# the sources of clones that tests have made and removed
ignore_errors = true
skip_empty = true
exclude_also =
    if TYPE_CHECKING:
    @abstractmethod
[html]
directory = $ROOT/coverage
title = madlib_mop
END

cleanup() {
    rm -f "$start"
    cat "$ROOT/plpython/mop_backend/__init__.py" >"$backend"
}
trap cleanup EXIT
cleanup # of a run that was killed
echo "import os, sys; 'madlib_mop.trainer' in sys.orig_argv or os.environ.setdefault('COVERAGE_PROCESS_START', '$results/config.ini')" >"$start"
cat >>"$backend" <<END

import sys

if "plpy" in sys.modules:
    import ctypes

    sys.path.append("$(dirname "$start")")
    import coverage

    sys.path.pop()
    _measured = coverage.Coverage(config_file="$results/config.ini")
    _at_exit = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda *_: _measured.save())
    ctypes.CDLL(None).on_proc_exit(_at_exit, None)
    _measured.start()
END

cd "$ROOT"
[ $# -gt 0 ] || set -- --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
status=0
"$python" -m pytest -m "not slow and not engine and not mutation and not browser" "$@" || status=$?
rm -f "$start"
"$python" -m coverage combine --rcfile "$results/config.ini" --quiet
"$python" -m coverage html --rcfile "$results/config.ini" --quiet
"$python" -m coverage report --rcfile "$results/config.ini" --sort=cover
say "line by line: $ROOT/coverage/index.html"
exit $status
