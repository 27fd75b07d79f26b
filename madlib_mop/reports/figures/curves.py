"""Learning curves: loss and first metric by iteration, by seconds and by rows; training beside validation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.curves import Band, MetricPoint
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import number
from madlib_mop.reports.figures.drawing import BAND, COLOURS, N_COLOURED, QUIET, data, label, spec
from madlib_mop.reports.figures.figure import Figure, table

_FEW_POINTS = 120
#: If the greatest value is so many times the smallest one, the scale is logarithmic.
_LOG_RATIO = 30.0


@dataclass(frozen=True, slots=True)
class Axis:
    """One way to count progress: its key, a word for it, its title, and its value for a point of a run's curves."""

    key: str
    words: str
    title: str
    value: Callable[[MetricPoint, RunFacts], float]


AXES = (
    Axis("iteration", "iteration", "iteration", lambda point, facts: point.iteration(facts.n_segments)),
    Axis("seconds", "seconds", "seconds since the start of the run", lambda point, _: point.elapsed_s),
    Axis("rows", "rows seen", "rows that the model was trained on", lambda point, _: point.rows),
)


def curves(facts: RunFacts) -> Iterator[Figure]:
    """Yield one figure for each figure (the first metric, the loss) and each axis."""
    names = [name for name in (facts.metric_name, "loss") if name is not None]
    for name in dict.fromkeys(names):
        points = [p for p in facts.curves if p.name == name]
        if points:
            for axis in AXES:
                yield _figure(facts, name, points, axis)


def _figure(facts: RunFacts, name: str, points: Sequence[MetricPoint], axis: Axis) -> Figure:
    with_curves = {p.mst_key for p in points}
    listed = [m for m in facts.models if m.mst_key in with_curves]
    labels = {m.mst_key: label(m) for m in listed[:N_COLOURED]}
    rows = [_row(p, axis.value(p, facts), labels) for p in points]
    bands = [b for b in facts.bands if b.name == name or (name == "loss" and b.name.endswith("loss"))]
    shows_bands = axis.key == "iteration" and bool(bands)
    kinds = list(dict.fromkeys(row["d"] for row in rows))
    rows_of_table, n_rows = table(_table(facts, points, list(labels)))
    return Figure(
        key=f"curve-{'loss' if name == 'loss' else 'metric'}-{axis.key}",
        title=f"{name[:1].upper()}{name[1:]} by {axis.words}",
        description=_description(facts, len(with_curves), len(labels), kinds, shows_bands),
        summary=_summary(facts, name, points),
        spec=_spec(rows, bands if shows_bands else [], axis, name, list(labels.values()), kinds),
        headings=("model", "data", "iteration", "seconds", "rows", name),
        rows=rows_of_table,
        n_rows=n_rows,
    )


def _row(point: MetricPoint, x: float, labels: dict[int, str]) -> dict[str, Any]:
    kind = f"{point.data_set} sample" if point.is_sample else point.data_set
    row = {"m": point.mst_key, "x": round(x, 4), "v": float(f"{point.value:.6g}"), "d": kind}
    return row | ({"l": labels[point.mst_key]} if point.mst_key in labels else {})


def _spec(
    rows: list[dict[str, Any]], bands: Sequence[Band], axis: Axis, name: str, labels: list[str], kinds: list[str]
) -> str:
    x = alt.X("x:Q", title=axis.title, axis=alt.Axis(format="~s" if axis.key == "rows" else ",~f", tickMinStep=1))
    low, high = min(row["v"] for row in rows), max(row["v"] for row in rows)
    is_log = low > 0 and high / low >= _LOG_RATIO
    scale = alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=False)
    y = alt.Y("v:Q", title=f"{name} (logarithmic)" if is_log else name, scale=scale, axis=alt.Axis(format="~r"))
    dashes = {"validation": [1, 0], "training": [5, 4], "validation sample": [1, 3], "training sample": [1, 3]}
    dash = alt.StrokeDash(
        "d:N",
        scale=alt.Scale(domain=kinds, range=[dashes.get(k, [1, 0]) for k in kinds]),
        legend=alt.Legend(title="data", orient="top", symbolStrokeColor=QUIET),
    )
    hints = [
        alt.Tooltip("m:N", title="model"), alt.Tooltip("d:N", title="data"),
        alt.Tooltip("x:Q", title=axis.title, format=",~g"), alt.Tooltip("v:Q", title=name, format=".5~g"),
    ]  # fmt: skip
    layers: list[Any] = []
    if bands:
        of_bands = alt.Chart(data("bands")).transform_filter("datum.d == 'validation' || datum.only")
        layers.append(of_bands.mark_area(color=BAND).encode(alt.X("x:Q"), alt.Y("low:Q"), alt.Y2("high:Q")))
        layers.append(of_bands.mark_line(color=QUIET, strokeWidth=2).encode(alt.X("x:Q"), alt.Y("mid:Q")))
    chart = alt.Chart(data("points"))
    base = chart.encode(x, y, dash, detail=["m:N"], tooltip=hints)
    others = base.transform_filter("!isValid(datum.l)").mark_line(strokeWidth=1, color=QUIET, opacity=0.45)
    colour = alt.Color(
        "l:N",
        title="model",
        scale=alt.Scale(domain=labels, range=list(COLOURS[: len(labels)])),
        legend=alt.Legend(title="model", orient="top"),
    )
    dots: Any = alt.OverlayMarkDef(size=18) if len(rows) <= _FEW_POINTS else False
    named = base.transform_filter("isValid(datum.l)").mark_line(strokeWidth=2, point=dots).encode(colour)
    only = not any(b.data_set == "validation" for b in bands)
    of_all = [
        {"d": b.data_set, "x": b.iteration, "low": b.low, "mid": b.median, "high": b.high, "only": only} for b in bands
    ]
    sets = {"points": rows, **({"bands": of_all} if bands else {})}
    return spec(alt.layer(*layers, others, named), 280, **sets)


def _description(facts: RunFacts, n_curves: int, n_named: int, kinds: Sequence[str], shows_bands: bool) -> str:
    which = f"The {n_named} best models have a colour; thin lines are the other ones." if n_curves > n_named else ""
    if facts.bands:
        which += f" Curves are those of the {n_curves} best of {facts.status.n_models:,} models."
    both = {"training", "validation"} <= set(kinds)
    gap = " A training curve that goes on improving while the validation curve does not is a sign of overfitting."
    lines = " Validation is drawn as a solid line, training as a dashed one." + gap if both else ""
    band = " The band has 80 % of all models, and the line in it is their median." if shows_bands else ""
    return f"{which}{lines}{band}".strip()


def _summary(facts: RunFacts, name: str, points: Sequence[MetricPoint]) -> str:
    """Say where the best model ended, and when it was at its best."""
    keys = {p.mst_key for p in points}
    leader = next((m.mst_key for m in facts.models if m.mst_key in keys), None)
    own = [p for p in points if p.mst_key == leader and not p.is_sample] or [p for p in points if p.mst_key == leader]
    parts = []
    for data_set in ("validation", "training"):
        of = sorted((p for p in own if p.data_set == data_set), key=lambda p: p.visits)
        if of:
            parts.append(f"{number(of[-1].value)} on {data_set} data")
    higher = facts.higher_is_better and name != "loss"
    judged = [p for p in own if p.data_set == "validation"] or own
    top = (max if higher else min)(judged, key=lambda p: p.value)
    return (
        f"The best model, {leader}, ended with {name} {' and '.join(parts)}. Its best value was {number(top.value)},"
        f" at iteration {number(top.iteration(facts.n_segments))}."
    )


def _table(facts: RunFacts, points: Sequence[MetricPoint], keys: Sequence[int]) -> list[tuple[Any, ...]]:
    order = {key: i for i, key in enumerate(keys)}
    own = sorted((p for p in points if p.mst_key in order), key=lambda p: (order[p.mst_key], p.data_set, p.visits))
    return [
        (
            p.mst_key, f"{p.data_set} sample" if p.is_sample else p.data_set, number(p.iteration(facts.n_segments), 3),
            number(p.elapsed_s, 3), round(p.rows), number(p.value, 5),
        )
        for p in own
    ]  # fmt: skip
