# Takes the archive on stdin and puts what is in it beside the library: receive.sh LIBRARY; what runs is not touched.
# Run by madlib_mop.cli.cluster at each host, by POSIX sh.

set -eu
umask 022
new=$1.new
trap 'rm -rf "$new"' EXIT
trap 'exit 1' HUP INT TERM
rm -rf "$new"
mkdir "$new"
tar -x --no-same-owner -C "$new"
[ -e "$new/madlib_mop.control" ] # the last in the archive
trap - EXIT
