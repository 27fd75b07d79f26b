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
    command -v apt-get >/dev/null || die "missing: ${packages[*]}. This is no Debian: install what they are called here."
    install="apt-get install --yes --no-install-recommends ${packages[*]}"
    if is_root; then
        as_root=(env)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n env)
    else
        die "packages of the operating system are missing. Run: sudo apt-get update && sudo $install"
    fi
    say "installing ${packages[*]}"
    apt_log=$(mktemp)
    # shellcheck disable=SC2086 # the words of the command
    if ! { "${as_root[@]}" apt-get update &&
        "${as_root[@]}" DEBIAN_FRONTEND=noninteractive $install; } </dev/null >"$apt_log" 2>&1; then
        tail -n 20 "$apt_log" >&2
        die "apt-get failed; its last words are above, all of them in $apt_log"
    fi
    rm "$apt_log"
    mapfile -t packages < <(missing)
    [ ${#packages[@]} = 0 ] || die "still missing after the installation: ${packages[*]}"
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than Python 3.11."
