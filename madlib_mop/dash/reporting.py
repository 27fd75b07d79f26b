"""The figures and the report of a run, read in one snapshot on a session of the role; called by `live` and `pages`."""

from dataclasses import asdict
from typing import Any

import psycopg

from madlib_mop.catalog.live.words import clean
from madlib_mop.reports.figures import SECTIONS
from madlib_mop.reports.page import report
from madlib_mop.reports.reader import one_snapshot
from madlib_mop.reports.reading import read_run

#: Titles of the sections of figures, in order.
SECTION_TITLES = (
    ("curves", "Learning curves"), ("schedule", "Schedule"), ("parameters", "Hyper-parameters"), ("history", "History"),
)  # fmt: skip


def figures_json(connection: psycopg.Connection[Any], run_id: int) -> list[dict[str, Any]]:
    """Return the figures of a run as JSON values: those of `Figure`, with ``id``, ``section`` and a curve's ``axis``."""
    with one_snapshot(connection) as reader:
        facts = read_run(reader, run_id)
    found = []
    for section, _ in SECTION_TITLES:
        for figure in SECTIONS[section](facts):
            axis = figure.key.rpartition("-")[2] if section == "curves" else None
            more = {"id": f"figure-{clean(figure.key)}", "section": section, "axis": axis}
            found.append({**asdict(figure), **more})
    return found


def report_html(connection: psycopg.Connection[Any], run_id: int) -> str:
    """Return the report of a run."""
    with one_snapshot(connection) as reader:
        return report(reader, run_id)
