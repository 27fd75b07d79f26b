"""The static HTML page: one file without external resources, with tables, figures and the origin of each number."""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import ChoiceLoader, FileSystemLoader

from madlib_mop.reports.figures import Figure
from madlib_mop.reports.page import environment, render
from report import formats
from report.columns import GROUPS
from report.csv_files import FILES
from report.measurement import Comparison
from report.names import HOPPER, PUBLISHED, in_order, look, published_ratio
from report.plots import breakdown, curves, ratios, sizes, visits
from report.summary import Row, rows_of, runs_of, what_of, workloads_of

PAGE = "comparison.html"


@dataclass(frozen=True)
class Section:
    """A workload's part of the page.

    Attributes
    ----------
    name, what : str
    rows : list of Row
    ratios : Figure or None
        None if there is no measurement of the hopper, the reference.
    curves, visits, breakdown, sizes : list of Figure
    """

    name: str
    what: str
    rows: list[Row]
    ratios: Figure | None
    curves: list[Figure]
    visits: list[Figure]
    breakdown: list[Figure]
    sizes: list[Figure]

    def row(self, way: str) -> Row | None:
        """Return the row of a way that was measured."""
        return next((row for row in self.rows if row.way == way and not row.error), None)


def write_page(comparison: Comparison, directory: Path) -> Path:
    """Write the page into a directory; return its path."""
    path = directory / PAGE
    path.write_text(page(comparison))
    return path


def page(comparison: Comparison) -> str:
    """Return the page's HTML."""
    columns = [column for group in GROUPS for column in group.columns]
    library = environment()
    own = library.overlay(loader=ChoiceLoader([FileSystemLoader(Path(__file__).parent), library.loader]))
    return render(
        own.get_template(PAGE),
        formats=formats,
        look=look,
        HOPPER=HOPPER,
        sections=[_section(comparison, name) for name in workloads_of(comparison)],
        ways=in_order({part.way for part in [*comparison.measurements, *comparison.failures]}),
        groups=GROUPS,
        notes={column: number for number, column in enumerate(columns, 1)},
        columns=columns,
        machine=comparison.machine,
        versions=_versions(comparison),
        published=[(way, PUBLISHED[way], published_ratio(way)) for way in in_order(PUBLISHED)],
        n_runs=len(comparison.measurements),
        n_workers=sorted({measurement.n_workers for measurement in comparison.measurements}),
        files=FILES,
    )


def _section(comparison: Comparison, name: str) -> Section:
    runs, rows = runs_of(comparison, name), rows_of(comparison, name)
    return Section(
        name=name,
        what=what_of(comparison, name),
        rows=rows,
        ratios=ratios(name, rows) if HOPPER in runs else None,
        curves=list(curves(name, runs)) if runs else [],
        visits=list(visits(name, runs)) if runs else [],
        breakdown=list(breakdown(name, runs)),
        sizes=list(sizes(name, rows)) if runs else [],
    )


def _versions(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the versions that the ways reported: each, with its ways."""
    told: dict[str, list[str]] = {}
    for measurement in comparison.measurements:
        for name, version in measurement.outcome.versions.items():
            ways = told.setdefault(f"{name} {version}", [])
            if measurement.way not in ways:
                ways.append(measurement.way)
    return [(version, ", ".join(look(way).name for way in in_order(ways))) for version, ways in sorted(told.items())]
