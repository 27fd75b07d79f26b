"""The output tables of a run: their names reserved at its start, their rows written at its end."""
