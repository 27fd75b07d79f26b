"""The parts of the pages that change while they are shown, as HTML; called for a page, and by feeds for its updates.

A part has the same HTML in a page and in an update. It contains nothing of one browser's session, because a feed is
shared: buttons have no token, the dialogs of the page do.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from madlib_mop.catalog.facts.now import JobLine, RunLine, RunNow
from madlib_mop.catalog.live import words
from madlib_mop.catalog.live.words import clean, number

_TEMPLATES = Path(__file__).parent / "templates"


class Pages:
    """The templates of the live page."""

    def __init__(self, **known: Any):
        self._jinja = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,  # defence: escaped-pages = False
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {
            "clean": clean, "duration": words.duration, "number": number, "instant": instant, "state": words.state_of,
            "end": words.end_of, "task": words.task_of, "newest": words.newest_of, "arguments": arguments, "cell": cell,
            "count": lambda n: "" if n is None else f"{n:,}",
        }  # fmt: skip
        self._jinja.globals |= known

    def render(self, name: str, **values: Any) -> str:
        """Return a page."""
        return self._jinja.get_template(name).render(**values)

    def of_run(self, now: RunNow) -> dict[str, Any]:
        """Return the parts of the page of a run, with the rows of its leaderboard by key and in order."""
        module: Any = self._jinja.get_template("run_parts.html").module
        names = ("head", "progress", "baselines", "segments", "failures", "commands")
        parts = {name: str(getattr(module, name)(now)) for name in names}
        rows = {str(model.mst_key): str(module.model(model, now.status)) for model in now.models}
        return {
            **parts, "columns": str(module.columns(now.metric_name, now.status.may_steer)), "rows": rows,
            "order": list(rows), "say": spoken(now), "visits": now.status.visits_done, "state": now.status.state,
        }  # fmt: skip

    def figure(self, figure: Mapping[str, Any]) -> str:
        """Return one figure: its words, its numbers, and the place of the drawing."""
        module: Any = self._jinja.get_template("figures.html").module
        return str(module.figure(figure))

    def of_list(self, runs: Sequence[RunLine], counts: Sequence[int], jobs: Sequence[JobLine]) -> dict[str, Any]:
        """Return the parts of the list of runs, with its rows by number and in order."""
        module: Any = self._jinja.get_template("list_parts.html").module
        rows = {str(run.run_id): str(module.run(run)) for run in runs}
        counted, listed = str(module.counts(counts)), str(module.jobs(jobs))
        return {"counts": counted, "jobs": listed, "rows": rows, "order": list(rows)}


def spoken(now: RunNow) -> str:
    """Return the state of a run for screen readers: one or two sentences."""
    best, status = words.best_of(now), now.status
    line = f"Run {status.run_id} {words.state_of(status)}: {words.progress_of(status)}."
    return f"{line} {best}." if best else line


def instant(at: datetime | None) -> str:
    """Return a time of day in UTC."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def arguments(given: object) -> str:
    """Return the arguments of a command in one line."""
    return clean(json.dumps(given)[:300]) if given else ""


def cell(value: object) -> str:
    """Return a cell of a figure's table."""
    return number(value) if isinstance(value, float) else clean("" if value is None else str(value))
