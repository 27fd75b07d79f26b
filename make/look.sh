#!/bin/bash
# `make report`, `make watch` and `make dash`: the command of madlib-mop with this name, on the private server.
# look.sh report|watch RUN [OPTION...], look.sh dash [OPTION...]

. "$(dirname "$0")/common.sh"

command=$1
shift
cluster=$ROOT/make/cluster.sh
[ "$command" = dash ] || [[ ${1:-} =~ ^[0-9]+$ ]] ||
    die "RUN must be the number of a run, for example: make $command RUN=1. In make psql, this statement lists the" \
        "runs: SELECT run_id, state FROM madlib_mop.progress;"
MADLIB_MOP_DSN=$("$cluster" dsn)
export MADLIB_MOP_DSN
"$cluster" start

if [ "$command" = dash ]; then # people log in on the page, by TCP; the form suggests the server's owner
    set -- --dsn "host=127.0.0.1 port=$("$cluster" port) dbname=madlib_mop user='$("$cluster" owner)'" "$@"
fi
exec "$ROOT/make/python.sh" -I -m madlib_mop.cli "$command" "$@"
