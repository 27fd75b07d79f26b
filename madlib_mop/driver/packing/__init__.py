"""Packing: what the preprocessors read from a source table, and how they write the packed one."""
