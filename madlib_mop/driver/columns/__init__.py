"""Ordinary tables into packed ones: what their columns are, one pass over the rows, and the encoding of them."""
