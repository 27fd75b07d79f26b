"""Columns of ordinary tables into tensors: reads rows' bytes, counts, proposes, fits a preprocessor, encodes."""
