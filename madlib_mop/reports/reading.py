"""Reads the facts of one run with the viewer's rights; called by the report, the live page and ``watch``."""

from madlib_mop.reports.facts import RunFacts
from madlib_mop.reports.reader import Reader


def read_run(reader: Reader, run_id: int) -> RunFacts:
    """Return the facts of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    raise NotImplementedError
