"""The record of runs as Python sees it: its tables, and the questions asked of them."""
