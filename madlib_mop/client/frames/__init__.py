"""Data frames: their columns as columns of tables, and results of queries as data frames."""
