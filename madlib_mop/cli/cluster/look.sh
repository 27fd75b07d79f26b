# Prints facts about a host of the cluster as NAME=VALUE lines: look.sh BIN LIBRARY EXTENSION PYTHON; changes nothing.
# Run by madlib_mop.cli.cluster on each host, by POSIX sh, before anything is copied there.

bin=$1 library=$2 extension=$3 python=$4
export LC_ALL=C

above=$(dirname "$library")
echo "clock=$(date +%s.%N)"
echo "user=$(id -un)"
echo "machine=$(uname -m) $(getconf GNU_LIBC_VERSION 2>/dev/null)"
echo "server=$("$bin/pg_config" --version 2>/dev/null)"
echo "pkglibdir=$("$bin/pg_config" --pkglibdir 2>/dev/null)"
echo "sharedir=$("$bin/pg_config" --sharedir 2>/dev/null)"
if [ -e "$extension/plpython3u.control" ]; then echo "plpython=yes"; fi
echo "python=$("$python" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)"
for directory in "$above" "$extension"; do
    if [ ! -w "$directory" ]; then echo "closed=$directory"; break; fi
done
echo "free_kb=$(df -Pk "$above" 2>/dev/null | awk 'NR == 2 { print $4 }')"

# Lists every file by name, size and time, and links by their targets; files that Python compiled later are excluded.
if [ -d "$library" ] && cd "$library"; then
    echo "size_kb=$(du -sk . | cut -f1)"
    echo "library=$(find . -name __pycache__ -prune -o \( -type f -o -type l \) -printf '%T@ %s %P %l\n' |
        sed 's/^\([0-9]*\)\.[0-9]*/\1/' | sort | sha256sum | cut -d' ' -f1)"
fi
if cd "$extension" 2>/dev/null; then
    echo "extension=$(cat madlib_mop.control madlib_mop--*.sql 2>/dev/null | sha256sum | cut -d' ' -f1)"
fi
