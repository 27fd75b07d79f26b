#!/bin/bash
# Exits with 0 when the server takes logins over TCP, which it does only after the init scripts have ended.
exec pg_isready -q -h 127.0.0.1 -p "${PGPORT:-5432}"
