"""Rows of the record as frozen dataclasses, with attributes named as the columns; made and taken by `Record`."""
