#!/bin/bash
# Checks the packages of the operating system; installs missing ones if it has the right, otherwise prints the command.
# packages.sh [DIR]: DIR is where the library is, or will be (default: the private server's).

. "$(dirname "$0")/common.sh"

release() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null; }

python=/usr/bin/python3
case $(release) in # the distribution's PostgreSQL, and its Python if python3 is too new
    forky) postgresql=18 python=/usr/bin/python3.13 ;;
    trixie) postgresql=17 ;;
    noble) postgresql=16 ;;
    *) postgresql=15 ;;
esac

PYTHON=$(choose_python "${1:-$LIBRARY}")
[ -n "${MOP_PYTHON:-}" ] || suits "$PYTHON" || PYTHON=$python

makes_venvs() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }

missing() {
    find_pg_config >/dev/null || printf '%s\n' "postgresql-$postgresql" "postgresql-plpython3-$postgresql"
    makes_venvs || echo "${PYTHON##*/}-venv" # also installs its Python
    [ -x /usr/bin/python3 ] || echo python3-minimal # compiles the modules that PL/Python imports
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates # pip needs it for the package index
}

if [ -n "${PG_CONFIG:-}" ]; then
    command -v "$PG_CONFIG" >/dev/null || die "PG_CONFIG=$PG_CONFIG is not a program."
    if [ "$(server_of "$PG_CONFIG")" = greenplum ] && [ "$(major_of "$PG_CONFIG")" -lt 12 ]; then
        die "PG_CONFIG=$PG_CONFIG is a Greenplum before 7 ($("$PG_CONFIG" --version)):" \
            "without procedures, declarative partitions and plpython3u. Greenplum 7 is the first that can be used."
    fi
    has_plpython "$PG_CONFIG" ||
        die "the PostgreSQL of PG_CONFIG=$PG_CONFIG is older than 15 (and not Greenplum 7), or has no server, or no PL/Python (plpython3u)."
fi

[[ $PYTHON == /usr/bin/python3* ]] || makes_venvs ||
    die "PYTHON=$PYTHON is not Python, or lacks the modules venv and ensurepip, which come with Python."

mapfile -t packages < <(missing)
if [ ${#packages[@]} -gt 0 ]; then
    install_packages "${packages[@]}"
    mapfile -t packages < <(missing)
    [ ${#packages[@]} = 0 ] || die "still missing after the installation: ${packages[*]}"
fi

suits "$PYTHON" || die "$PYTHON is $("$PYTHON" -V 2>&1), but the library needs Python 3.11 to 3.13." \
    "Name such a one: PYTHON=/path/to/python3.13. It need not be the one that PL/Python has."
