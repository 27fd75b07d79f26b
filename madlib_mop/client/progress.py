"""Shows the progress of a run while a call waits for it: a bar in a notebook, lines elsewhere, or a function."""

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any, Protocol

from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import RunNow, RunStatus
from madlib_mop.catalog.live.words import best_of, clean, number, progress_of, state_of
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.client.calling.errors import bad_input

#: What `fit` and `wait` take: whether progress is shown, or a function that gets each state.
Progress = bool | Callable[[RunStatus], None]
#: Lines are printed when a run changes its state, and else at most every this many seconds.
_LINE_S = 2.0
_COLUMNS = (
    "rank", "model", "state", "iteration", "validation metric", "validation loss", "training metric", "training loss",
)  # fmt: skip


class Reporter(Protocol):
    """Shows one state of a run after the other."""

    def __call__(self, now: RunNow) -> None: ...


def reporter_of(progress: Progress) -> Reporter:
    """Return what shows progress. Raises InvalidParameter for anything but a boolean or a function."""
    if progress is True:
        return _InNotebook() if _is_notebook() else _Lines()
    if progress is False:
        return lambda now: None
    if not callable(progress):
        raise bad_input(f"progress must be True, False or a function. Received: {progress!r:.100}")
    show: Callable[[RunStatus], None] = progress
    return lambda now: show(now.status)


def html_of(now: RunNow) -> str:
    """Return a state of a run as HTML: a bar, a line and its best models. Texts of the record are escaped."""
    status = now.status
    title = f"Run {status.run_id}: {escape(clean(state_of(status)))}"
    detail = f"<div>{escape(clean(status.detail))}</div>" if status.detail else ""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(_row(model) for model in now.models) + "".join(_row_of_baseline(one) for one in now.baselines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return (
        f"<div><strong>{title}</strong><br><progress max='100' value='{status.percent_done:g}' style='width: 24em'>"
        f"</progress> {escape(progress_of(status))}{detail}{table}</div>"
    )


def _row(model: ModelLine) -> str:
    figures = (number(value) for _, value in model.figures)
    state = f"{model.state}, {model.baseline}" if model.baseline else model.state
    return _cells(model.rank, model.mst_key, clean(state), model.epoch, *figures)


def _row_of_baseline(one: Baseline) -> str:
    figures = number(one.validation_metric), number(one.validation_loss), "", ""
    return _cells("", clean(one.name), "baseline", "", *figures)


def _cells(*cells: object) -> str:
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; IPython is not imported if it is not there yet."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class _InNotebook:
    """One output of a cell, which is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, now: RunNow) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html_of(now)), display_id=True)
        else:
            self._handle.update(HTML(html_of(now)))


class _Lines:
    """Lines on stderr."""

    def __init__(self) -> None:
        self._state: tuple[str, float] | None = None
        self._next = 0.0

    def __call__(self, now: RunNow) -> None:
        status = now.status
        state = (status.state, status.percent_done)
        is_new = self._state is None or self._state[0] != status.state
        if state == self._state or not (is_new or time.monotonic() >= self._next):
            return
        self._state, self._next = state, time.monotonic() + _LINE_S
        best = best_of(now)
        words = [f"run {status.run_id}: {clean(state_of(status))}", progress_of(status), *([best] if best else [])]
        print(", ".join(words), file=sys.stderr, flush=True)
