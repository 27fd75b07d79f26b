"""Reads the facts of one run with the viewer's rights; called by the report, the live page and ``watch``."""

from madlib_mop.reports.reading.whole import read_run

__all__ = ["read_run"]
