#!/bin/sh
# Starts the server in the container without the superuser's password in its environment: the entrypoint of the base
# image reads it from its file into POSTGRES_PASSWORD, which the server and its processes would inherit. In the PATH, the
# name of this file, postgres, comes before the server's own.
unset POSTGRES_PASSWORD
exec "${MOP_BINDIR:-/usr/lib/postgresql/15/bin}/postgres" "$@"
