"""Figures of a run's history: where weights came from, and what a search found."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.models import Lineage
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import duration, number
from madlib_mop.reports.figures.drawing import COLOURS, QUIET, data, spec
from madlib_mop.reports.figures.figure import Figure, table

_MAX_MODELS = 60


def history(facts: RunFacts) -> Iterator[Figure]:
    """Yield the lineage of models that began as copies, and the results of a search."""
    if any(one.from_key is not None for one in facts.lineage):
        yield _lineage(facts)
    if any(event.event == "result" and event.loss is not None for event in facts.search):
        yield _search(facts)


def _lineage(facts: RunFacts) -> Figure:
    all_copies = [one for one in facts.lineage if one.from_key is not None]
    keys = _first_models(all_copies)
    copies = [one for one in all_copies if {one.mst_key, one.from_key} <= set(keys)]
    n_copies = f"{len(copies)} {'copy' if len(copies) == 1 else 'copies'}"
    if len(copies) < len(all_copies):
        n_copies = f"{len(copies)} of {len(all_copies)} copies"
    known = {m.mst_key: m for m in facts.models}
    begins = {one.mst_key: float(one.epoch or 0) for one in copies if one.kind == "clone"}
    lives = [
        {"m": key, "a": begins.get(key, float(known[key].first_epoch - 1)), "b": float(known[key].epoch)}
        for key in keys
        if key in known
    ]
    rows: list[dict[str, Any]] = [
        {"m": one.mst_key, "f": one.from_key, "e": float(one.epoch or 0), "k": one.kind, "t": duration(one.at_s)}
        for one in copies
    ]
    kinds = list(dict.fromkeys(row["k"] for row in rows))
    x = alt.X("e:Q", title="iteration", axis=alt.Axis(tickMinStep=1, format="d"))
    rows_of_models = alt.Scale(domain=keys)
    y = alt.Y("m:O", title="model", scale=rows_of_models)
    scale = alt.Scale(domain=kinds, range=list(COLOURS[: len(kinds)]))
    colour = alt.Color("k:N", title=None, scale=scale, legend=alt.Legend(orient="top"))
    hints = [
        alt.Tooltip("m:O", title="model"), alt.Tooltip("f:O", title="copied from"),
        alt.Tooltip("e:Q", title="iteration"), alt.Tooltip("k:N", title="kind"),
        alt.Tooltip("t:N", title="time since the start"),
    ]  # fmt: skip
    life = alt.Chart(data("lives")).mark_rule(color=QUIET, strokeWidth=2).encode(
        alt.X("a:Q", title="iteration"), alt.X2("b:Q"), y
    )  # fmt: skip
    edges = alt.Chart(data("copies"))
    source = alt.Y("f:O", title="model", scale=rows_of_models)
    lines = edges.mark_rule(strokeWidth=2).encode(x, source, alt.Y2("m:O"), colour, tooltip=hints)
    heads = edges.mark_point(filled=True, size=60, opacity=1).encode(x, y, colour, tooltip=hints)
    body, n_rows = table([(r["m"], r["k"], r["f"], number(r["e"]), r["t"]) for r in rows])
    first = rows[0]
    return Figure(
        key="lineage",
        title="Which model's weights became which",
        description="A horizontal line is a model over its iterations. A vertical line is a copy of a model's state;"
        " the dot is at the model that received it.",
        summary=f"{n_copies}, the first one from model {first['f']}"
        f" to model {first['m']}.",
        spec=spec(
            alt.layer(life, lines, heads), len(keys) * max(14, min(28, 600 // len(keys))), lives=lives, copies=rows
        ),
        headings=("model", "kind", "copied from", "iteration", "time since the start"),
        rows=body,
        n_rows=n_rows,
    )  # fmt: skip


def _first_models(copies: Sequence[Lineage]) -> list[int]:
    """Return the keys of the first copies' models, both ends of each copy, at most `_MAX_MODELS` keys."""
    keys: set[int] = set()
    for one in copies:
        ends = {key for key in (one.mst_key, one.from_key) if key is not None}
        if len(keys | ends) <= _MAX_MODELS:
            keys |= ends
    return sorted(keys)


def _search(facts: RunFacts) -> Figure:
    seen: set[int] = set()
    rows: list[dict[str, Any]] = []
    best = None
    for event in facts.search:
        if event.event != "result" or event.loss is None or event.ordinal in seen:
            continue
        seen.add(event.ordinal)
        best = event.loss if best is None else min(best, event.loss)
        rows.append(
            {"x": round(event.at_s, 3), "v": float(f"{event.loss:.6g}"), "b": float(f"{best:.6g}"), "m": event.mst_key,
             "e": event.epoch}
        )  # fmt: skip
    x = alt.X("x:Q", title="seconds since the start of the run")
    y_title = "loss"
    base = alt.Chart(data("results"))
    dots = base.mark_point(filled=True, size=36, opacity=0.65, color=COLOURS[0]).encode(
        x, alt.Y("v:Q", title=y_title, scale=alt.Scale(zero=False)),
        tooltip=[
            alt.Tooltip("m:O", title="model"), alt.Tooltip("e:O", title="iteration"),
            alt.Tooltip("v:Q", title="loss", format=".5~g"), alt.Tooltip("x:Q", title="second", format=",.1f"),
        ],
    )  # fmt: skip
    line = base.mark_line(interpolate="step-after", color=COLOURS[1], strokeWidth=2).encode(x, alt.Y("b:Q"))
    body, n_rows = table([(number(r["x"]), r["m"], r["e"], number(r["v"]), number(r["b"])) for r in rows])
    return Figure(
        key="search",
        title="What the search found",
        description="Each dot is a result that the search received; the line is the lowest loss so far.",
        summary=f"{max(len(rows), facts.counts.search_results):,} results; the lowest loss is {number(best)}.",
        spec=spec(alt.layer(line, dots), 240, results=rows),
        headings=("second", "model", "iteration", "loss", "lowest so far"),
        rows=body,
        n_rows=n_rows,
    )
