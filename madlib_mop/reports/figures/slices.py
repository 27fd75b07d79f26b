"""Figures of single hyper-parameters, and of two together; called by `parameters`."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import number
from madlib_mop.reports.figures.drawing import COLOURS, data, readable_text, score_colour, spec, value_text
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.figures.positions import Dimension, dimension, in_order
from madlib_mop.reports.named import named_parameters

Places = list[dict[str, Any]]
#: Letters of all labels of a parameter that fit side by side in a narrow figure, and in a wide one.
_FEW_LETTERS, _MOST_LETTERS = 7, 14


def slices(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> Figure:
    """Return the figure of some parameters, one beside the other."""
    dimensions = [dimension(name, [named_parameters(m).get(name) for m in models]) for name in names]
    rows = [
        {"m": m.mst_key, "k": d.name, "p": round(i + 0.1 + 0.8 * p, 4), "s": m.score, "t": text}
        for i, d in enumerate(dimensions)
        for m, p, text in zip(models, d.places, d.texts, strict=True)
    ]
    ticks = [tick for i, d in enumerate(dimensions) for tick in _ticks(i, d)]
    heads = [{"p": i + 0.5, "t": d.name} for i, d in enumerate(dimensions)]
    walls = [{"p": i} for i in range(1, len(dimensions))]
    x = alt.X("p:Q", axis=None, scale=alt.Scale(domain=[0, len(dimensions)], nice=False))
    dots = alt.Chart(data("models")).mark_point(filled=True, size=34, opacity=0.6).encode(
        x,
        alt.Y("s:Q", title=facts.score_name, scale=alt.Scale(zero=False)),
        alt.Color("k:N", legend=None, scale=alt.Scale(domain=list(names), range=list(COLOURS[: len(names)]))),
        tooltip=[
            alt.Tooltip("m:N", title="model"), alt.Tooltip("k:N", title="parameter"),
            alt.Tooltip("t:N", title="value"), alt.Tooltip("s:Q", title=facts.score_name, format=".5~g"),
        ],
    )  # fmt: skip
    rules = alt.Chart(data("walls")).mark_rule(color="var(--rule)").encode(x)
    below = alt.Chart(data("ticks")).mark_text(
        color="var(--ink)",
        baseline="top",
        align=alt.ExprRef("datum.a"),
        dx=alt.ExprRef("datum.a === 'left' ? -4 : datum.a === 'right' ? 4 : 0"),
        dy=alt.ExprRef("width < 480 && datum.low ? 20 : 6"),
        limit=90,
    )
    texts = below.encode(x, y=alt.value("height"), text="t:N")
    limit = alt.ExprRef(f"width / {len(dimensions)} - 6")
    above = alt.Chart(data("heads")).mark_text(
        color="var(--ink)", fontWeight=600, baseline="bottom", dy=-6, limit=limit
    )
    titles = above.encode(x, y=alt.value(0), text="t:N")
    body, n_rows = table(_averages(facts, models, names))
    return Figure(
        key="slices",
        title="Slices: one parameter at a time",
        description=f"Each dot is a model: {facts.score_name} by the value of each parameter, whatever the other"
        " parameters are.",
        summary=_of_slices(facts, models, names),
        spec=spec(
            alt.layer(rules, dots, texts, titles).properties(padding={"bottom": 38, "top": 24, "left": 5, "right": 5}),
            220, models=rows, ticks=ticks, heads=heads, walls=walls,
        ),
        headings=("parameter", "value", "models", f"best {facts.score_name}", f"median {facts.score_name}"),
        rows=body,
        n_rows=n_rows,
    )  # fmt: skip


def _ticks(number: int, of: Dimension) -> Places:
    """Return the labelled values of a parameter, the first and the last one within its area.

    If the labels are long, every second one is lower in a narrow figure. If they are very long, only these two are
    left.
    """
    ticks = sorted(of.ticks)
    n_letters = sum(len(text) for _, text in ticks)
    if n_letters > _MOST_LETTERS:
        ticks = [ticks[0], *ticks[1:][-1:]]
    return [
        {
            "p": number + 0.1 + 0.8 * p,
            "t": text,
            "a": "left" if i == 0 < len(ticks) - 1 else "right" if i == len(ticks) - 1 > 0 else "center",
            "low": n_letters > _FEW_LETTERS and i % 2 == 1,
        }
        for i, (p, text) in enumerate(ticks)
    ]


def _groups(facts: RunFacts, models: Sequence[ModelFacts], name: str) -> dict[str, list[float]]:
    """Return the figures of the models by the value of a parameter, in the order of the values."""
    values = sorted({given[name] for given in map(named_parameters, models) if name in given}, key=in_order)
    found: dict[str, list[float]] = {value_text(value): [] for value in values}
    for m in models:
        score = m.score
        if name in named_parameters(m) and score is not None:
            found[value_text(named_parameters(m)[name])].append(score)
    return {text: sorted(scores, reverse=facts.higher_is_better) for text, scores in found.items() if scores}


def _averages(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> list[tuple[Any, ...]]:
    return [
        (name, text, len(scores), number(scores[0]), number(scores[len(scores) // 2]))
        for name in names
        for text, scores in _groups(facts, models, name).items()
    ]


def _of_slices(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> str:
    parts = []
    pick = max if facts.higher_is_better else min
    for name in names:
        groups = _groups(facts, models, name)
        if 1 < len(groups) <= len(models) // 2:
            text = pick(groups, key=lambda text: groups[text][len(groups[text]) // 2])
            parts.append(f"{name} {text}")
    return f"The best medians have {', '.join(parts)}." if parts else "Nearly every model has values of its own."


def together(facts: RunFacts, models: Sequence[ModelFacts], first: str, second: str) -> Figure:
    """Return the figure of two parameters: cells where they have few values, otherwise a surface between the models."""
    across, up = (dimension(n, [named_parameters(m).get(n) for m in models]) for n in (first, second))
    rows: Places = [
        {"m": m.mst_key, "x": p, "y": q, "a": a, "b": b, "s": m.score}
        for m, p, q, a, b in zip(models, across.places, up.places, across.texts, up.texts, strict=True)
    ]
    if across.is_discrete and up.is_discrete:
        drawn, sets = _cells_of(facts, rows, across, up)
    else:
        drawn, sets = _surface(facts, rows, across, up)
    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        cells.setdefault((row["a"], row["b"]), []).append(row["s"])
    pick = max if facts.higher_is_better else min
    body, n_rows = table([(a, b, len(scores), number(pick(scores))) for (a, b), scores in cells.items()])
    (a, b), scores = pick(cells.items(), key=lambda item: pick(item[1]))
    return Figure(
        key="contour",
        title=f"{first} and {second} together",
        description=f"The best {facts.score_name} for each pair of values; the strongest colour is the best fifth."
        + ("" if "surface" not in sets else " Between the models, drawn as dots, the surface is interpolated."),
        summary=f"The best {facts.score_name}, {number(pick(scores))}, has {first} {a} and {second} {b}.",
        spec=spec(drawn, max(180, min(320, 46 * len(up.ticks))), **sets),
        headings=(first, second, "models", f"best {facts.score_name}"),
        rows=body,
        n_rows=n_rows,
    )


def _cells_of(facts: RunFacts, rows: Places, across: Dimension, up: Dimension) -> tuple[Any, dict[str, Places]]:
    pick = max if facts.higher_is_better else min
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        held = cells.setdefault((row["a"], row["b"]), {"a": row["a"], "b": row["b"], "s": row["s"], "n": 0})
        held["n"] += 1
        held["s"] = pick(held["s"], row["s"])
    base = alt.Chart(data("cells")).encode(
        alt.X("a:N", title=across.name, sort=[text for _, text in across.ticks], axis=alt.Axis(labelAngle=0)),
        alt.Y("b:N", title=up.name, sort=[text for _, text in up.ticks][::-1]),
        tooltip=[
            alt.Tooltip("a:N", title=across.name), alt.Tooltip("b:N", title=up.name),
            alt.Tooltip("s:Q", title=f"best {facts.score_name}", format=".5~g"), alt.Tooltip("n:Q", title="models"),
        ],
    )  # fmt: skip
    boxes = base.mark_rect(stroke="var(--paper)", strokeWidth=2).encode(score_colour("s", facts))
    texts = readable_text(base.encode(alt.Text("s:Q", format=".4~g")), fontWeight=600)
    return alt.layer(boxes, *texts), {"cells": list(cells.values())}


def _surface(facts: RunFacts, rows: Places, across: Dimension, up: Dimension) -> tuple[Any, dict[str, Places]]:
    n_side = 24
    centres = [(i + 0.5) / n_side for i in range(n_side)]
    surface = [
        {"x": round(x - 0.5 / n_side, 4), "X": round(x + 0.5 / n_side, 4), "y": round(y - 0.5 / n_side, 4),
         "Y": round(y + 0.5 / n_side, 4), "s": float(f"{_between(x, y, rows):.4g}")}
        for x in centres
        for y in centres
    ]  # fmt: skip
    domain = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("x:Q", title=across.name, axis=_value_axis(across), scale=domain)
    y = alt.Y("y:Q", title=up.name, axis=_value_axis(up), scale=domain)
    field = alt.Chart(data("surface")).mark_rect().encode(x, y, score_colour("s", facts), alt.X2("X:Q"), alt.Y2("Y:Q"))
    dots = alt.Chart(data("models")).mark_point(
        filled=True, size=30, opacity=1, color="var(--ink)", stroke="var(--paper)", strokeWidth=1
    )
    hints = [
        alt.Tooltip("m:N", title="model"), alt.Tooltip("a:N", title=across.name), alt.Tooltip("b:N", title=up.name),
        alt.Tooltip("s:Q", title=facts.score_name, format=".5~g"),
    ]  # fmt: skip
    return alt.layer(field, dots.encode(x, y, tooltip=hints)), {"surface": surface, "models": rows}


def _value_axis(of: Dimension) -> alt.Axis:
    places = [round(place, 6) for place, _ in of.ticks]
    words = {place: text for place, text in zip(places, (text for _, text in of.ticks), strict=True)}
    choices = " : ".join(f"abs(datum.value - {place}) < 1e-4 ? {_literal(text)}" for place, text in words.items())
    return alt.Axis(values=places, labelExpr=f"{choices} : ''", labelAngle=0, grid=False)


def _literal(text: str) -> str:
    """Write a text for a Vega expression, which is interpreted, not run as JavaScript."""
    return json.dumps(text)


def _between(x: float, y: float, rows: Sequence[dict[str, Any]]) -> float:
    """Return the figure at a place: the mean of the models, weighted by their inverse distance cubed (Shepard)."""
    total = weights = 0.0
    for row in rows:
        weight = 1 / (((row["x"] - x) ** 2 + (row["y"] - y) ** 2) ** 1.5 + 1e-5)
        total, weights = total + weight * row["s"], weights + weight
    return total / weights
