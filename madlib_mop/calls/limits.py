"""Limits of arguments that other modules use too."""

MAX_SEED = 2**31 - 1
MAX_ITERATIONS = 1_000_000
MAX_SEGMENTS = 1024  # for a table on PostgreSQL servers
