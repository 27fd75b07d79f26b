"""The figures of a workload, drawn as those of the library's reports: ratios, curves, visits, breakdown, bytes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import altair as alt
from breakdown import EVALUATING, TRAINING

from madlib_mop.catalog.facts.schedule import SegmentLoad
from madlib_mop.reports.figures import Figure
from madlib_mop.reports.figures.drawing import COLOURS, INK, QUIET, data, labelled_bars, spec
from madlib_mop.reports.figures.figure import table
from madlib_mop.reports.figures.gantt import LOAD_HEADINGS, gantt, load_rows
from report import figures, formats
from report.measurement import Measurement
from report.names import HOPPER, PLAIN, look
from report.summary import Row, Runs

_BEGIN_VISITS = 8
_ABOUT = 1.3  # ways are drawn to their end if they take at most this many times as long as the hopper or plain Keras
_BESIDE_DOTS = 54  # pixels for the number beside the first and the last dot


def ratios(workload: str, rows: Sequence[Row]) -> Figure:
    """Return the ratio of each way's makespan to the hopper's, with the published ratios."""
    rows = [row for row in rows if row.ratio is not None]
    hopper = next(row for row in rows if row.way == HOPPER)
    places = [_ratio(row, hopper.makespan_s) for row in rows]
    base = alt.Chart(data("dots")).encode(_names(rows), tooltip=[
        alt.Tooltip("p:N", title="way"), alt.Tooltip("t:N", title="measured"), alt.Tooltip("T:N", title="published"),
    ])  # fmt: skip
    layers = [alt.Chart(data("one")).mark_rule(color=QUIET).encode(x="v:Q")]
    if any("u" in place for place in places):
        both = base.transform_filter("isValid(datum.u)")
        layers += [
            both.mark_rule(color="var(--rule)", strokeWidth=3).encode(alt.X("v:Q"), alt.X2("u:Q")),
            both.mark_point(shape="diamond", size=50, color=QUIET, fill="var(--paper)", opacity=1).encode(x="u:Q"),
            _beside(both, "!datum.l", color="var(--soft)").encode(x="u:Q", text="T:N"),
        ]
    layers.append(base.mark_rule(strokeWidth=2).encode(alt.X("a:Q"), alt.X2("b:Q"), _colour(rows)))
    layers += _dots(base, rows, "makespan ÷ the hopper’s (logarithmic)", alt.Axis(format="~f"))
    return Figure(
        key=f"{workload}-ratios",
        title=f"{workload}: makespan ÷ the hopper’s",
        description="Right of the line, the hopper is faster. Dots: measured here, with a bar from the least to the"
        " most. Hollow diamonds: as published, on other hardware and with other networks.",
        summary=f"The hopper took {formats.seconds(hopper.makespan_s)} s and sent"
        f" {formats.size(hopper.socket_bytes)} over sockets; its mean test error is"
        f" {formats.points(hopper.points_above_plain)} points above that of plain Keras.",
        spec=spec(alt.layer(*layers), 28 * len(rows), dots=places, one=[{"v": 1}]),
        headings=("way", "median makespan ÷ the hopper’s", "published"),
        rows=tuple((look(row.way).name, formats.times(row.ratio), formats.times(row.published_ratio)) for row in rows),
        n_rows=len(rows),
    )


def _ratio(row: Row, hopper_s: float) -> dict[str, Any]:
    place = {"p": look(row.way).name, "v": row.ratio, "t": formats.times(row.ratio)}
    place |= {"a": row.makespan_low_s / hopper_s, "b": row.makespan_high_s / hopper_s}
    if row.published_ratio is None or row.way == HOPPER:
        return place
    told = formats.times(row.published_ratio)
    return place | {"u": row.published_ratio, "T": told, "l": row.published_ratio > row.ratio}


def curves(workload: str, runs: Runs) -> Iterator[Figure]:
    """Yield the learning curves of all ways: best and mean test error, by seconds and by epochs."""
    for which, title in (("best", "Best test error"), ("mean", "Mean test error of all configurations")):
        for over in ("time", "epochs"):
            yield _curves(f"{workload}-{which}-{over}", f"{title}, over {over}", runs, over, which)


def _curves(key: str, title: str, runs: Runs, over: str, which: str) -> Figure:
    lines = {}
    for way, own in runs.items():
        found = figures.errors_by_time(figures.typical(own)) if over == "time" else figures.errors_by_epoch(own)
        known = [(point.at, value) for point in found if (value := getattr(point, which)) is not None]
        if known:
            lines[way] = known
    ends = {way: points[-1][1] for way, points in lines.items()}
    last = [points[-1][0] for points in lines.values()]
    is_log = over == "time" and max(last, default=1) > 5 * min(last, default=1)
    x = alt.X(
        "x:Q",
        title="epochs" if over == "epochs" else f"seconds since the start of the work{' (logarithmic)' * is_log}",
        scale=alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=over == "time"),
        axis=alt.Axis(format=",~f", tickMinStep=1 if over == "epochs" else alt.Undefined),
    )
    y = alt.Y("y:Q", title="test error", scale=alt.Scale(zero=False), axis=alt.Axis(format="~%"))
    names = [look(way).name for way in lines]
    legend = alt.Legend(title=None, orient="top", symbolStrokeWidth=2 if over == "time" else 0, symbolSize=60)
    base = alt.Chart(data("points")).encode(
        x, y, alt.Color("p:N", legend=legend, scale=alt.Scale(domain=names, range=_colours(lines))),
        tooltip=[
            alt.Tooltip("p:N", title="way"), alt.Tooltip("x:Q", title="seconds" if over == "time" else "epoch"),
            alt.Tooltip("y:Q", title="test error", format=".1%"),
        ],
    )  # fmt: skip
    dashes = alt.Scale(domain=names, range=[list(look(way).dashes) or [1, 0] for way in lines])
    wide = alt.when(f"datum.p === '{look(HOPPER).name}'").then(alt.value(2.8)).otherwise(alt.value(1.5))
    drawn = [
        base.mark_line(interpolate="step-after" if over == "time" else "linear").encode(
            alt.StrokeDash("p:N", legend=legend, scale=dashes), strokeWidth=wide
        )
    ]
    if over == "epochs":
        markers = alt.Scale(domain=names, range=[look(way).marker for way in lines])
        drawn.append(
            base.mark_point(filled=True, size=50, opacity=1).encode(alt.Shape("p:N", legend=legend, scale=markers))
        )
    # the hopper's line comes last, on top
    drawn_rows = [
        {"p": look(way).name, "x": round(at, 3), "y": round(error, 5)}
        for way, points in reversed(lines.items())
        for at, error in points
    ]
    body, n_rows = table(
        [
            (look(way).name, formats.number(at), formats.percent(error))
            for way, points in lines.items()
            for at, error in points
        ]
    )
    return Figure(
        key=key,
        title=title,
        description="",
        summary=f"At the end: {_extremes(ends, formats.percent, 'not known')}",
        spec=spec(alt.layer(*drawn), 260, points=drawn_rows),
        headings=("way", "seconds" if over == "time" else "epoch", "test error"),
        rows=body,
        n_rows=n_rows,
    )


def _extremes(values: dict[str, float], show: Callable[[float], str], otherwise: str) -> str:
    """Return the least and the greatest of the ways' values in words."""
    if not values:
        return f"{otherwise}."
    ways = min(values, key=values.get), max(values, key=values.get)
    least, most = (f"{show(values[way])} ({look(way).name})" for way in ways)
    return f"{least}." if len(values) == 1 else f"{least} to {most}."


def visits(workload: str, runs: Runs) -> Iterator[Figure]:
    """Yield the typical run of each way; all have the same time scale, which fits the hopper and plain Keras."""
    typical = {way: figures.typical(own) for way, own in runs.items()}
    pair = [typical[way] for way in (HOPPER, PLAIN) if way in typical] or list(typical.values())
    longest_s = max(run.makespan_s for run in pair)
    until_s = 1.02 * max(run.makespan_s for run in typical.values() if run.makespan_s <= _ABOUT * longest_s)
    for way, run in typical.items():
        yield _visits(f"{workload}-visits-{way}", look(way).name, run, 0, until_s)
        if way == HOPPER:
            first_s, last_s = _first_visits(run)
            title = f"{look(HOPPER).name}, the first {formats.seconds(last_s - first_s)} s after its start-up"
            yield _visits(f"{workload}-visits-begin", title, run, first_s, last_s)


def _first_visits(run: Measurement) -> tuple[float, float]:
    """Return start and end of the workers' first visits: few enough that the configurations' numbers are readable."""
    ends = sorted(span.end for span in run.outcome.spans if span.kind == "train")
    last_s = ends[min(len(ends), _BEGIN_VISITS * run.n_workers) - 1] - run.begun_at if ends else run.makespan_s
    return figures.startup_s(run), last_s


def _visits(key: str, title: str, run: Measurement, from_s: float, until_s: float) -> Figure:
    bars = []
    for span in run.outcome.spans:
        begin, end = max(from_s, span.begin - run.begun_at), min(until_s, span.end - run.begun_at)
        if begin < end:
            kind = "training" if span.kind == "train" else "evaluation"
            bars.append(
                {"g": span.worker + 1, "a": round(begin, 3), "b": round(end, 3), "m": span.mst_key, "k": kind}
            )
    workers = range(1, run.n_workers + 1)
    lanes = [{"g": worker, "a": from_s, "b": min(run.makespan_s, until_s)} for worker in workers]
    keys = sorted({bar["m"] for bar in bars})
    colours = [COLOURS[(key - 1) % len(COLOURS)] for key in keys]
    colour = alt.Color("m:O", legend=None, scale=alt.Scale(domain=keys, range=colours))
    seconds = alt.X(
        "a:Q",
        title="seconds since the start of the work",
        scale=alt.Scale(domain=[from_s, until_s], nice=False, zero=False),
    )
    kinds = alt.YOffset("k:N", bandPosition=0.5, scale=alt.Scale(domain=["training", "evaluation"]))
    body, n_rows = load_rows([_load(run, worker) for worker in range(run.n_workers)])
    return Figure(
        key=key,
        title=title,
        description="",
        summary=_of_visits(run, from_s, until_s),
        spec=gantt(bars, lanes, "worker", seconds, colour, yOffset=kinds),
        headings=("worker", *LOAD_HEADINGS),
        rows=body,
        n_rows=n_rows,
    )


def _load(run: Measurement, worker: int) -> SegmentLoad:
    """Return what a worker did from the end of the start-up to the end of the work."""
    own = {
        kind: [span.end - span.begin for span in run.outcome.spans if (span.worker, span.kind) == (worker, kind)]
        for kind in ("train", "evaluate")
    }
    idle_s = max(0.0, run.makespan_s - figures.startup_s(run) - sum(map(sum, own.values())))
    counts = len(own["train"]), len(own["evaluate"])
    return SegmentLoad(worker + 1, *counts, sum(own["train"]), sum(own["evaluate"]), idle_s)


def _of_visits(run: Measurement, from_s: float, until_s: float) -> str:
    trained = [span for span in run.outcome.spans if span.kind == "train"]
    end = "" if run.makespan_s <= until_s else f" It continues beyond the {formats.seconds(until_s)} s that are drawn."
    return (
        f"{formats.count(len(trained), 'span')} of training of"
        f" {formats.count(len({span.mst_key for span in trained}), 'configuration')} on"
        f" {formats.count(run.n_workers, 'worker')} in {formats.seconds(run.makespan_s)} s, of which"
        f" {formats.seconds(figures.startup_s(run))} s start-up; idle afterwards"
        f" {formats.percent(figures.idle_share(run))} of the workers’ time.{end}"
    )


def breakdown(workload: str, runs: Runs) -> Iterator[Figure]:
    """Yield where the workers' time goes in the hopper, from the start of the first visit to the end, if known."""
    stages = figures.stage_seconds(runs.get(HOPPER, []))
    if not stages:
        return
    total = sum(stages.values())
    later = figures.outside_share(figures.stage_seconds(runs[HOPPER], "steady_stages"))
    rows = [
        {"p": name, "s": seconds / total, "t": f"{formats.percent(seconds / total)}, {formats.seconds(seconds)} s",
         "k": "computing" if name in (TRAINING, EVALUATING) else "other"}
        for name, seconds in stages.items()
    ]  # fmt: skip
    colour = alt.Color(
        "k:N", legend=None, scale=alt.Scale(domain=["computing", "other"], range=[f"var(--way-{HOPPER})", QUIET])
    )
    longest = max(row["s"] for row in rows)
    share = alt.X(
        "s:Q", title="share of time", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1.5 * longest], nice=False)
    )
    n_visits = figures.known_median(runs[HOPPER], lambda run: sum(span.kind == "train" for span in run.outcome.spans))
    yield Figure(
        key=f"{workload}-breakdown",
        title=f"Share of the workers’ time in {formats.count(round(n_visits or 0), 'visit')} and the evaluations",
        description="The workers’ time from the first visit’s begin to the end, idle time included, each stage the"
        " median of the runs.",
        summary=f"In {formats.percent(figures.outside_share(stages))} of this time no model is computed, to train or to"
        " evaluate it" + (f"; after the first epoch, in {formats.percent(later)}." if later is not None else "."),
        spec=labelled_bars(rows, share, colour, [alt.Tooltip("p:N", title="stage"), alt.Tooltip("t:N", title="time")]),
        headings=("stage", "share", "seconds"),
        rows=tuple((name, formats.percent(s / total), formats.seconds(s)) for name, s in stages.items()),
        n_rows=len(stages),
    )


def sizes(workload: str, rows: Sequence[Row]) -> Iterator[Figure]:
    """Yield the bytes over sockets and those of the stored training rows."""
    yield _sizes(f"{workload}-sockets", rows, "socket_bytes", "Bytes over sockets", "not counted")
    yield _sizes(f"{workload}-storage", rows, "data_bytes", "Training rows stored, all copies", "not known")


def _sizes(key: str, rows: Sequence[Row], field: str, title: str, missing: str) -> Figure:
    rows = [row for row in rows if not row.error]
    known = [(row, getattr(row, field)) for row in rows]
    places = [
        {"p": look(row.way).name, "v": value, "t": missing if value is None else formats.size(value)}
        for row, value in known
    ]
    base = alt.Chart(data("dots")).encode(
        _names(rows), tooltip=[alt.Tooltip("p:N", title="way"), alt.Tooltip("t:N", title=title.lower())]
    )
    axis = alt.Axis(labelExpr="replace(format(datum.value, '~s'), regexp('([kMGT]?)$'), ' $1B')")
    layers = [_beside(base.transform_filter("!(datum.v > 0)"), color="var(--soft)").encode(x=alt.value(0), text="t:N")]
    if any(place["v"] for place in places):
        layers += _dots(base.transform_filter("datum.v > 0"), rows, "bytes (logarithmic)", axis)
    return Figure(
        key=key,
        title=title,
        description="",
        summary=_extremes({row.way: value for row, value in known if value is not None}, formats.size, missing),
        spec=spec(alt.layer(*layers), 24 * len(rows), dots=places),
        headings=("way", "bytes"),
        rows=tuple((place["p"], place["t"]) for place in places),
        n_rows=len(places),
    )


def _dots(base: alt.Chart, rows: Sequence[Row], title: str, axis: alt.Axis) -> list[alt.Chart]:
    """Return a dot for each way at ``v``, on a logarithmic scale, and the text ``t`` beside it."""
    x = alt.X("v:Q", title=title, axis=axis, scale=alt.Scale(type="log", nice=False, padding=_BESIDE_DOTS))
    dots = base.mark_point(filled=True, size=70, opacity=1).encode(x, _colour(rows))
    return [dots, _beside(base, "datum.l", color=INK, fontWeight=600).encode(x, text="t:N")]


def _beside(base: alt.Chart, left: str = "false", **mark: Any) -> alt.Chart:
    """Return texts beside dots: at the left if the expression is true, otherwise at the right."""
    return base.mark_text(
        align=alt.ExprRef(f"{left} ? 'right' : 'left'"), dx=alt.ExprRef(f"{left} ? -9 : 9"), **mark
    )


def _names(rows: Sequence[Row]) -> alt.Y:
    return alt.Y("p:N", sort=[look(row.way).name for row in rows], title=None)


def _colour(rows: Sequence[Row]) -> alt.Color:
    ways = [row.way for row in rows]
    domain = [look(way).name for way in ways]
    return alt.Color("p:N", legend=None, scale=alt.Scale(domain=domain, range=_colours(ways)))


def _colours(ways) -> list[str]:
    return [f"var(--way-{way})" for way in ways]
