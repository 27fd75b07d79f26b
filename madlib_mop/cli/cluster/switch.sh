# Replaces the library by the new one next to it, by renaming: switch.sh LIBRARY EXTENSION. If a step fails, the old
# library stays. Run by madlib_mop.cli.cluster on each host, by POSIX sh, when all hosts have the new one.

set -eu
library=$1 extension=$2
new=$library.new old=$library.old
cd "$new"
for file in madlib_mop--*.sql madlib_mop.control; do
    cp "$file" "$extension/.$file.new"
done
rm -rf "$old"
if [ -d "$library" ]; then mv "$library" "$old"; fi
if ! mv madlib_mop "$library"; then
    if [ -d "$old" ]; then mv "$old" "$library"; fi
    exit 1
fi
for file in madlib_mop--*.sql madlib_mop.control; do # the second names the version of the first
    mv "$extension/.$file.new" "$extension/$file"
done
for file in "$extension"/madlib_mop--*.sql; do
    if [ ! -e "${file##*/}" ]; then rm -f "$file"; fi
done
cd /
rm -rf "$new" "$old"
