"""The preprocessor of a run's packed tables, as a row of the record."""

from typing import NamedTuple


class PreprocessorRow(NamedTuple):
    """A preprocessor: its SHA-256, and its JSON document."""

    digest: str
    document: str
