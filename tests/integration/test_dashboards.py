"""The dashboard: its file is of the form that Grafana reads, and its SQL returns rows of a run.

Grafana's form is that of its SDK (grafana-foundation-sdk).
"""

import json
import re
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.helpers.monitoring import OTHER, VIEWER, make_monitored, train_monitored

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"
GRAFANA = json.loads((FOLDER / "grafana.json").read_text())
#: An option of panel "state-timeline" that Grafana's SDK lacks: its page "Connect null values".
NOT_IN_SDK = {"/panels/5/fieldConfig/defaults/custom/spanNulls"}
#: The columns that a panel of Grafana needs by its type.
NEEDED = {"timeseries": {"time", "value", "metric"}, "state-timeline": {"time", "value", "metric"}}


@pytest.fixture(scope="module")
def watched(db):
    """A database with a run of two trained models and a failed one."""
    make_monitored(db)
    db.run_id = train_monitored(db)
    return db


def queried(db, statement: str, role: str) -> tuple[list[str], list[tuple]]:
    """Return the names of a statement's columns, and its rows."""
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return [column.name for column in cursor.description], cursor.fetchall()
    finally:
        connection.close()


def filled(statement: str, run_id: int) -> str:
    """Return a statement of the Grafana dashboard with its variables filled in, as Grafana does it."""
    statement = statement.replace("${run:sqlstring}", f"'{run_id}'").replace("${metric:sqlstring}", "'accuracy'")
    statement = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 BETWEEN '2000-01-01' AND '3000-01-01'", statement)
    assert "$" not in statement, f"a variable that Grafana does not know or does not quote: {statement}"
    return statement


def lost(given, read, path: str = "") -> list[str]:
    """Return what a document has lost or changed when it was read and written again."""
    if isinstance(given, dict):
        gone = [f"{path}/{key}" for key in given if not isinstance(read, dict) or key not in read]
        both = [key for key in given if isinstance(read, dict) and key in read]
        return gone + [item for key in both for item in lost(given[key], read[key], f"{path}/{key}")]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [item for n, pair in enumerate(zip(given, read, strict=True)) for item in lost(*pair, f"{path}/{n}")]
    return [] if given == read else [path]


def test_grafana_knows_every_setting_of_its_dashboard():
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(GRAFANA), cls=JSONEncoder))
    assert set(lost(GRAFANA, read)) == NOT_IN_SDK
    broken = {**GRAFANA, "panels": [{**GRAFANA["panels"][0], "colour": "red"}, *GRAFANA["panels"][1:]]}
    read = json.loads(json.dumps(Dashboard.from_json(broken), cls=JSONEncoder))
    assert "/panels/0/colour" in lost(broken, read), "a setting that Grafana does not know is found"


@pytest.mark.parametrize("panel", GRAFANA["panels"], ids=lambda panel: panel["title"])
def test_a_panel_of_grafana_gets_its_columns_and_rows_of_the_run(watched, panel):
    (target,) = panel["targets"]
    names, rows = queried(watched, filled(target["rawSql"], watched.run_id), VIEWER)
    wanted = set(NEEDED.get(panel["type"], ()))
    wanted |= {panel["options"]["xField"]} if "xField" in panel["options"] else set()
    wanted |= {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert rows and wanted <= set(names)
    assert (target["format"] == "time_series") == ("time" in names)
    assert queried(watched, filled(target["rawSql"], watched.run_id), OTHER)[1] == [], "another role sees nothing"


def test_the_panels_have_the_figures_of_the_run(watched):
    statements = {panel["title"]: panel["targets"][0]["rawSql"] for panel in GRAFANA["panels"]}
    names, rows = queried(watched, filled(statements["Failures"], watched.run_id), VIEWER)
    ((failed,),) = [[dict(zip(names, row, strict=True)) for row in rows]]
    assert failed["mst_key"] == 3 and "broken" in failed["failure_reason"]
    _, rows = queried(watched, filled(statements["Segments"], watched.run_id), VIEWER)
    assert {row[2] for row in rows} == {"segment 0", "segment 1"} and {row[1] for row in rows} == {-1, 1, 2}
    times = [row[0] for row in rows]
    assert times == sorted(times), "Grafana wants time series in the order of their times"


@pytest.mark.parametrize("variable", GRAFANA["templating"]["list"][1:], ids=lambda variable: variable["name"])
def test_a_variable_of_grafana_has_a_choice(watched, variable):
    _, rows = queried(watched, filled(variable["query"], watched.run_id), VIEWER)
    assert rows[0][0] == {"run": watched.run_id, "metric": "accuracy"}[variable["name"]]
