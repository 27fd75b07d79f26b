#!/bin/bash
# Runs Python in the library's virtual environment: python.sh ARGUMENTS...; MADLIB_MOP_DSN is the private server's.

. "$(dirname "$0")/common.sh"

[ -x "$LIBRARY/venv/bin/python" ] || die "nothing is set up yet. Run: make setup"
if [ -z "${MADLIB_MOP_DSN:-}" ] && dsn=$("$ROOT/make/cluster.sh" dsn 2>/dev/null); then
    export MADLIB_MOP_DSN=$dsn
fi
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
if [ "$TF_CPP_MIN_LOG_LEVEL" = 3 ]; then # TensorFlow prints nothing about the machine
    export PYTHONPATH=$ROOT/make/quiet
fi
exec "$LIBRARY/venv/bin/python" "$@"
