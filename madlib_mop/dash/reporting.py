"""The figures and the report of a run, read in one snapshot on a session of the role; called by `live`."""

from dataclasses import asdict
from typing import Any

import psycopg

from madlib_mop.reports.figures import figures_of
from madlib_mop.reports.reader import one_snapshot
from madlib_mop.reports.reading import read_run


def figures_json(connection: psycopg.Connection[Any], run_id: int) -> list[dict[str, Any]]:
    """Return the figures of a run: their words, their tables and their specifications, as JSON values."""
    with one_snapshot(connection) as reader:
        facts = read_run(reader, run_id)
    return [asdict(figure) for figure in figures_of(facts)]


def report_html(connection: psycopg.Connection[Any], run_id: int) -> str:
    """Return the report of a run."""
    with one_snapshot(connection) as reader:
        return str(read_run(reader, run_id))
