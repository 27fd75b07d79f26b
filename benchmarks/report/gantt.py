"""Charts of visits: which worker trained and evaluated which configuration, and when."""

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from ways.contract import Span

from report import figures, formats
from report.measurement import Measurement
from report.names import HOPPER, PLAIN, look
from report.summary import Runs
from report.svg import WIDTH, Palette, Plot, canvas, plot

_LEFT, _RIGHT = 60, 12
_TRAIN, _EVALUATE = (-0.40, 0.18), (0.22, 0.40)  # vertical extents within a worker's lane; y points down
_MAX_LABELS = 120
_BEGIN_VISITS = 8
_ABOUT = 1.3  # ways are drawn to their end if they take at most this many times as long as the hopper or plain Keras


def gantts(palette: Palette, identity: str, runs: Runs) -> list[Plot]:
    """Draw the typical run of each way; all have the same time scale, which fits the hopper and plain Keras."""
    typical = {way: figures.typical(own) for way, own in runs.items()}
    pair = [typical[way] for way in (HOPPER, PLAIN) if way in typical] or list(typical.values())
    longest_s = max(run.makespan_s for run in pair)
    until_s = 1.02 * max(run.makespan_s for run in typical.values() if run.makespan_s <= _ABOUT * longest_s)
    plots = [_gantt(palette, f"{identity}-{way}", run, (0, until_s), look(way).name) for way, run in typical.items()]
    if HOPPER in typical:
        first_s, last_s = window = _first_visits(typical[HOPPER])
        name = f"{look(HOPPER).name}, the first {formats.seconds(last_s - first_s)} s after its start-up"
        plots.insert(2, _gantt(palette, f"{identity}-hopper-begin", typical[HOPPER], window, name))
    return plots


def _first_visits(run: Measurement) -> tuple[float, float]:
    """Return start and end of the workers' first visits: few enough that the configurations' numbers are readable."""
    ends = sorted(span.end for span in run.outcome.spans if span.kind == "train")
    last_s = ends[min(len(ends), _BEGIN_VISITS * run.n_workers) - 1] - run.begun_at if ends else run.makespan_s
    return figures.startup_s(run), last_s


def merged(spans: Sequence[Span], gap_s: float) -> list[Span]:
    """Merge spans of the same worker, configuration and kind with a distance of less than ``gap``."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.worker, span.kind, span.begin)):
        last = joined[-1] if joined else None
        alike = last and (last.worker, last.kind, last.mst_key) == (span.worker, span.kind, span.mst_key)
        if alike and span.begin - last.end < gap_s:
            joined[-1] = Span(span.mst_key, span.worker, last.begin, max(last.end, span.end), span.kind)
        else:
            joined.append(span)
    return joined


def _gantt(palette: Palette, identity: str, run: Measurement, window: tuple[float, float], title: str) -> Plot:
    figure, axes = canvas(palette, 46 + 46 * run.n_workers, left=_LEFT, right=_RIGHT, top=12, bottom=34)
    from_s, until_s = window
    axes.set_xlim(from_s, until_s)
    axes.set_ylim(run.n_workers - 0.5, -0.5)
    axes.yaxis.grid(False)
    pixel_s = (until_s - from_s) / (WIDTH - _LEFT - _RIGHT)
    ended_s = min(run.makespan_s, until_s)
    for worker in range(run.n_workers):
        for low, high in (_TRAIN, _EVALUATE):
            axes.barh(worker + low, ended_s, height=high - low, align="edge", color=palette["lane"], linewidth=0)
    shown = [
        span for span in run.outcome.spans if span.begin - run.begun_at < until_s and span.end - run.begun_at > from_s
    ]
    _draw(palette, axes, run, merged(shown, 0.25 * pixel_s), until_s, pixel_s)
    if from_s == 0:
        _mark_startup(palette, axes, run, until_s)
    if run.makespan_s > until_s:
        words = f"continues until {formats.seconds(run.makespan_s)} s →"
        axes.annotate(words, (1, 1), (0, 3), "axes fraction", "offset points", ha="right", color=palette["ink"])
    axes.set_yticks(range(run.n_workers), [f"worker {n + 1}" for n in range(run.n_workers)], color=palette["ink"])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("seconds since the start of the work")
    return plot(palette, figure, identity, title, _alternative(run, window))


def _draw(palette: Palette, axes, run: Measurement, spans: Sequence[Span], until_s: float, pixel_s: float) -> None:
    """Draw the spans of a configuration as one path, and its number on those that are wide enough."""
    boxes, n_labels = defaultdict(list), 0
    for span in spans:
        low, high = _TRAIN if span.kind == "train" else _EVALUATE
        left, right = span.begin - run.begun_at, min(span.end - run.begun_at, until_s)
        boxes[span.mst_key, span.kind].append((left, right, span.worker + low, span.worker + high))
        words = str(span.mst_key)
        if span.kind == "train" and (right - left) / pixel_s > 7 * len(words) + 3 and n_labels < _MAX_LABELS:
            n_labels += 1
            axes.text((left + right) / 2, span.worker + sum(_TRAIN) / 2, words, ha="center", va="center",
                      fontsize=9, color=palette.configuration(span.mst_key, "t"))  # fmt: skip
    for (mst_key, _), found in sorted(boxes.items()):
        corners = [xy for l, r, b, t in found for xy in ((l, b), (r, b), (r, t), (l, t), (l, b))]  # noqa: E741
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(found)
        colour = palette.configuration(mst_key)
        axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour, linewidth=0))


def _mark_startup(palette: Palette, axes, run: Measurement, until_s: float) -> None:
    ready_s = min(figures.startup_s(run), until_s)
    axes.axvline(ready_s, color=palette["muted"], linewidth=0.8, linestyle=(0, (2, 2)))
    words = f"start-up {formats.seconds(figures.startup_s(run))} s"
    axes.annotate(words, (0, 1), (0, 3), "axes fraction", "offset points", fontsize=9, color=palette["muted"])


def _alternative(run: Measurement, window: tuple[float, float]) -> str:
    trained = [span for span in run.outcome.spans if span.kind == "train"]
    first, last = (formats.seconds(seconds) for seconds in window)
    part = f" Drawn from {first} s to {last} s." if window[0] > 0 or run.makespan_s > window[1] else ""
    return (
        f"{look(run.way).name}: {formats.count(len(trained), 'span')} of training of"
        f" {formats.count(len({span.mst_key for span in trained}), 'configuration')} on"
        f" {formats.count(run.n_workers, 'worker')} in {formats.seconds(run.makespan_s)} s, of which"
        f" {formats.seconds(figures.startup_s(run))} s start-up; idle afterwards"
        f" {formats.percent(figures.idle_share(run))} of the workers’ time.{part}"
    )
