"""The record of runs in Python: its tables and their queries."""
