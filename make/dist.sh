#!/bin/bash
# Makes dist/madlib_mop-<version>.tar.gz of the last commit.

. "$(dirname "$0")/common.sh"

version=$("$PYTHON" -I "$ROOT/make/build_extension.py" --print-version)
mkdir -p "$ROOT/dist"
git -C "$ROOT" archive --format=tar.gz --prefix="madlib_mop-$version/" \
    --output="$ROOT/dist/madlib_mop-$version.tar.gz" HEAD
echo "dist/madlib_mop-$version.tar.gz"
