#!/bin/bash
# Sets up Chromium and what the tests of pages need, and runs these tests; browser.sh [pytest's arguments].

. "$(dirname "$0")/common.sh"

command -v chromium >/dev/null && command -v chromedriver >/dev/null || install_packages chromium chromium-driver
"$ROOT/make/setup.sh" test browser
cd "$ROOT"
exec "$LIBRARY/venv/bin/python" -m pytest -m browser tests/browser "$@"
