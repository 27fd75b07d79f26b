"""Figures of the columns of a registered model of the run: their importance, and how predictions depend on those that
matter most. Its record has them from its registration."""

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.findings import DependencePoint, OutputImportance, PartialDependence
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import clean, number
from madlib_mop.reports.figures.drawing import BAND, COLOURS, INK, data, spec
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.figures.held_out import of_rows

_MAX_BARS = 15


def columns(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures of each output; none if nothing was found about the columns."""
    version = facts.of_columns
    if version is None:
        return
    found = version.findings
    for place, one in enumerate(found.importances):
        suffix, of = (f"-{place + 1}", f" for {one.output}") if len(found.importances) > 1 else ("", "")
        yield _importance(one, of_rows(version, one.n_rows, found.importance_of), suffix, of)
    for place, dependence in enumerate(found.dependences):
        rows = f"Version {version.version} of the registered model {version.name}, on rows of {found.explained}."
        yield _dependence(dependence, rows, place + 1)


def _importance(one: OutputImportance, rows_of: str, suffix: str, of: str) -> Figure:
    shown = one.columns[:_MAX_BARS]
    bars = [{"p": clean(c.feature), "v": c.importance, "low": c.lower, "high": c.upper} for c in shown]
    base = alt.Chart(data("bars")).encode(
        alt.Y("p:N", sort=None, title=None),
        tooltip=[
            alt.Tooltip("p:N", title="column"), alt.Tooltip("v:Q", title="importance", format=".4~g"),
            alt.Tooltip("low:Q", title="95 % interval, from", format=".4~g"),
            alt.Tooltip("high:Q", title="to", format=".4~g"),
        ],
    )  # fmt: skip
    x = alt.X("v:Q", title=f"growth of the {_words(one.metric)}")
    drawn = base.mark_bar(height={"band": 0.6}, color=COLOURS[0]).encode(x)
    rules = base.mark_rule(strokeWidth=2, color=INK).encode(alt.X("low:Q"), alt.X2("high:Q"))
    body, n_rows = table([(c.feature, number(c.importance), number(c.lower), number(c.upper)) for c in one.columns])
    some = f" The {len(shown)} most important of {one.n_columns:,} columns are drawn." * (one.n_columns > len(shown))
    unsure = sum(c.lower <= 0 for c in shown)
    first = shown[0]
    summary = (
        f"{first.feature} matters most: without it, the {_words(one.metric)} of {number(one.loss)} grows by"
        f" {number(first.importance)}."
    )
    if first.importance <= 0:
        summary = "The rows do not show that the model needs any of the columns."
    elif unsure:
        summary += f" The intervals of {unsure} of {len(shown)} columns contain 0 or less."
    return Figure(
        key=f"column-importance{suffix}",
        title=f"Importance of the columns{of}",
        description=f"{rows_of}{some} How much the {_words(one.metric)} grows if the values of a column are exchanged"
        " between the rows, with a 95 % interval. If it contains 0, the rows do not show that the model needs the"
        " column.",
        summary=summary,
        spec=spec(alt.layer(drawn, rules), 24 * len(bars), bars=bars),
        headings=("column", "importance", "lower", "upper"),
        rows=body,
        n_rows=n_rows,
    )


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _dependence(one: PartialDependence, rows_of: str, place: int) -> Figure:
    what = one.output if one.of_class is None else f"{one.output} = {one.of_class}"
    means = "the mean prediction" if one.of_class is None else f"the mean probability of {what}"
    body, n_rows = table(
        [(_text(p), number(p.prediction), number(p.lower), number(p.upper)) for p in one.points]
    )
    low, high = (pick(one.points, key=lambda p: p.prediction) for pick in (min, max))
    return Figure(
        key=f"dependence-{place}",
        title=f"{what} by {one.feature}",
        description=f"{rows_of} For some values of {one.feature}: {means} if all rows had this value, with a 95 %"
        " interval.",
        summary=f"It goes from {number(low.prediction)} at {_text(low)} to {number(high.prediction)} at {_text(high)}.",
        spec=_spec(one, "mean prediction" if one.of_class is None else "mean probability"),
        headings=(one.feature, "prediction", "lower", "upper"),
        rows=body,
        n_rows=n_rows,
    )


def _spec(one: PartialDependence, title: str) -> str:
    """Return a line over numbers, or a dot for each value of another kind."""
    places = [_place(point) for point in one.points if point.value is not None]
    rows: list[dict[str, Any]] = [
        {"t": _text(p), "v": p.prediction, "low": p.lower, "high": p.upper} for p in one.points
    ]
    hints = [
        alt.Tooltip("t:N", title="value"), alt.Tooltip("v:Q", title="prediction", format=".4~g"),
        alt.Tooltip("low:Q", title="95 % interval, from", format=".4~g"),
        alt.Tooltip("high:Q", title="to", format=".4~g"),
    ]  # fmt: skip
    scale = alt.Scale(zero=False)
    if one.is_number and len(places) > 1 and None not in places:
        drawn = [{**row, "x": place} for row, place in zip(rows, places, strict=False)]  # NULL is the last value
        base = alt.Chart(data("values")).encode(
            alt.X("x:Q", title=None, scale=alt.Scale(zero=False, nice=False)), tooltip=hints
        )
        band = base.mark_area(color=BAND).encode(alt.Y("low:Q", title=title, scale=scale), alt.Y2("high:Q"))
        line = base.mark_line(strokeWidth=2, color=COLOURS[0], point=alt.OverlayMarkDef(size=24, color=COLOURS[0]))
        return spec(alt.layer(band, line.encode(alt.Y("v:Q", title=title, scale=scale))), 200, values=drawn)
    base = alt.Chart(data("values")).encode(alt.Y("t:N", sort=None, title=None), tooltip=hints)
    rules = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(
        alt.X("low:Q", title=title, scale=scale), alt.X2("high:Q")
    )
    dots = base.mark_point(filled=True, size=60, opacity=1, color=COLOURS[0]).encode(
        alt.X("v:Q", title=title, scale=scale)
    )
    return spec(alt.layer(rules, dots), 24 * len(rows), values=rows)


def _text(point: DependencePoint) -> str:
    return "NULL" if point.value is None else clean(point.value)


def _place(point: DependencePoint) -> float | None:
    """Return the value as a number; None if it is none, as a time of day, or not finite."""
    try:
        found = float(point.value or "")
    except ValueError:
        return None
    return found if math.isfinite(found) else None
