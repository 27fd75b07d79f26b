"""Rows of the record as frozen dataclasses with attributes named like the columns; used by `Record`."""
