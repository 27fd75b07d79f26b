# Removes the leftovers of an interrupted installation: sweep.sh LIBRARY EXTENSION. Run by madlib_mop.cli.cluster on
# each host, by POSIX sh; a library that was moved aside and not replaced is restored.

set -eu
if [ -d "$1.old" ] && [ ! -e "$1" ]; then mv "$1.old" "$1"; fi
rm -rf "$1.new" "$1.old" "$2"/.madlib_mop*.new
