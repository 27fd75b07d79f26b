# Sourced by every script here: paths, the server's user, and functions that print messages.
#
#   ROOT    the clone           STATE     everything that is built or run from it
#   OWNER   OS user of the server: `postgres` when we are root, else the caller
# MOP_STATE moves STATE elsewhere; PG_CONFIG chooses the PostgreSQL (15 or newer); MOP_PYTHON (make's PYTHON=) the
# interpreter that the library's virtual environment is made with.

set -euo pipefail
umask 022
unset CDPATH GREP_OPTIONS PYTHONPATH PYTHONHOME PYTHONSTARTUP
for variable in "${!PG@}"; do
    # PGHOST and similar variables would connect our psql to another server
    [ "$variable" = PG_CONFIG ] || unset "$variable"
done

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

is_root() { [ "$(id -u)" = 0 ]; }

if is_root; then
    OWNER=postgres
    clone=$(basename "$ROOT" | tr -c 'A-Za-z0-9._\n-' _)
    STATE=${MOP_STATE:-/var/lib/madlib_mop/$clone-$(printf %s "$ROOT" | sha256sum | cut -c1-8)}
else
    OWNER=$(id -un)
    STATE=${MOP_STATE:-$ROOT/.build}
fi
LIBRARY=$STATE/library # holds venv/ and backend/; replaces @LIBRARY@

# Prints the Python that a library was made with, if it was made and its Python is still there.
python_of() {
    local made_with
    made_with=$(cat "$1/python.path" 2>/dev/null || true)
    [ ! -x "$made_with" ] || echo "$made_with"
}

# Never the first python3 on the PATH: it may belong to a version manager and be inaccessible to the server.
PYTHON=${MOP_PYTHON:-$(python_of "$LIBRARY")}
PYTHON=${PYTHON:-/usr/bin/python3}

say() { printf 'madlib_mop: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

# Runs a command as the server's user, with an environment independent of the caller's: an embedded Python
# finds its library by the PATH, and the trainers inherit what the server has.
as_owner() {
    local home
    home=$(getent passwd "$OWNER" | cut -d: -f6)
    set -- env -i "PATH=/usr/bin:/bin" "HOME=${home:-/}" "LC_ALL=C.UTF-8" "$@"
    if is_root; then
        (cd / && runuser -u "$OWNER" -- "$@")
    else
        (cd / && "$@")
    fi
}

# Installs packages of the operating system, as root or with sudo; otherwise prints the command.
install_packages() {
    local install="apt-get install --yes --no-install-recommends $*" as_root apt_log
    command -v apt-get >/dev/null || die "missing: $*. This is not Debian: install the packages of the same purpose."
    if is_root; then
        as_root=(env)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        die "packages of the operating system are missing. Run: sudo apt-get update && sudo $install"
    fi
    say "installing $*"
    apt_log=$(mktemp)
    # shellcheck disable=SC2086 # the words of the command
    if ! { "${as_root[@]}" apt-get update &&
        "${as_root[@]}" DEBIAN_FRONTEND=noninteractive $install; } </dev/null >"$apt_log" 2>&1; then
        tail -n 20 "$apt_log" >&2
        die "apt-get failed; the end of its output is above, all of it in $apt_log"
    fi
    rm "$apt_log"
}

# Makes the state directory, marked as ours so that `make clean` knows what it may remove.
make_state() {
    mkdir -p "$STATE" || die "cannot create the directory $STATE. Set MOP_STATE to a directory that you can write to."
    [ -e "$STATE/.madlib_mop" ] || printf 'State of the madlib_mop clone in %s\n' "$ROOT" >"$STATE/.madlib_mop"
}

# True when a Python is one that pyproject.toml allows: TensorFlow has no wheels for others.
suits() { "$1" -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

SYSTEM_PYTHONS="/usr/bin/python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11"

# Prints the Python for a library: the requested one, else the one that it was created with, else the first one of
# the system's that is suitable. PL/Python may have another one: what runs there needs the standard library only.
choose_python() {
    local candidate
    if [ -n "${MOP_PYTHON:-}" ]; then
        realpath --no-symlinks "$(command -v "$MOP_PYTHON" || echo "$MOP_PYTHON")"
        return
    fi
    # shellcheck disable=SC2086 # a list of paths
    set -- "$(python_of "$1")" ${MOP_PYTHONS:-$SYSTEM_PYTHONS}
    for candidate in "$@"; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo /usr/bin/python3
}

# Prints the pg_config to use: the requested one, else the last one used, else the newest with PL/Python.
find_pg_config() {
    local candidate
    if [ -n "${PG_CONFIG:-}" ]; then
        command -v "$PG_CONFIG" || die "PG_CONFIG=$PG_CONFIG is not a program."
        return
    fi
    if [ -x "$(cat "$STATE/pg_config" 2>/dev/null)" ]; then
        cat "$STATE/pg_config"
        return
    fi
    for candidate in $(compgen -G "${MOP_PG_GLOB:-/usr/lib/postgresql/*/bin/pg_config}" | sort -rV); do
        if has_plpython "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Prints the kind of server of a pg_config: postgres, or by its own catalog greenplum, or cloudberry by what it calls
# itself in version().
server_of() {
    local headers
    headers=$("$1" --includedir-server)
    if ! [ -e "$headers/catalog/gp_segment_configuration.h" ] && ! [ -e "$headers/catalog/gp_segment_config.h" ]; then # 7; 6
        echo postgres
    elif grep -qE 'define PG_VERSION_STR .*\((Apache )?Cloudberry ' "$headers/pg_config.h" 2>/dev/null; then
        echo cloudberry
    else
        echo greenplum
    fi
}

# Prints the oldest supported major version of PostgreSQL for a kind of server, as server_of prints it.
oldest_major() {
    case $1 in
        greenplum) echo 12 ;; # Greenplum 7
        cloudberry) echo 14 ;;
        *) echo 15 ;;
    esac
}

# Prints what is left to do after the library of a server, as server_of prints it, was installed on this host.
say_installed() {
    if [ "$1" != postgres ]; then
        say "installed on this host. As the cluster's owner, install on all other hosts:" \
            "$2/venv/bin/madlib-mop install --$1 --dsn dbname=postgres"
        say "then as a superuser, in the database of your choice: CREATE EXTENSION madlib_mop CASCADE"
    else
        say "installed. As a superuser, in the database of your choice: CREATE EXTENSION madlib_mop CASCADE"
    fi
    say "then check it: $2/venv/bin/madlib-mop doctor --dsn dbname=..."
}

# Prints the major version of a pg_config's PostgreSQL.
major_of() { "$1" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/'; }

# True when the PostgreSQL of a pg_config is new enough and has a server and PL/Python.
has_plpython() {
    [ "$(major_of "$1")" -ge "$(oldest_major "$(server_of "$1")")" ] && [ -x "$("$1" --bindir)/postgres" ] &&
        [ -e "$("$1" --sharedir)/extension/plpython3u.control" ]
}
