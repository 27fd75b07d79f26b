"""The dashboards: their files are of the form that Grafana and Superset read, and their SQL returns rows of a run.

Grafana's form is that of its SDK (grafana-foundation-sdk). Superset itself is too large to be installed for a test; its
files are read as its importer does, by their references.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
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
SUPERSET = {
    kind: {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "superset" / kind).rglob("*.yaml"))}
    for kind in ("databases", "datasets", "charts", "dashboards")
}
DATASETS = {dataset["uuid"]: dataset for dataset in SUPERSET["datasets"].values()}


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


def test_every_part_of_supersets_dashboard_is_there():
    (database,) = SUPERSET["databases"].values()
    (dashboard,) = SUPERSET["dashboards"].values()
    metadata = yaml.safe_load((FOLDER / "superset" / "metadata.yaml").read_text())
    assert (metadata["type"], metadata["version"]) == ("Dashboard", "1.0.0")
    assert {dataset["database_uuid"] for dataset in DATASETS.values()} == {database["uuid"]}
    charts = {chart["uuid"]: chart for chart in SUPERSET["charts"].values()}
    assert {chart["dataset_uuid"] for chart in charts.values()} <= set(DATASETS)
    placed = [item for item in dashboard["position"].values() if isinstance(item, dict) and item["type"] == "CHART"]
    assert {(item["meta"]["uuid"], item["meta"]["sliceName"]) for item in placed} == {
        (uuid, chart["slice_name"]) for uuid, chart in charts.items()
    }
    for item in placed:
        assert item["id"] in dashboard["position"][item["parents"][-1]]["children"]
    (run,) = dashboard["metadata"]["native_filter_configuration"]
    (target,) = run["targets"]
    assert target["datasetUuid"] in DATASETS and target["column"]["name"] == "run_id"
    assert re.fullmatch(r"postgresql\+psycopg2://\w+@localhost:5432/\w+", database["sqlalchemy_uri"]), "no password"


@pytest.mark.parametrize("name", SUPERSET["datasets"])
def test_a_dataset_of_superset_has_the_columns_of_its_view(db, name):
    dataset = SUPERSET["datasets"][name]
    found = db.rows(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_attribute a"
        " WHERE a.attrelid = %s::regclass AND a.attnum > 0",
        [f"{dataset['schema']}.{dataset['table_name']}"],
    )
    types = dict(found)
    times = {column["column_name"] for column in dataset["columns"] if column["is_dttm"]}
    assert {column["column_name"] for column in dataset["columns"]} <= set(types)
    assert all(types[column].startswith("timestamp") for column in times)
    assert dataset["main_dttm_col"] is None or dataset["main_dttm_col"] in times
    assert "run_id" in types, "the filter of the dashboard applies to it"


@pytest.mark.parametrize("name", SUPERSET["charts"])
def test_a_chart_of_superset_gets_rows_of_the_run(watched, name):
    chart = SUPERSET["charts"][name]
    params, dataset = chart["params"], DATASETS[chart["dataset_uuid"]]
    known = {column["column_name"] for column in dataset["columns"]}
    metrics = {metric["metric_name"]: metric["expression"] for metric in dataset["metrics"]}
    single = [params[key] for key in ("x_axis", "start_time", "end_time", "y_axis", "series") if key in params]
    columns = [*single, *params.get("all_columns", []), *params.get("groupby", []), *params.get("tooltip_columns", [])]
    columns += [json.loads(order)[0] for order in params.get("order_by_cols", [])]
    where = [f"run_id = {watched.run_id}"]
    for condition in params["adhoc_filters"]:
        with_value = {"==": "=", "!=": "<>"}.get(condition["operator"])
        value = f"{with_value} '{condition['comparator']}'" if with_value else condition["operator"]
        where.append(f"{condition['subject']} {value}")
        columns.append(condition["subject"])
    assert set(columns) <= known and set(params.get("metrics", [])) <= set(metrics)
    computed = [metrics[metric] for metric in params.get("metrics", [])]
    group = f" GROUP BY {', '.join(dict.fromkeys(columns))}" if computed else ""
    selected = ", ".join([*dict.fromkeys(columns), *computed])
    table = f"{dataset['schema']}.{dataset['table_name']}"
    _, rows = queried(watched, f"SELECT {selected} FROM {table} WHERE {' AND '.join(where)}{group}", VIEWER)
    assert rows and chart["viz_type"] == params["viz_type"]
