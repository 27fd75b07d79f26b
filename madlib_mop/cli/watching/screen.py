"""The screen of `madlib-mop watch`: a state of a run as a Rich renderable; called by `terminal`.

Texts of the record are `rich.text.Text`, which has no markup, without control characters.
"""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import RunNow, SegmentFacts
from madlib_mop.catalog.live.words import clean, clock, newest_of, number, parameters_of, progress_of, state_of, task_of
from madlib_mop.cli.watching.prompts import KEYS

_STYLES = {"failed": "red", "stopped": "yellow", "trained": "green", "finished": "green", "cancelled": "yellow",
           "interrupted": "red", "training": "cyan", "running": "cyan"}  # fmt: skip
_MAX_SEGMENTS, _MAX_NEWS = 8, 4
#: In a narrower terminal, the leaderboard has no metrics of training data.
_WIDE = 110


@dataclass
class View:
    """What the person at the terminal chose: the selected model, and the text of the last line."""

    selected: int | None = None
    last_line: str = ""
    is_question: bool = False


def draw(now: RunNow, view: View, height: int, width: int) -> RenderableType:
    """Return the screen.

    Parameters
    ----------
    now : RunNow
    view : View
    height, width : int
        Lines and columns of the terminal.
    """
    segments, news = _segments(now), _news(now)
    n_models = max(3, height - 8 - len(now.baselines) - segments.row_count - news.row_count)
    board = _leaderboard(now, view, n_models, width >= _WIDE)
    return Group(*_head(now), board, Text(), segments, Text(), news, _last_line(now, view))


def _head(now: RunNow) -> tuple[RenderableType, ...]:
    status = now.status
    title = Text.assemble(
        (f"run {status.run_id} ", "bold"), (state_of(status), _STYLES.get(status.state, "")),
        f"  {clean(status.output_table)}, of {clean(status.owner)}", overflow="ellipsis", no_wrap=True,
    )  # fmt: skip
    bar = Table.grid(expand=True)  # a ProgressBar alone does not end its line, and hides what follows
    bar.add_row(ProgressBar(total=100, completed=status.percent_done))
    return title, bar, Text(progress_of(status), overflow="ellipsis", no_wrap=True)


def _leaderboard(now: RunNow, view: View, n_lines: int, is_wide: bool) -> Table:
    metric = clean(now.metric_name) if now.metric_name else "metric"
    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    figures = (f"valid. {metric}", "valid. loss", f"train. {metric}", "train. loss")[: 4 if is_wide else 2]
    for title in ("", "rank", "model", "state", "iteration", *figures):
        table.add_column(title, justify="left" if title in ("", "state") else "right", no_wrap=True)
    table.add_column("parameters", ratio=1, no_wrap=True, overflow="ellipsis")
    place = next((n for n, m in enumerate(now.models) if m.mst_key == view.selected), 0)
    first = max(0, min(place - n_lines // 2, len(now.models) - n_lines))
    for model in now.models[first : first + n_lines]:
        chosen = model.mst_key == view.selected
        table.add_row(">" if chosen else "", *_cells(model, len(figures)), style="reverse" if chosen else "")
    for baseline in now.baselines:
        found = (number(baseline.validation_metric), number(baseline.validation_loss), "", "")[: len(figures)]
        note = Text(f"{clean(baseline.name)}: {clean(baseline.note)}")
        table.add_row("", "", "", "baseline", "", *found, note, style="dim")
    return table


def _cells(model: ModelLine, n_figures: int) -> tuple[Text, ...]:
    marks = [model.state, *(["pinned"] if model.pinned else []), *([clean(model.baseline)] if model.baseline else [])]
    state = Text(", ".join(marks), style=_STYLES.get(model.state, ""))
    reason = f"{clean(model.detail)}  " if model.detail else ""
    return (
        Text(str(model.rank)), Text(str(model.mst_key)), state, Text(f"{model.epoch}/{model.last_epoch}"),
        *(Text(number(value)) for _, value in model.figures[:n_figures]),
        Text(f"{reason}{parameters_of(model)}"),
    )  # fmt: skip


def _segments(now: RunNow) -> Table:
    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    for title in ("segment", "rows", "visits", "work"):
        table.add_column(title, justify="left" if title == "work" else "right", no_wrap=True)
    table.columns[-1].ratio = 1
    shown = now.segments if len(now.segments) <= _MAX_SEGMENTS else now.segments[: _MAX_SEGMENTS - 1]
    for segment in shown:
        place = f" at {clean(segment.place)}" if segment.place else ""
        rows = "" if segment.n_rows is None else f"{segment.n_rows:,}"
        table.add_row(f"{segment.segment_id}{place}", rows, str(segment.n_visits), Text(_work(segment)))
    if len(shown) < len(now.segments):
        table.add_row("", "", "", Text(f"and {len(now.segments) - len(shown)} other segments", style="dim"))
    return table


def _work(segment: SegmentFacts) -> str:
    """Return what a segment is doing, or else its newest visit."""
    if segment.task is not None:
        return f"{task_of(segment)}, since {clock(segment.task_since)}"
    newest = newest_of(segment)
    return f"newest visit: {newest}, ended {clock(segment.ended_at)}" if newest else "no visit yet"


def _news(now: RunNow) -> Table:
    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    table.add_column("failures and commands", ratio=1, no_wrap=True, overflow="ellipsis")
    for failure in now.failures[:_MAX_NEWS]:
        table.add_row(Text(f"model {failure.mst_key} failed: {clean(failure.reason)}", style="red"))
    for command in now.commands[:_MAX_NEWS]:
        told = f": {clean(command.detail)}" if command.detail else ""
        said = f"{clock(command.issued_at)} {command.command} of {clean(command.issued_by)}: {command.state}{told}"
        table.add_row(Text(said))
    if not now.failures and not now.commands:
        table.add_row(Text("none", style="dim"))
    return table


def _last_line(now: RunNow, view: View) -> Text:
    if view.last_line:
        return Text(clean(view.last_line), style="bold reverse" if view.is_question else "bold", no_wrap=True)
    keys = KEYS if now.status.may_steer else KEYS[-1:]
    said = "  ".join(f"{key} {what}" for key, what in keys)
    return Text(f"up/down select  {said}", style="dim", no_wrap=True, overflow="ellipsis")
