"""The figures and the report of a run, read in one snapshot on a session of the role; called by `live` and `pages`."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg

from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.run import RunFacts, read_run
from madlib_mop.catalog.live.words import clean
from madlib_mop.errors import NotReady
from madlib_mop.reports.figures import SECTIONS
from madlib_mop.reports.page import report

_NICENESS = 19


class Drawing:
    """A process with low priority that draws figures: they delay neither pages nor training on the same machine."""

    def __init__(self) -> None:
        self._pool = self._new_pool()

    async def draw(self, facts: RunFacts) -> list[dict[str, Any]]:
        """Return the figures of a run. Raises NotReady if the process was killed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, figures_json, facts)
        except BrokenExecutor:
            self._pool = self._new_pool()
            raise NotReady("The process that draws figures was killed. Load the page again.") from None

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _new_pool() -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, initializer=_give_way, initargs=(_NICENESS,))


def _give_way(niceness: int) -> None:
    os.setsid()  # Linux shares processors between sessions first, and priorities count within a session
    os.nice(niceness)
    with contextlib.suppress(OSError):  # other systems, and kernels without groups of sessions
        Path("/proc/self/autogroup").write_text(str(niceness))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the live page, which ends this process
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the live page was killed."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


def section_titles() -> list[tuple[str, str]]:
    """Return the names of the sections of figures, with their titles, in order."""
    return [(name, section.title) for name, section in SECTIONS.items()]


def facts_of(connection: psycopg.Connection[Any], run_id: int) -> RunFacts:
    """Return the facts of a run."""
    with one_snapshot(connection) as reader:
        return read_run(reader, run_id)


def figures_json(facts: RunFacts) -> list[dict[str, Any]]:
    """Return the figures as JSON values: those of `Figure`, with ``id``, ``section`` and the ``axis`` of a curve."""
    found = []
    for name, section in SECTIONS.items():
        for figure in section.make(facts):
            axis = figure.key.rpartition("-")[2] if name == "curves" else None
            more = {"id": f"figure-{clean(figure.key)}", "section": name, "axis": axis}
            found.append({**asdict(figure), **more})
    return found


def report_html(connection: psycopg.Connection[Any], run_id: int) -> str:
    """Return the report of a run."""
    with one_snapshot(connection) as reader:
        return report(reader, run_id)
