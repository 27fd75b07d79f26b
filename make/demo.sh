#!/bin/bash
# `make demo`: starts the private server, loads the digits into table demo.digits, and runs demo/digits.sql.

. "$(dirname "$0")/common.sh"

"$ROOT/make/server.sh" demo
cluster=$ROOT/make/cluster.sh
psql=("$("$cluster" bindir)/psql" -Xq -v ON_ERROR_STOP=1 -d "$("$cluster" dsn)")

"$ROOT/make/python.sh" "$ROOT/demo/digits.py" | "${psql[@]}"
"${psql[@]}" <"$ROOT/demo/digits.sql" # not with -f, which would begin each NOTICE with the file's name
