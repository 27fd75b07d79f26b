"""The static HTML page: one file without external resources, with tables, plots and the origin of each number."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.colors import to_hex

from report import figures, formats
from report.columns import GROUPS
from report.csv_files import FILES
from report.gantt import gantts
from report.measurement import Comparison
from report.names import HOPPER, PLAIN, PUBLISHED, in_order, look, published_ratio
from report.plots import breakdown, curves, ratios, sizes
from report.summary import Row, Runs, rows_of, runs_of, what_of, workloads_of
from report.svg import MAX_CONFIGURATIONS, Palette, Plot

PAGE = "comparison.html"


@dataclass(frozen=True)
class Section:
    """A workload's part of the page.

    Attributes
    ----------
    name, what : str
    rows : list of Row
    ratios : Plot or None
        None if there is no measurement of the hopper, the reference.
    curves, visits, sizes : list of Plot
    breakdown : Plot or None
        None if the hopper's stages are unknown.
    outside, outside_later : float or None
        Fraction of the hopper's time in which no model was computed: in total, and after the first epoch.
    mst_keys : list of int
    """

    name: str
    what: str
    rows: list[Row]
    ratios: Plot | None
    curves: list[Plot]
    visits: list[Plot]
    sizes: list[Plot]
    breakdown: Plot | None
    outside: float | None
    outside_later: float | None
    mst_keys: list[int]

    @property
    def measured(self) -> list[Row]:
        """The rows of the ways that did not fail."""
        return [row for row in self.rows if not row.error]

    def row(self, way: str) -> Row | None:
        """Return the row of a way that was measured."""
        return next((row for row in self.measured if row.way == way), None)


def write_page(comparison: Comparison, directory: Path) -> Path:
    """Write the page into a directory; return its path."""
    path = directory / PAGE
    path.write_text(page(comparison))
    return path


def page(comparison: Comparison) -> str:
    """Return the page's HTML."""
    ways = in_order({part.way for part in [*comparison.measurements, *comparison.failures]})
    palette = Palette(ways)
    sections = [_section(palette, comparison, name) for name in workloads_of(comparison)]
    columns = [column for group in GROUPS for column in group.columns]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {"formats": formats, "look": look, "Markup": Markup, "HOPPER": HOPPER, "PLAIN": PLAIN}
    return environment.get_template("page.html.jinja").render(
        sections=sections,
        ways=ways,
        groups=GROUPS,
        notes={column: number for number, column in enumerate(columns, 1)},
        columns=columns,
        configuration_colours=Markup("".join(_configuration_colours(section) for section in sections)),
        machine=comparison.machine,
        versions=_versions(comparison),
        published=[(way, PUBLISHED[way], published_ratio(way)) for way in in_order(PUBLISHED)],
        n_runs=len(comparison.measurements),
        n_workers=sorted({measurement.n_workers for measurement in comparison.measurements}),
        files=FILES,
    )


def _section(palette: Palette, comparison: Comparison, name: str) -> Section:
    runs, rows = runs_of(comparison, name), rows_of(comparison, name)
    stages = figures.stage_seconds(runs.get(HOPPER, []))
    return Section(
        name=name,
        what=what_of(comparison, name),
        rows=rows,
        ratios=ratios(palette, f"{name}-ratios", rows) if HOPPER in runs else None,
        curves=[
            curves(palette, f"{name}-{which}-{over}", runs, over, which)
            for which in ("best", "mean")
            for over in ("time", "epochs")
            if runs
        ],
        visits=gantts(palette, f"{name}-visits", runs) if runs else [],
        sizes=_sizes(palette, name, rows) if runs else [],
        breakdown=breakdown(palette, f"{name}-breakdown", stages, _n_visits(runs)) if stages else None,
        outside=figures.outside_share(stages),
        outside_later=figures.outside_share(figures.stage_seconds(runs.get(HOPPER, []), "steady_stages")),
        mst_keys=sorted({span.mst_key for own in runs.values() for span in own[0].outcome.spans}),
    )


def _sizes(palette: Palette, name: str, rows: Sequence[Row]) -> list[Plot]:
    return [
        sizes(palette, f"{name}-sockets", rows, "socket_bytes", "Bytes over sockets", "not counted"),
        sizes(palette, f"{name}-storage", rows, "data_bytes", "Training rows stored, all copies", "not known"),
    ]


def _n_visits(runs: Runs) -> float:
    return figures.known_median(runs[HOPPER], lambda run: sum(span.kind == "train" for span in run.outcome.spans)) or 0


def _configuration_colours(section: Section) -> str:
    """Return the CSS of a workload's configurations: viridis, readable to the colour-blind, without hidden ones."""
    n = min(max(section.mst_keys, default=1), MAX_CONFIGURATIONS)

    def rules(low: float, high: float) -> str:
        colours = [colormaps["viridis"](low + (high - low) * i / max(1, n - 1)) for i in range(n)]
        luminances = [0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 for r, g, b, _ in colours]
        return "".join(
            f"--c{i}:{to_hex(colour)};--t{i}:{'#fff' if luminance < 0.18 else '#000'};"
            for i, (colour, luminance) in enumerate(zip(colours, luminances, strict=True), 1)
        )

    light, dark = rules(0.0, 0.88), rules(0.22, 1.0)
    return f"#{section.name}{{{light}}}@media (prefers-color-scheme:dark){{#{section.name}{{{dark}}}}}"


def _versions(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the versions that the ways reported: each, with its ways."""
    told: dict[str, list[str]] = {}
    for measurement in comparison.measurements:
        for name, version in measurement.outcome.versions.items():
            ways = told.setdefault(f"{name} {version}", [])
            if measurement.way not in ways:
                ways.append(measurement.way)
    return [(version, ", ".join(look(way).name for way in in_order(ways))) for version, ways in sorted(told.items())]
