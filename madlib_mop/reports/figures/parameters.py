"""Figures of hyper-parameters: parallel coordinates, importance, slices, and two parameters together."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from madlib_mop.reports.facts import ModelFacts, RunFacts
from madlib_mop.reports.figures.drawing import (
    COLOURS,
    QUIET,
    data,
    in_words,
    score_colour,
    spec,
    value_text,
)
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.figures.positions import Dimension, dimension
from madlib_mop.reports.formats import number, percent
from madlib_mop.reports.importance import Importance, importance, is_logarithmic, ranked, varied

#: Parameters in one figure.
MAX_PARAMETERS = 8
_N_SLICES = 4
_LEAST_MODELS = 2


def parameters(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures of a run's hyper-parameters; none if all models have the same ones."""
    models = ranked(facts)
    names = list(varied(models))
    if len(models) < _LEAST_MODELS or not names:
        return
    found = importance(facts)
    if found is not None:
        order = [name for name, _ in found.shares]
        names = order + [name for name in names if name not in order]
        yield _importance(facts, found)
    yield _parallel(facts, models, names[:MAX_PARAMETERS])
    yield _slices(facts, models, names[:_N_SLICES])
    if len(names) >= 2:
        yield _together(facts, models, names[0], names[1])


def _importance(facts: RunFacts, found: Importance) -> Figure:
    rows = [{"p": name, "s": round(share, 4), "t": percent(share)} for name, share in found.shares[:MAX_PARAMETERS]]
    base = alt.Chart(data("shares")).encode(
        alt.X("s:Q", title=f"share of the differences in {facts.score_name}", axis=alt.Axis(format="%")),
        alt.Y("p:N", sort=None, title=None),
        tooltip=[alt.Tooltip("p:N", title="parameter"), alt.Tooltip("t:N", title="importance")],
    )
    bars = base.mark_bar(color=COLOURS[0], height={"band": 0.6})
    texts = base.mark_text(align="left", dx=5, color="var(--ink)").encode(text="t:N")
    name, share = found.shares[0]
    left = f" Not all models have {', '.join(found.left_out)}, so it is left out." if found.left_out else ""
    body, n_rows = table([(name, percent(share)) for name, share in found.shares])
    return Figure(
        key="importance",
        title="Which parameters mattered",
        description=f"The share of the differences in {facts.score_name} between {found.n_models} models that each"
        f" parameter explains, by Optuna's evaluator {found.evaluator}.{left}",
        summary=f"{name} explains {percent(share)} of the differences.",
        spec=spec(alt.layer(bars, texts).properties(height=alt.Step(30)), None, shares=rows),
        headings=("parameter", "importance"),
        rows=body,
        n_rows=n_rows,
    )


def _parallel(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> Figure:
    dimensions = [dimension(name, [m.hyper_parameters.get(name) for m in models]) for name in names]
    dimensions.append(dimension(facts.score_name, [facts.score(m) for m in models]))
    order = [d.name for d in dimensions]
    lines = [
        {"m": m.mst_key, "k": d.name, "p": round(p, 4), "s": facts.score(m), "t": text}
        for d in dimensions
        for m, p, text in zip(models, d.places, d.texts, strict=True)
    ]
    ticks = [{"k": d.name, "p": p, "t": text} for d in dimensions for p, text in d.ticks]
    x = alt.X("k:N", sort=order, title=None, scale=alt.Scale(type="point", padding=0.4), axis=_dimension_axis())
    y = alt.Y("p:Q", axis=None, scale=alt.Scale(domain=[-0.05, 1.05]))
    over = alt.selection_point(name="over", on="pointerover", nearest=False, fields=["m"], empty=False, clear="pointerout")
    hints = [alt.Tooltip("m:N", title="model"), alt.Tooltip("k:N", title="parameter"), alt.Tooltip("t:N", title="value")]
    wide = alt.when(over).then(alt.value(4)).otherwise(alt.value(1.5))
    drawn = alt.Chart(data("lines")).mark_line(opacity=0.75).encode(
        x, y, score_colour("s", facts), detail=["m:N"], strokeWidth=wide, tooltip=hints
    ).add_params(over)  # fmt: skip
    dots = alt.Chart(data("lines")).mark_point(filled=True, size=14, opacity=0.75).encode(
        x, y, score_colour("s", facts), tooltip=hints
    )  # fmt: skip
    texts = alt.Chart(data("ticks")).mark_text(
        align="right", dx=-7, color="var(--ink)", stroke="var(--paper)", strokeWidth=3, strokeOpacity=0.9
    ).encode(x, y, text="t:N")  # fmt: skip
    plain = texts.mark_text(align="right", dx=-7, color="var(--ink)")
    top = models[0]
    body, n_rows = table([(m.mst_key, *_cells(m, names), number(facts.score(m))) for m in models])
    return Figure(
        key="parallel",
        title="Parallel coordinates",
        description=f"Each line is a model; it crosses each parameter's axis at its value. The strongest colour has the"
        f" best fifth of {facts.score_name}." + _of_how_many(facts, models),
        summary=f"The best of {len(models):,} models, {top.mst_key}, has {in_words(top, names)}.",
        spec=spec(alt.layer(drawn, dots, texts, plain), 320, lines=lines, ticks=ticks),
        headings=("model", *names, facts.score_name),
        rows=body,
        n_rows=n_rows,
    )


def _dimension_axis() -> alt.Axis:
    return alt.Axis(orient="top", labelAngle=0, grid=True, domain=False, ticks=False, labelLimit=120, labelFontWeight=600)


def _slices(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> Figure:
    """Show the figure by each of the first parameters, one column for each value or place."""
    dimensions = [dimension(name, [m.hyper_parameters.get(name) for m in models]) for name in names]
    rows = [
        {"m": m.mst_key, "k": d.name, "p": round(i + 0.1 + 0.8 * p, 4), "s": facts.score(m), "t": text}
        for i, d in enumerate(dimensions)
        for m, p, text in zip(models, d.places, d.texts, strict=True)
    ]
    ticks = [{"p": i + 0.1 + 0.8 * p, "t": text} for i, d in enumerate(dimensions) for p, text in d.ticks]
    heads = [{"p": i + 0.5, "t": d.name} for i, d in enumerate(dimensions)]
    walls = [{"p": i} for i in range(1, len(dimensions))]
    x = alt.X("p:Q", axis=None, scale=alt.Scale(domain=[0, len(dimensions)], nice=False))
    dots = alt.Chart(data("models")).mark_point(filled=True, size=34, opacity=0.6).encode(
        x,
        alt.Y("s:Q", title=facts.score_name, scale=alt.Scale(zero=False)),
        alt.Color("k:N", sort=list(names), legend=None, scale=alt.Scale(domain=list(names), range=list(COLOURS[:_N_SLICES]))),
        tooltip=[
            alt.Tooltip("m:N", title="model"), alt.Tooltip("k:N", title="parameter"),
            alt.Tooltip("t:N", title="value"), alt.Tooltip("s:Q", title=facts.score_name, format=".5~g"),
        ],
    )  # fmt: skip
    rules = alt.Chart(data("walls")).mark_rule(color="var(--rule)").encode(x)
    below = alt.Chart(data("ticks")).mark_text(color="var(--ink)", baseline="top", dy=6, limit=90)
    texts = below.encode(x, alt.YValue("height"), text="t:N")
    above = alt.Chart(data("heads")).mark_text(color="var(--ink)", fontWeight=600, baseline="bottom", dy=-6)
    titles = above.encode(x, alt.YValue(0), text="t:N")
    body, n_rows = table(_averages(facts, models, names))
    return Figure(
        key="slices",
        title="Slices: one parameter at a time",
        description=f"Each dot is a model: {facts.score_name} by the value of each parameter, whatever the other ones are.",
        summary=_of_slices(facts, models, names),
        spec=spec(
            alt.layer(rules, dots, texts, titles).properties(padding={"bottom": 24, "top": 24, "left": 5, "right": 5}),
            220, models=rows, ticks=ticks, heads=heads, walls=walls,
        ),
        headings=("parameter", "value", "models", f"best {facts.score_name}", f"median {facts.score_name}"),
        rows=body,
        n_rows=n_rows,
    )  # fmt: skip


def _groups(facts: RunFacts, models: Sequence[ModelFacts], name: str) -> dict[str, list[float]]:
    """Return the figures of the models by the value of a parameter, in the order of the values."""
    values = sorted({m.hyper_parameters[name] for m in models if name in m.hyper_parameters}, key=_sorting)
    found: dict[str, list[float]] = {value_text(value): [] for value in values}
    for m in models:
        score = facts.score(m)
        if name in m.hyper_parameters and score is not None:
            found[value_text(m.hyper_parameters[name])].append(score)
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


def _together(facts: RunFacts, models: Sequence[ModelFacts], first: str, second: str) -> Figure:
    """Show two parameters together: cells where they have few values, otherwise a surface between the models."""
    across, up = (dimension(n, [m.hyper_parameters.get(n) for m in models]) for n in (first, second))
    having = [
        (m, p, q, a, b)
        for m, p, q, a, b in zip(models, across.places, up.places, across.texts, up.texts, strict=True)
    ]
    rows = [{"m": m.mst_key, "x": p, "y": q, "a": a, "b": b, "s": facts.score(m)} for m, p, q, a, b in having]
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


def _cells_of(facts: RunFacts, rows: list[dict[str, Any]], across: Dimension, up: Dimension) -> tuple[Any, dict[str, Any]]:
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
    texts = base.mark_text(color="var(--on-ramp)", fontWeight=600).encode(alt.Text("s:Q", format=".4~g"))
    return alt.layer(boxes, texts), {"cells": list(cells.values())}


def _surface(facts: RunFacts, rows: list[dict[str, Any]], across: Dimension, up: Dimension) -> tuple[Any, dict[str, Any]]:
    n_side = 24
    centres = [(i + 0.5) / n_side for i in range(n_side)]
    surface = [
        {"x": round(x - 0.5 / n_side, 4), "X": round(x + 0.5 / n_side, 4), "y": round(y - 0.5 / n_side, 4),
         "Y": round(y + 0.5 / n_side, 4), "s": float(f"{_between(x, y, rows):.4g}")}
        for x in centres
        for y in centres
    ]  # fmt: skip
    x_axis = _value_axis(across)
    y_axis = _value_axis(up)
    domain = alt.Scale(domain=[0, 1], nice=False)
    x, y = alt.X("x:Q", title=across.name, axis=x_axis, scale=domain), alt.Y("y:Q", title=up.name, axis=y_axis, scale=domain)
    field = alt.Chart(data("surface")).mark_rect().encode(x, y, score_colour("s", facts), alt.X2("X:Q"), alt.Y2("Y:Q"))
    dots = alt.Chart(data("models")).mark_point(filled=True, size=30, color="var(--ink)", stroke="var(--paper)", strokeWidth=1)
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
    """Write a text for a Vega expression."""
    import json

    return json.dumps(text)


def _between(x: float, y: float, rows: Sequence[dict[str, Any]]) -> float:
    """Return the figure at a place: the mean of the models, weighted by the inverse of their distance cubed (Shepard)."""
    total = weights = 0.0
    for row in rows:
        weight = 1 / (((row["x"] - x) ** 2 + (row["y"] - y) ** 2) ** 1.5 + 1e-5)
        total, weights = total + weight * row["s"], weights + weight
    return total / weights


def _cells(model: ModelFacts, names: Sequence[str]) -> list[str]:
    return [value_text(model.hyper_parameters[n]) if n in model.hyper_parameters else "" for n in names]


def _sorting(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)


def _of_how_many(facts: RunFacts, models: Sequence[ModelFacts]) -> str:
    n = facts.counts.models
    return "" if len(models) * 1.1 >= n else f" The lines are an even choice of {len(models):,} from {n:,} models."


__all__ = ["QUIET", "is_logarithmic", "parameters"]
