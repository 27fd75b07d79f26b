#!/bin/bash
# Installs into an existing server, or removes: install.sh install|uninstall, with PG_CONFIG to select the server.
#
# The extension's two files go to $(pg_config --sharedir)/extension; the library, with a virtual environment of its
# own, to $(pg_config --pkglibdir)/madlib_mop, where every user of the machine may read it and none but root write.

. "$(dirname "$0")/common.sh"

[ -n "${PG_CONFIG:-}" ] || die "PG_CONFIG is missing. For example:" \
    "make $1 PG_CONFIG=$(compgen -G '/usr/lib/postgresql/*/bin/pg_config' | tail -n 1 || true)"
library=$("$PG_CONFIG" --pkglibdir 2>/dev/null || true)/madlib_mop
"$ROOT/make/packages.sh" "$library"

extension=$("$PG_CONFIG" --sharedir)/extension
for directory in "$extension" "$(dirname "$library")"; do
    [ -w "$directory" ] || die "$(id -un) cannot write to $directory. Run: sudo make $1 PG_CONFIG=$PG_CONFIG"
done

case $1 in
    install)
        "$ROOT/make/library.sh" "$library"
        "$library/venv/bin/python" -I "$ROOT/make/build_extension.py" --library "$library" --output "$extension" \
            --server "$(server_of "$PG_CONFIG")" >&2
        say_installed "$(server_of "$PG_CONFIG")" "$library"
        ;;
    uninstall)
        rm -rf "$library" "$extension"/madlib_mop.control "$extension"/madlib_mop--*.sql
        say "removed. Databases that still have the extension cannot use it: DROP EXTENSION madlib_mop there."
        ;;
esac
