"""Packing: reading a source table and writing the packed table."""
