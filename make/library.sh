#!/bin/bash
# Puts the library where a server can run it: library.sh DIR [EXTRA...] makes DIR/venv and DIR/backend/mop_backend.
#
# EXTRAs are the extras of pyproject.toml. BACKENDS='tensorflow jax' adds those of Keras' other backends; later calls
# without it keep them up to date. Nothing is done twice: the interpreter, each list of requirements and the sources are
# stamped in DIR, and a second run with the same ones writes nothing and takes a moment. Without DIR/venv, all is made
# anew. DIR/venv is run by the driver and the trainers. DIR/backend is imported by PL/Python and uses the standard
# library only, so PL/Python may have another Python.

. "$(dirname "$0")/common.sh"

mkdir -p "$1"
DIR=$(cd "$1" && pwd -P)
VENV=$DIR/venv
PYTHON=$(choose_python "$DIR")
shift
known=$(cd "$ROOT/madlib_mop/trainer/backends" && for file in */environment.py; do dirname "$file"; done)
for backend in ${BACKENDS:-}; do
    case $backend in
        tensorflow) ;; # always installed
        *)
            echo "$known" | grep -qx -- "$backend" ||
                die "BACKENDS names the backends of Keras: ${known//$'\n'/, }. Received: $backend"
            grep -qsx -- "$backend" "$DIR/backends" || echo "$backend" >>"$DIR/backends"
            ;;
    esac
done
# shellcheck disable=SC2046 # a word each
set -- "$@" $(cat "$DIR/backends" 2>/dev/null || true)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip() { "$VENV/bin/python" -I -m pip --disable-pip-version-check --no-input --quiet "$@" >&2; }

make_venv() {
    "$PYTHON" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' >"$work/python"
    [ "$PYTHON" = /usr/bin/python3 ] || echo "$PYTHON" >>"$work/python"
    [ -d "$VENV" ] && cmp -s "$work/python" "$DIR/python.stamp" && return
    say "making a virtual environment with $(paste -sd ' ' "$work/python") in $VENV"
    rm -rf "$VENV" "$DIR"/*.stamp "$DIR/python.path"
    "$PYTHON" -m venv "$VENV"
    echo "$PYTHON" >"$DIR/python.path"
    cp "$work/python" "$DIR/python.stamp"
}

install_requirements() {
    local group wanted=() requirements=()
    for group in library "$@"; do
        "$PYTHON" -I "$ROOT/make/requirements.py" "$ROOT/pyproject.toml" "$group" >"$work/$group"
        cmp -s "$work/$group" "$DIR/$group.stamp" || wanted+=("$group")
    done
    [ ${#wanted[@]} -gt 0 ] || return 0
    [ "${wanted[0]}" = library ] && say "installing TensorFlow, Keras and the rest (once; some minutes, 2 GB of disk)"
    for group in "${wanted[@]}"; do requirements+=(--requirement "$work/$group"); done
    pip install "${requirements[@]}" || die "pip could not install the requirements; its output is above."
    for group in "${wanted[@]}"; do cp "$work/$group" "$DIR/$group.stamp"; done
}

source_files() { # prints the names of the sources that are installed, each with a zero byte after it
    find pyproject.toml madlib_mop plpython -name __pycache__ -prune -o -type f -print0 | sort -z
}

sources() ( # prints their checksums
    cd "$ROOT"
    source_files | xargs -0 sha256sum
)

install_library() {
    sources >"$work/sources"
    cmp -s "$work/sources" "$DIR/sources.stamp" && return
    rm -f "$DIR/sources.stamp"
    # Built from a copy: setuptools would leave its build directory in the clone, and use outdated files there.
    mkdir "$work/clone"
    # The files only: tar fails if a directory changes meanwhile, and Python writes its caches into them.
    (cd "$ROOT" && source_files | tar -c --null --files-from=-) | tar -x --no-same-owner -C "$work/clone"
    pip install --no-deps --no-build-isolation --no-index --force-reinstall "$work/clone" ||
        die "pip could not install the library; its output is above."
    add_bundle
    rm -rf "$DIR/backend.new"
    mkdir "$DIR/backend.new"
    cp -R "$work/clone/plpython/mop_backend" "$DIR/backend.new/"
    "$PYTHON" -I -m compileall -q "$DIR/backend.new" # compiled here, because the server's user may not write here
    # for PL/Python's Python, if it is another
    /usr/bin/python3 -I -m compileall -q "$DIR/backend.new" >/dev/null 2>&1 || true
    rm -rf "$DIR/backend"
    mv "$DIR/backend.new" "$DIR/backend"
    cp "$work/sources" "$DIR/sources.stamp"
}

add_bundle() { # the JavaScript of reports' figures: made once for each list of requirements, because it takes seconds
    local reports
    reports=$("$VENV/bin/python" -I -c 'import madlib_mop.reports as r; print(r.__path__[0])')
    cat "$DIR/library.stamp" "$reports/assets.py" >"$work/vega"
    if ! cmp -s "$work/vega" "$DIR/vega.stamp"; then
        "$VENV/bin/python" -I -m madlib_mop.reports.assets "$DIR" || die "the JavaScript of reports could not be bundled."
        cp "$work/vega" "$DIR/vega.stamp"
    fi
    cp "$DIR/vega.js" "$reports/"
}

make_venv
install_requirements "$@"
install_library
