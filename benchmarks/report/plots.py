"""The plots of a workload, except charts of visits (`gantt`): ratios, learning curves, bytes, a visit's breakdown."""

import re
from collections.abc import Sequence

from breakdown import EVALUATING, TRAINING
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from report import figures, formats
from report.names import HOPPER, look
from report.summary import Row, Runs
from report.svg import FONT, Palette, Plot, canvas, plot

_LINE_HEIGHT = 13.0
_NAMES = 108  # left margin for the ways' names, in pixels


def ratios(palette: Palette, identity: str, rows: Sequence[Row]) -> Plot:
    """Draw the ratio of each way's makespan to the hopper's, with the published ratios."""
    rows = [row for row in rows if row.ratio is not None]
    figure, axes = canvas(palette, 34 + 30 * len(rows), left=_NAMES, right=48, top=4, bottom=36)
    values = [value for row in rows for value in (row.ratio, row.published_ratio) if value]
    _log_x(axes, min(0.7, min(values) / 1.7), max(values) * 1.2, formats.number)
    axes.axvline(1, color=palette["muted"], linewidth=1)
    hopper_s = next((row.makespan_s for row in rows if row.way == HOPPER), 1.0)
    for place, row in enumerate(rows):
        colour = palette.way(row.way)
        left_of = row.published_ratio is not None and row.published_ratio > row.ratio
        if row.published_ratio is not None and row.way != HOPPER:
            axes.plot([row.ratio, row.published_ratio], [place, place], color=palette["grid"], linewidth=3, zorder=1)
            axes.plot(row.published_ratio, place, "D", markersize=6, mfc=palette["paper"], mec=palette["muted"])
            _beside(axes, row.published_ratio, place, formats.times(row.published_ratio), palette["muted"], not left_of)
        spread = [row.makespan_low_s / hopper_s, row.makespan_high_s / hopper_s]
        axes.plot(spread, [place, place], color=colour, linewidth=2)
        axes.plot(row.ratio, place, "o", markersize=8, color=colour)
        if row.way != HOPPER:
            _beside(axes, row.ratio, place, formats.times(row.ratio), palette["ink"], left_of, weight="bold")
    _names(palette, axes, [row.way for row in rows])
    axes.set_xlabel("ratio (logarithmic)")
    words = "; ".join(
        f"{look(row.way).name} {formats.times(row.ratio)}"
        + (f", published {formats.times(row.published_ratio)}" if row.published_ratio else "")
        for row in rows
    )
    title = "Makespan ÷ the hopper’s"
    return plot(palette, figure, identity, title, f"Median makespans, in those of the hopper. {words}.")


def curves(palette: Palette, identity: str, runs: Runs, over: str, which: str) -> Plot:
    """Draw learning curves of all ways.

    Parameters
    ----------
    over : str
        "time" or "epochs".
    which : str
        "best" or "mean".
    """
    figure, axes = canvas(palette, 260, right=112)
    lines = {}
    for way, own in runs.items():
        found = figures.errors_by_time(figures.typical(own)) if over == "time" else figures.errors_by_epoch(own)
        known = [(point.at, value) for point in found if (value := getattr(point, which)) is not None]
        if known:
            lines[way] = known
    for way in reversed(lines):  # the hopper's line last, on top
        xs, ys = zip(*lines[way], strict=True)
        style, wide = look(way), way == HOPPER
        axes.plot(
            xs,
            [100 * y for y in ys],
            color=palette.way(way),
            linewidth=2.6 if wide else 1.5,
            linestyle=(0, style.dashes) if style.dashes else "solid",
            drawstyle="steps-post" if over == "time" else "default",
            marker=style.marker if over == "epochs" else "",
            markersize=6 if wide else 4.5,
            zorder=3 if wide else 2,
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    if over == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.set_xlabel("epochs")
    else:
        ends = [points[-1][0] for points in lines.values()]
        if max(ends, default=1) > 5 * min(ends, default=1):
            _log_x(axes, min(points[0][0] for points in lines.values()) * 0.9, max(ends) * 1.05, formats.number)
        else:
            axes.set_xlim(left=0)
        scale = " (logarithmic)" if axes.get_xscale() == "log" else ""
        axes.set_xlabel(f"seconds since the start of the work{scale}")
    _label_ends(palette, axes, lines)
    words = "; ".join(
        f"{look(way).name} {formats.percent(points[0][1])} at {formats.number(points[0][0])},"
        f" {formats.percent(points[-1][1])} at {formats.number(points[-1][0])}"
        for way, points in lines.items()
    )
    unit = "seconds" if over == "time" else "epochs"
    what = {"best": "Best test error", "mean": "Mean test error of all configurations"}[which]
    return plot(
        palette, figure, identity, f"{what}, over {over}", f"{what} over {unit}, first and last point. {words}."
    )


def sizes(palette: Palette, identity: str, rows: Sequence[Row], field: str, title: str, missing: str) -> Plot:
    """Draw bytes, on a logarithmic scale."""
    values = {row.way: getattr(row, field) for row in rows if not row.error}
    known = [value for value in values.values() if value]
    figure, axes = canvas(palette, 38 + 24 * len(values), left=_NAMES, right=58, top=4, bottom=34)
    low = 10 ** (len(str(int(min(known, default=1000)))) - 1) / 10
    _log_x(axes, low, max(known, default=10000) * 1.2, formats.size, decades=True)
    for place, (way, value) in enumerate(values.items()):
        words = missing if value is None else formats.size(value)
        if value:
            axes.plot([low, value], [place, place], color=palette.way(way), linewidth=5, solid_capstyle="butt")
            axes.plot(value, place, "o", markersize=8, color=palette.way(way), clip_on=False)
        _beside(axes, value or low, place, words, palette["ink"] if value else palette["muted"], False)
    _names(palette, axes, list(values))
    axes.set_xlabel("bytes (logarithmic)")
    words = "; ".join(
        f"{look(way).name} {missing if value is None else formats.size(value)}" for way, value in values.items()
    )
    return plot(palette, figure, identity, title, f"{title}. {words}.")


def breakdown(palette: Palette, identity: str, stages: dict[str, float], n_visits: float) -> Plot:
    """Draw the breakdown of the workers' time in the hopper, from the start of the first visit to the end."""
    total = sum(stages.values())
    figure, axes = canvas(palette, 42 + 24 * len(stages), left=144, right=92, top=4, bottom=34)
    axes.set_xlim(0, 100 * max(stages.values()) / total)
    axes.set_ylim(len(stages) - 0.4, -0.6)
    axes.yaxis.grid(False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for place, (name, seconds) in enumerate(stages.items()):
        share = 100 * seconds / total
        colour = palette.way(HOPPER) if name in (TRAINING, EVALUATING) else palette["muted"]
        axes.barh(place, share, height=0.62, color=colour, linewidth=0)
        words = f"{share:.1f} %, {formats.seconds(seconds)} s"
        axes.annotate(words, (share, place), (6, 0), textcoords="offset points", va="center", color=palette["ink"])
    axes.set_yticks(range(len(stages)), stages, color=palette["ink"])
    axes.set_xlabel("share of time, %")
    words = "; ".join(f"{name} {formats.percent(seconds / total)}" for name, seconds in stages.items())
    title = f"Share of the workers’ time in {formats.count(round(n_visits), 'visit')} and the evaluations"
    return plot(palette, figure, identity, title, f"{title}. {words}.")


def _log_x(axes: Axes, low: float, high: float, show, decades: bool = False) -> None:
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    span = high / low
    subs = (1,) if decades or span > 2000 else (1, 2, 5) if span > 8 else (1, 1.5, 2, 3, 5, 7)
    axes.xaxis.set_major_locator(LogLocator(10, subs, numticks=5 if decades else 30))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _without_zeros(show(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _without_zeros(words: str) -> str:
    return re.sub(r"\.0+(?=$| )|(?<=\.\d)0+(?=$| )", "", words)


def _names(palette: Palette, axes: Axes, ways: Sequence[str]) -> None:
    axes.set_yticks(range(len(ways)), [look(way).name for way in ways], fontsize=FONT, color=palette["ink"])
    axes.set_ylim(len(ways) - 0.4, -0.6)
    axes.yaxis.grid(False)


def _beside(axes: Axes, x: float, y: float, words: str, colour: str, left: bool, **options) -> None:
    axes.annotate(
        words,
        (x, y),
        (-8 if left else 8, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        color=colour,
        annotation_clip=False,
        **options,
    )


def _label_ends(palette: Palette, axes: Axes, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Write each line's name to the right of the axes, as near to the line's end as possible, with a connector."""
    axes.set_xlim(axes.get_xlim())  # fixes the limits, on which the transformation depends
    axes.set_ylim(axes.get_ylim())
    to_pixels, box = axes.transData, axes.get_window_extent()
    ends = [(to_pixels.transform((points[-1][0], 100 * points[-1][1]))[1], way) for way, points in lines.items()]
    wanted = sorted(reversed(ends), key=lambda end: round(end[0]))
    places = spread([height for height, _ in wanted], box.y0 + 4, box.y1 - 4)
    pixels = axes.transData.inverted()
    for (height, way), place in zip(wanted, places, strict=True):
        colour = palette.way(way)
        x, y = lines[way][-1]
        corner, edge = (pixels.transform(point) for point in ((box.x1 + 2, height), (box.x1 + 12, place)))
        axes.plot([x, corner[0], edge[0]], [100 * y, corner[1], edge[1]], color=colour, lw=0.9, ls=(0, (1, 2)),
                  clip_on=False, scalex=False, scaley=False)  # fmt: skip
        axes.annotate(look(way).name, edge, (3, 0), textcoords="offset points", va="center", annotation_clip=False,
                      color=palette["ink"], weight="bold" if way == HOPPER else "normal")  # fmt: skip


def spread(wanted: Sequence[float], low: float, high: float, apart: float = _LINE_HEIGHT) -> list[float]:
    """Return label positions near the wanted ones (sorted), at least ``apart`` apart, between low and high."""
    places = list(wanted)
    for _ in range(200):
        for i in range(len(places) - 1):
            lack = apart - (places[i + 1] - places[i])
            if lack > 0:
                places[i] -= lack / 2
                places[i + 1] += lack / 2
        if places and places[0] < low:
            places[0] = low
        if places and places[-1] > high:
            places[-1] = high
    return places
