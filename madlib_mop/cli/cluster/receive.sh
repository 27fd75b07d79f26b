# Unpacks the archive on stdin next to the library: receive.sh LIBRARY; the installed library is not changed. Run by
# madlib_mop.cli.cluster on each host, by POSIX sh.

set -eu
umask 022
new=$1.new
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
rm -rf "$new"
mkdir "$new"
tar -x --no-same-owner -C "$new"
[ -e "$new/madlib_mop.control" ] # the last file in the archive
trap - EXIT
