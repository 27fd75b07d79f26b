"""``madlib-mop drift``: the rows of a table against a model's training rows, for people, and for cron by its status."""

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from madlib_mop.catalog.live.words import clean
from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.queries import query

#: Exit status if a verdict is as --fail-on says.
FOUND = 3
_COLUMNS = (
    "model", "feature", "kind", "measured", "verdict", "psi", "psi_by_chance", "n_rows", "baseline_rows", "null_share",
    "baseline_null_share", "new_share", "new_levels", "outside_share", "minimum", "maximum", "baseline_minimum",
    "baseline_maximum", "reason",
)  # fmt: skip
_SHOWN = ("feature", "kind", "measured", "verdict", "psi", "reason")
_DRIFT = f"""
SELECT {", ".join(_COLUMNS)} FROM madlib_mop.drift(%s, %s, mst_key => %s, baseline => %s, predictions => %s,
    max_rows => %s, moderate => %s, large => %s, independent_varname => %s, caller_path => %s)
"""


class FailOn(StrEnum):
    """From which verdict on the command fails."""

    MODERATE = "moderate"
    LARGE = "large"


@app.command()
def drift(
    model_table: Annotated[str, typer.Argument(help="Registered model, such as churn@champion, or a table of models.")],
    source_table: Annotated[str, typer.Argument(help="Table or view with the rows of today.")],
    mst_key: Annotated[int | None, typer.Option(help="Key of the model, for a table of models.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Table to compare with. Default: the training rows.")] = None,
    predictions: Annotated[bool, typer.Option(help="Whether predictions are compared too.")] = True,
    max_rows: Annotated[int | None, typer.Option(help="About so many rows are drawn at random.")] = None,
    moderate: Annotated[float, typer.Option(help="Threshold of the PSI.")] = 0.1,
    large: Annotated[float, typer.Option(help="Threshold of the PSI.")] = 0.25,
    independent_varname: Annotated[str | None, typer.Option(help="Input columns of a model of arrays.")] = None,
    fail_on: Annotated[FailOn | None, typer.Option(help="Exit status 3 if a verdict is this or larger.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each comparison.")] = False,
    dsn: Dsn = "",
) -> None:
    """Compare the rows of a table, and the predictions of them, with the training rows."""
    values = (
        model_table, source_table, mst_key, baseline, predictions, max_rows, moderate, large, independent_varname,
    )  # fmt: skip
    found = [dict(zip(_COLUMNS, row, strict=True)) for row in query(dsn, _DRIFT, *values, with_path=True)]
    if as_json:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for row in found:
            print(json.dumps({"checked_at": now, **row}))
    else:
        table = Table(*_SHOWN, box=None)
        for row in found:
            psi = "" if row["psi"] is None else f"{row['psi']:.3f}"
            table.add_row(*(psi if name == "psi" else Text(clean(str(row[name]))) for name in _SHOWN))
        Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 240).print(table)
    failing = {None: (), FailOn.LARGE: ("large",), FailOn.MODERATE: ("moderate", "large")}[fail_on]
    raise typer.Exit(FOUND if any(row["verdict"] in failing for row in found) else 0)
