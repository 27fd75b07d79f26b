#!/bin/bash
# One private PostgreSQL cluster: cluster.sh [--name NAME] [--set parameter=value]... [--in-memory] COMMAND
#
#   start      make the cluster if there is none, start it, wait until it answers (--set and --in-memory count when it
#              is made; --in-memory keeps it in /dev/shm)
#   stop       stop it, ending its sessions        kill      stop it as a power cut would
#   restart    stop and start                      destroy   stop it and remove all of it
#   status     exit status 0 when it runs          dsn [DB]  print the URI by which its owner (or root) logs in
#   work [DB]  start a worker of jobs beside it, unless one runs; it ends with stop and destroy
#   datadir, bindir, logfile, port, owner          print just that
# Several may live beside each other: `server` is the one of `make server`; the tests make and remove their own.

. "$(dirname "$0")/common.sh"

name=server
settings=()
in_memory=false
while [ $# -gt 0 ]; do
    case $1 in
        --name) name=$2 && shift 2 ;;
        --set) settings+=("$2") && shift 2 ;;
        --in-memory) in_memory=true && shift ;;
        *) break ;;
    esac
done
command=${1:-help}
CLUSTER=$STATE/clusters/$name
DATA=$CLUSTER/data
LOG=$CLUSTER/log/server.log

main() {
    case $command in
        start) start ;;
        stop) stop fast ;;
        kill) stop immediate ;;
        restart) stop fast && start ;;
        destroy) destroy ;;
        work) made && work "${2:-madlib_mop}" ;;
        status) runs ;;
        dsn) made && dsn "${2:-madlib_mop}" ;;
        datadir) made && echo "$DATA" ;;
        logfile) made && echo "$LOG" ;;
        port) made && cat "$CLUSTER/port" ;;
        owner) echo "$OWNER" ;;
        bindir) bindir ;;
        *) sed -n '2,11s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
}

start() {
    is_root && ! id "$OWNER" >/dev/null 2>&1 &&
        die "there is no operating system user '$OWNER', and PostgreSQL does not run as root. Run: adduser --system $OWNER"
    if $in_memory && [ ! -e "$CLUSTER" ]; then
        mkdir -p "$(dirname "$CLUSTER")"
        ln -sfn "$(mktemp -d /dev/shm/madlib_mop.XXXXXX)" "$CLUSTER"
        chmod 755 "$CLUSTER"/.
    fi
    mkdir -p "$CLUSTER"
    owners_directory "$CLUSTER/log"
    exec 9>"$CLUSTER/lock"
    flock 9
    [ -e "$DATA/PG_VERSION" ] || make_cluster
    check_version
    runs && [ -S "$(cat "$CLUSTER/socket")/.s.PGSQL.$(cat "$CLUSTER/port")" ] && return
    runs && stop fast # its socket was removed from /tmp
    choose_address
    if ! as_owner "$BINDIR/pg_ctl" -D "$DATA" -l "$LOG" -w -t 60 -s start 9>&- >/dev/null 2>&1; then
        say "PostgreSQL did not start. The end of its log, $LOG:"
        tail -n 20 "$LOG" >&2
        exit 1
    fi
}

# Makes a directory of the server's user. Its parent stays ours: in a directory that the server's user can write, that
# user could make links through which root would write.
owners_directory() {
    mkdir -p "$1"
    chmod 700 "$1"
    ! is_root || chown "$OWNER:" "$1"
}

# Makes the data directory under another name first, so that an interrupted attempt is not mistaken for a cluster.
make_cluster() {
    rm -rf "$DATA" "$DATA.new"
    owners_directory "$DATA.new"
    if ! as_owner "$BINDIR/initdb" -D "$DATA.new" -U "$OWNER" --encoding=UTF8 --locale=C.UTF-8 --no-instructions \
        --auth-local=peer --auth-host=scram-sha-256 >"$CLUSTER/initdb.log" 2>&1; then
        say "initdb failed:"
        tail -n 20 "$CLUSTER/initdb.log" >&2
        exit 1
    fi
    {
        printf '\n# madlib_mop\n'
        printf '%s\n' "listen_addresses = '127.0.0.1'" "password_encryption = scram-sha-256" \
            "shared_buffers = 256MB" "max_connections = 100" "client_connection_check_interval = 500ms" \
            "log_line_prefix = '%m [%p] %u@%d '"
        [ ${#settings[@]} = 0 ] || printf '%s\n' "${settings[@]}"
        printf "include 'address.conf'\n"
    } | as_owner tee -a "$DATA.new/postgresql.conf" >/dev/null
    as_owner tee "$DATA.new/pg_hba.conf" >/dev/null <<END
# TYPE  DATABASE  USER  ADDRESS       METHOD
local   all       all                 peer map=owner
host    all       all   127.0.0.1/32  scram-sha-256
END
    as_owner tee "$DATA.new/pg_ident.conf" >/dev/null <<END
# MAP  OS USER    ROLE
owner  "$OWNER"  "$OWNER"
owner  root      "$OWNER"
END
    mv "$DATA.new" "$DATA"
}

# Writes the port and the socket's directory (a Unix socket's path ends at 107 bytes, so it lies under /tmp).
choose_address() {
    local port socket
    port=$(free_port "$(cat "$CLUSTER/port" 2>/dev/null || true)")
    socket=$(cat "$CLUSTER/socket" 2>/dev/null || true)
    if [ -z "$socket" ] || [ "$(stat -c '%F %U %a' "$socket" 2>/dev/null)" != "directory $OWNER 700" ]; then
        socket=$(as_owner mktemp -d /tmp/madlib_mop.XXXXXX)
    fi
    as_owner tee "$DATA/address.conf" >/dev/null <<END
# Written at each start by make/cluster.sh
port = $port
unix_socket_directories = '$socket'
END
    put "$port" "$CLUSTER/port"
    put "$socket" "$CLUSTER/socket"
}

# Writes a line to a file that another process may read meanwhile.
put() {
    echo "$1" >"$2.new" && mv "$2.new" "$2"
}

# Prints the requested port if it is free, else a free one below the kernel's ephemeral ports.
free_port() {
    "$PYTHON" -I - "$@" <<'END'
import random, socket, sys

for port in [int(arg) for arg in sys.argv[1:] if arg] + random.sample(range(20000, 32000), 200):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
END
}

# The worker runs as the server's user, and stays when the server restarts.
work() {
    local pid_file=$CLUSTER/log/work.pid
    works && return
    as_owner setsid sh -c 'echo $$ >"$1" && shift && exec "$@"' sh "$pid_file" \
        "$LIBRARY/venv/bin/python" -I -m madlib_mop.cli work --dsn "$(dsn "$1")" \
        >>"$CLUSTER/work.log" 2>&1 </dev/null 8>&- 9>&- &
}

works() {
    local pid
    pid=$(cat "$CLUSTER/log/work.pid" 2>/dev/null) && as_owner kill -0 "$pid" 2>/dev/null &&
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q 'madlib_mop.cli work'
}

stop_worker() {
    ! works || as_owner kill "$(cat "$CLUSTER/log/work.pid")"
}

stop() {
    [ "$command" = restart ] || [ "$command" = kill ] || stop_worker
    runs || return 0
    as_owner "$BINDIR/pg_ctl" -D "$DATA" -m "$1" -w -t 60 -s stop
}

destroy() {
    [ -d "$CLUSTER" ] || return 0
    stop immediate
    [ -e "$CLUSTER/socket" ] && rm -rf "$(cat "$CLUSTER/socket")"
    rm -rf "$(readlink -f "$CLUSTER")" "$CLUSTER"
}

runs() { [ -e "$DATA/postmaster.pid" ] && as_owner "$BINDIR/pg_ctl" -D "$DATA" status >/dev/null 2>&1; }

made() {
    [ -e "$DATA/PG_VERSION" ] && [ -e "$CLUSTER/port" ] || die "there is no server yet. Run: make server"
}

check_version() {
    local made_by is
    made_by=$(cat "$DATA/PG_VERSION")
    is=$("$BINDIR/postgres" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
    [ "$made_by" = "$is" ] ||
        die "the cluster in $DATA was created by PostgreSQL $made_by, but this is $is. Set PG_CONFIG, or start from scratch: make clean"
}

dsn() {
    "$PYTHON" -I - "$OWNER" "$1" "$(cat "$CLUSTER/socket")" "$(cat "$CLUSTER/port")" <<'END'
import sys
from urllib.parse import quote

user, database, socket, port = sys.argv[1:]
print(f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={quote(socket)}&port={port}")
END
}

bindir() { cat "$STATE/bindir" 2>/dev/null || die "nothing is set up yet. Run: make setup"; }

BINDIR=$(cat "$STATE/bindir" 2>/dev/null || true)
case $command in
    start | restart) bindir >/dev/null ;;
esac
main "$@"
