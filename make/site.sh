#!/bin/bash
# Builds the manual as a site into the folder site of the clone; a broken link is an error.

. "$(dirname "$0")/common.sh"

"$ROOT/make/setup.sh" docs
cd "$ROOT"
NO_MKDOCS_2_WARNING=1 "$LIBRARY/venv/bin/python" -m mkdocs build --quiet --strict
say "built. Open $ROOT/site/index.html; for the search: python3 -m http.server --directory $ROOT/site 8000"
