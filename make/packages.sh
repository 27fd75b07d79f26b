#!/bin/bash
# Makes sure that the packages of the operating system are there; installs what is missing when it may, else says how.

. "$(dirname "$0")/common.sh"

release() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null; }

case $(release) in # the PostgreSQL of the distribution
    trixie) postgresql=17 ;;
    noble) postgresql=16 ;;
    *) postgresql=15 ;;
esac

missing() {
    find_pg_config >/dev/null || printf '%s\n' "postgresql-$postgresql" "postgresql-plpython3-$postgresql"
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates # pip cannot reach the package index without
}

if [ -n "${PG_CONFIG:-}" ]; then
    command -v "$PG_CONFIG" >/dev/null || die "PG_CONFIG=$PG_CONFIG is not a program."
    if [ "$(server_of "$PG_CONFIG")" = greenplum ] && [ "$(major_of "$PG_CONFIG")" -lt 12 ]; then
        die "PG_CONFIG=$PG_CONFIG is a Greenplum before 7 ($("$PG_CONFIG" --version)):" \
            "without procedures, declarative partitions and plpython3u. Greenplum 7 is the first that can be used."
    fi
    has_plpython "$PG_CONFIG" ||
        die "the PostgreSQL of PG_CONFIG=$PG_CONFIG is older than 15 (and no Greenplum 7), or has no server, or no PL/Python (plpython3u)."
fi

mapfile -t packages < <(missing)
if [ ${#packages[@]} -gt 0 ]; then
    install_packages "${packages[@]}"
    mapfile -t packages < <(missing)
    [ ${#packages[@]} = 0 ] || die "still missing after the installation: ${packages[*]}"
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than Python 3.11."
