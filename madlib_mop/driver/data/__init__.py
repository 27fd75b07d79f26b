"""The data of a call: its engine, its packed tables and their shards, GPUs, hosts, and registered functions."""
