"""The Gantt chart of who trained and evaluated which model, and when; called by `schedule` and by benchmarks/."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.schedule import SegmentLoad
from madlib_mop.catalog.live.words import duration
from madlib_mop.reports.figures.drawing import IDLE, Rows, data, spec
from madlib_mop.reports.figures.figure import Cell, table
from madlib_mop.reports.formats import count

#: Of `load_rows`, after the heading of the lane.
LOAD_HEADINGS = ("visits", "evaluations", "time in visits", "time in evaluations", "between tasks")
_LABELLED_BARS = 150


def gantt(bars: Rows, lanes: Rows, lane: str, seconds: alt.X, colour: alt.Color, **channels: Any) -> str:
    """Return the specification of a Gantt chart; pointing at a bar shows all bars of its model.

    Parameters
    ----------
    bars : sequence of mapping
        ``g``, the lane; ``a`` and ``b``, seconds of begin and end; ``m``, the model; ``k``, what was done; and in all
        or none, ``w``, which one it was.
    lanes : sequence of mapping
        ``g``, and ``a`` and ``b``, the time in which it could have worked.
    lane : str
        What a lane is, such as ``segment``.
    seconds : altair.X
        Of ``a``.
    colour : altair.Color
        Of the bars.
    **channels
        More channels of the bars and of their numbers.
    """
    y = alt.Y("g:O", title=lane)
    over = alt.selection_point(name="over", on="pointerover", fields=["m"], clear="pointerout")
    which = [alt.Tooltip("w:N", title="which")] if any("w" in bar for bar in bars) else []
    idle = alt.Chart(data("spans")).mark_bar(color=IDLE, height={"band": 0.8}).encode(seconds, alt.X2("b:Q"), y)
    drawn = alt.Chart(data("bars")).mark_bar(height={"band": 0.8}).encode(
        alt.X("a:Q"), alt.X2("b:Q"), y, colour,
        opacity=alt.when(over).then(alt.value(1)).otherwise(alt.value(0.25)),
        tooltip=[
            alt.Tooltip("m:N", title="model"), alt.Tooltip("k:N", title="task"), *which,
            alt.Tooltip("a:Q", title="from second", format=".2f"), alt.Tooltip("b:Q", title="to second", format=".2f"),
        ],
        **channels,
    ).add_params(over)  # fmt: skip
    layers: list[Any] = [idle, drawn]
    if len(bars) <= _LABELLED_BARS:
        middle = alt.Chart(data("bars")).transform_calculate(c="(datum.a + datum.b) / 2")
        fits = alt.ExprRef("scale('x', datum.b) - scale('x', datum.a) > 7 * length(toString(datum.m)) ? 1 : 0")
        names = middle.mark_text(color="var(--on-bar)", fontSize=10, opacity=fits)
        layers.append(names.encode(alt.X("c:Q"), y, text="m:N", **channels))
    step = max(14, min(34, 480 // len(lanes)))
    return spec(alt.layer(*layers), step * len(lanes), bars=bars, spans=lanes)


def load_rows(loads: Sequence[SegmentLoad]) -> tuple[tuple[tuple[Cell, ...], ...], int]:
    """Return the rows of a table of the lanes' work."""
    return table(
        [
            (
                load.segment_id, count(load.n_visits), count(load.n_evaluations), duration(load.visit_s),
                duration(load.evaluation_s), duration(load.idle_s),
            )
            for load in loads
        ]
    )  # fmt: skip
