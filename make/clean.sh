#!/bin/bash
# Stops every cluster of this clone and removes its state directory: servers, data, virtual environment, tree.

. "$(dirname "$0")/common.sh"

[ -d "$STATE" ] || exit 0
[ -e "$STATE/.madlib_mop" ] || die "$STATE was not created by these scripts: nothing was removed."
for directory in "$STATE"/clusters/*/; do
    [ ! -d "$directory" ] || "$ROOT/make/cluster.sh" --name "$(basename "$directory")" destroy
done
rm -rf "$STATE"
