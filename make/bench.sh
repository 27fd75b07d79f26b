#!/bin/bash
# Sets up what `make bench-full` needs in addition to `make setup`: a Redis server as Celery's broker, and the packages
# of benchmarks/requirements.txt in $STATE/bench-venv. That environment includes the library's own, so TensorFlow is
# installed once. Prints only the path of its Python on stdout. Takes a moment when nothing changed.

. "$(dirname "$0")/common.sh"

REQUIREMENTS=$ROOT/benchmarks/requirements.txt
VENV=$STATE/bench-venv

# Debian's package redis-server adds service files and a link to the program in redis-tools, which selects its function
# by the name that it is called by. redis-tools and our own link suffice, and no service is started or enabled.
REDIS_PACKAGE=redis-tools
REDIS_PROGRAM=redis-check-rdb

main() {
    [ -x "$LIBRARY/venv/bin/python" ] || die "nothing is set up yet. Run: make setup"
    have_redis || install_packages "$REDIS_PACKAGE"
    have_redis || die "redis-server is missing after the installation of $REDIS_PACKAGE."
    exec 9>"$STATE/bench.lock"
    flock 9
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    make_venv
    command -v redis-server >/dev/null || ln -sfn "$(command -v "$REDIS_PROGRAM")" "$VENV/bin/redis-server"
    redis=$(PATH=$PATH:$VENV/bin redis-server --version) || die "redis-server does not run."
    [[ $redis == "Redis server "* ]] || die "redis-server is not a Redis server: its version is '$redis'. Install redis-server."
    echo "$VENV/bin/python"
}

have_redis() { command -v redis-server >/dev/null || command -v "$REDIS_PROGRAM" >/dev/null; }

# The numerical packages have the library's versions: with another TensorFlow or NumPy, results would not be comparable.
make_venv() {
    cat "$LIBRARY"/{python,library}.stamp "$REQUIREMENTS" >"$work/stamp"
    cmp -s "$work/stamp" "$VENV/stamp" && return
    say "installing the peers of the comparison in $VENV (once; a minute or two)"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
    purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$LIBRARY/venv/bin/python" -I -c "$purelib" >"$("$VENV/bin/python" -I -c "$purelib")/library.pth"
    "$LIBRARY/venv/bin/python" -I -m pip --disable-pip-version-check list --format freeze |
        grep -E '^(tensorflow|keras|numpy|ml.dtypes|h5py|protobuf)' >"$work/library"
    "$VENV/bin/python" -I -m pip --disable-pip-version-check --no-input --quiet install \
        --constraint "$work/library" --requirement "$REQUIREMENTS" >&2 ||
        die "pip could not install benchmarks/requirements.txt; its output is above."
    cp "$work/stamp" "$VENV/stamp"
}

main
