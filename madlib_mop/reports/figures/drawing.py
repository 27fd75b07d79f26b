"""Shared parts of all figures: how a chart becomes a specification, colours, data of models."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import number
from madlib_mop.reports.named import named_parameters

#: Colours are the page's CSS variables, so that a figure changes with the page, and in print.
COLOURS = tuple(f"var(--c{i})" for i in range(1, 9))
#: From the worst to the best fifth.
RAMP = tuple(f"var(--r{i})" for i in range(1, 6))
QUIET, INK, BAND, IDLE = "var(--quiet)", "var(--ink)", "var(--band)", "var(--idle)"
#: Padding in pixels of a figure of bars, with room for the number after the longest one.
_BESIDE_BARS = {"left": 5, "top": 5, "right": 44, "bottom": 5}
#: Models with a colour of their own.
N_COLOURED = 6

Rows = Sequence[Mapping[str, Any]]


def data(name: str) -> alt.NamedData:
    """Return a reference to data that `spec` gets."""
    return alt.NamedData(name=name)


def spec(chart: Any, height: int, **rows: Rows) -> str:
    """Return the JSON of a chart as wide as its container.

    Altair does not check the chart against its schema, which takes as long as to make it: tests do.

    Parameters
    ----------
    chart : altair.Chart or altair.LayerChart
    height : int
        Pixels of the plot, without axes and legends.
    **rows
        The data by name.
    """
    document = chart.properties(width="container", height=height).to_dict(validate=False)
    document.pop("config", None)
    document["datasets"] = {name: list(values) for name, values in rows.items()}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def labelled_bars(rows: Rows, x: alt.X, colour: alt.Color | alt.ColorValue, hints: Sequence[alt.Tooltip]) -> str:
    """Return the specification of bars, one below the other: each with its name ``p`` and its text ``t`` beside it."""
    base = alt.Chart(data("bars")).encode(x, alt.Y("p:N", sort=None, title=None), tooltip=list(hints))
    bars = base.mark_bar(height={"band": 0.65}).encode(colour)
    texts = base.mark_text(align="left", dx=5, color=INK).encode(text="t:N")
    return spec(alt.layer(bars, texts).properties(padding=_BESIDE_BARS), 24 * len(rows), bars=rows)


def score_colour(field: str, facts: RunFacts) -> alt.Color:
    """Return the colour of a figure by fifths of the models; the strongest colour is the best."""
    ramp = RAMP if facts.higher_is_better else RAMP[::-1]
    legend = alt.Legend(title=facts.score_name, format=".3~g", orient="top", direction="horizontal")
    return alt.Color(f"{field}:Q", scale=alt.Scale(type="quantile", range=list(ramp)), legend=legend)


def readable_text(chart: alt.Chart, **mark: Any) -> tuple[alt.Chart, alt.Chart]:
    """Return two layers of a text: an outline in the page's colour, which separates it from what is behind, and it."""
    outline = chart.mark_text(color="var(--paper)", stroke="var(--paper)", strokeWidth=3, strokeJoin="round", **mark)
    return outline, chart.mark_text(color="var(--ink)", **mark)


def label(model: ModelFacts) -> str:
    """Return a model's name in legends."""
    return f"{model.mst_key} (rank {model.rank})" if model.rank is not None else str(model.mst_key)


def in_words(model: ModelFacts, names: Sequence[str]) -> str:
    """Return a model's varied hyper-parameters as one text."""
    given = named_parameters(model)
    return ", ".join(f"{name} {value_text(given[name])}" for name in names if name in given)


def value_text(value: object) -> str:
    """Return a hyper-parameter's value as a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return number(value)
