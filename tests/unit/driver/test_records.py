"""Rows of the record: dataclasses with the columns of the tables, the states of SQL, plans that can be read back."""

import ast
import dataclasses
import gzip
import json
import re
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql

from madlib_mop.catalog import tables
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.model import BestState, ModelRow, TakenOver
from madlib_mop.catalog.rows.plan import (
    FusedGroup,
    FusedPlan,
    PastConfiguration,
    Plan,
    SearchPlan,
    ShardAccess,
    ShardPlan,
)
from madlib_mop.catalog.rows.run import EvaluationRow, Metric, RunRow, SearchEvent, SegmentRow, VisitRow
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState, ModelState, RunState
from madlib_mop.catalog.run_models import RunModels
from madlib_mop.errors import MopError, NotReady
from madlib_mop.models.parameters.search_grid import DRAWING, EARLIEST_DRAWING
from tests.helpers.unit.rows import a_model, a_plan, a_run, a_search, packed
from tests.helpers.unit.sources import nodes_of

ROOT = Path(__file__).resolve().parents[3]
ROWS = {
    RunRow: tables.run, ModelRow: tables.model, SegmentRow: tables.segment, VisitRow: tables.visit,
    Metric: tables.metric,
    EvaluationRow: tables.evaluation, SearchEvent: tables.search_event, ChangeRow: tables.change,
}  # fmt: skip
#: Columns that the driver does not read: the time of a search's event, and what a segment is doing.
NOT_READ = {"at", "task", "task_since"}
#: Fields of other tables' columns: the oid of a run's owner, and the decisions on a search's event.
OTHERS = {"owner_oid", "changes"}

#: How SQLAlchemy writes types, where that is not the type in capitals.
AS_DECLARED = {
    "double precision": "FLOAT", "name": "TEXT", "regrole": "regrole", "timestamptz": "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip
#: Columns that only people read, and on Greenplum writers.
NOT_DECLARED = {"setting": {"changed_at": "TIMESTAMP WITH TIME ZONE"}, "model": {"made_at": "INTEGER"}}


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_a_row_has_the_columns_of_its_table(kind):
    columns = {column.name for column in ROWS[kind].columns} - NOT_READ
    assert {f.name for f in dataclasses.fields(kind)} - OTHERS == columns


def test_sql_creates_these_tables():
    text = (ROOT / "sql/20-catalog.sql").read_text()
    created = {}
    for name, columns in re.findall(r"CREATE TABLE madlib_mop\.(\w+) \((.*?)\n\)", text, re.DOTALL):
        lines = re.findall(r"^    ([a-z_]+) +([a-z]+(?: precision)?(?:\[\])?)(?= |,|$)", columns, re.MULTILINE)
        created[name] = {column: AS_DECLARED.get(type_sql, type_sql.upper()) for column, type_sql in lines}
    dialect = postgresql.dialect()
    for table in tables.metadata.tables.values():
        declared = {column.name: column.type.compile(dialect) for column in table.columns}
        assert {**declared, **NOT_DECLARED.get(table.name, {})} == created.pop(table.name), table.name
    assert created == {}


@pytest.mark.parametrize("kind", [*ROWS, TakenOver, BestState, Plan], ids=lambda kind: kind.__name__)
def test_a_row_cannot_be_changed(kind):
    assert kind.__dataclass_params__.frozen


def test_a_model_is_read_as_it_is_written():
    best = BestState(2, 7000, -3, 10, 8, 1, "ab", "cd")
    model = a_model(3, run_id=1, state=ModelState.TRAINING, best_state=best, taken_over=TakenOver(1, 2, 3, True))
    row = model.as_row()
    assert row["state"] == "training" and type(row["state"]) is str
    assert ModelRow.from_row(json.loads(json.dumps(row))) == model


def test_a_new_run_leaves_to_the_server_what_it_does_not_know():
    run = a_run(a_plan(), run_id=0)
    row = run.as_row()
    assert row["owner"] == run.owner_oid and not {"run_id", "created_at", "owner_oid"} & row.keys()
    assert row["plan"] == run.plan.as_json()


def test_a_model_that_was_restored_is_of_its_best_epoch():
    best = BestState(2, 7000, -3, 10, 8, 1, "ab", "cd")
    assert a_model(1, best_state=best, state_version=-3).best_epoch == 2
    assert a_model(1, best_state=best, state_version=4).best_epoch is None
    assert a_model(1, first_epoch=6).iteration(7) == 2


PLANS = {
    "plain": a_plan(),
    "all": a_plan(
        validation=packed([(0, 5)], "public.validation"),
        gpus={0: 1},
        class_weight={0: 1.5, 1: 0.75},
        fused_training=FusedPlan(8, (FusedGroup([1, 2], 3),), (0,)),
        search=a_search(
            start_weights={"1": "model_id 1"},
            past=(PastConfiguration(3, 2, 1, "c", "f", 0.5, 0.25), PastConfiguration(3, 1, 1, "c", "f", None, 1.0)),
            drawing=DRAWING,
        ),
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_is_read_as_it_is_written(plan):
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


@pytest.mark.parametrize("place", [None, {"server": "host1", "query": "SELECT"}, {"key": 5, "query": "FEED"}])
@pytest.mark.parametrize("key", [{}, {"key": 1}])
def test_a_shard_is_written_as_workers_read_it(place, key):
    """`mop_backend.channels` finds the place of a shard by these keys and their presence."""
    written = {"segment_id": 2, "n_rows": 10, "n_bytes": 80, "place": place, **key}
    assert ShardPlan.from_json(written).as_json() == written


def test_where_a_shard_is_read_is_told_by_its_server():
    assert ShardPlan(0, 1, 8, ShardAccess("SELECT", "host1")).server == "host1"
    assert ShardPlan(0, 1, 8, ShardAccess("FEED", key=3)).server is None and ShardPlan(0, 1, 8).server is None


RELEASED = sorted((ROOT / "tests/upgrade/records").glob("*.sql.gz"))


def _recorded_plans(path: Path) -> list[dict]:
    """Return the plans in a dump of a release's record: a run's row is a line, with its plan in one field."""
    text = gzip.decompress(path.read_bytes()).decode()
    fields = [field for line in text.splitlines() for field in line.split("\t") if '"training": {' in field]
    return [json.loads(field.replace("\\\\", "\\")) for field in fields]


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.name)
def test_plans_of_released_versions_are_read_whole(path):
    plans = _recorded_plans(path)
    assert {"search" in plan for plan in plans} == {True, False}
    for plan in plans:
        written = json.loads(json.dumps(Plan.from_json(plan).as_json()))
        assert {name: part for name, part in written.items() if name != "summary"} == {
            name: part for name, part in plan.items() if name != "summary"
        }
        assert {name: value for name, value in plan["summary"].items() if value is not None}.items() <= written[
            "summary"
        ].items()


def test_a_plan_of_an_older_version_is_gone_on_with():
    old = json.loads(json.dumps(PLANS["plain"].as_json())) | {"settings": {"app.tenant": "7"}}
    for later in ("shares", "gpus", "host_wait_s"):
        del old[later]
    del old["summary"]["qualified_names"]
    assert Plan.from_json(old) == dataclasses.replace(PLANS["plain"], host_wait_s=600)


def test_a_search_plan_of_an_older_version_draws_as_it_began():
    old = a_search().as_json()
    assert "drawing" not in old and SearchPlan.from_json(old).drawing == EARLIEST_DRAWING
    assert SearchPlan.from_json(old).as_json() == old


def test_a_run_that_was_dropped_meanwhile_is_an_error_that_says_so():
    class Empty(Record):
        def _rows(self, query):
            return []

    assert Empty(None, None).run(7) is None
    with pytest.raises(NotReady, match="run 7 was dropped"):
        Empty(None, None).known_run(7)


# States


def test_the_tables_know_the_same_states():
    text = (ROOT / "sql/20-catalog.sql").read_text()
    checks = [set(re.findall(r"'(\w+)'", found)) for found in re.findall(r"CHECK \(state IN \(([^)]*)\)\)", text)]
    assert checks == [{*map(str, states)} for states in (RunState, ModelState, ChangeState)]
    assert f"DEFAULT '{ModelState.WAITING}' CHECK (state" in text


def test_the_table_of_changes_knows_the_same_sources():
    text = (ROOT / "sql/20-catalog.sql").read_text()
    (found,) = re.findall(r"CHECK \(source IN \(([^)]*)\)\)", text)
    assert set(re.findall(r"'([\w ]+)'", found)) == {*map(str, ChangeSource)}


def test_sql_names_no_other_states():
    known = {*map(str, RunState), *map(str, ModelState), *map(str, ChangeState)}
    n_found = 0
    for path in sorted((ROOT / "sql").glob("2*.sql")):
        text = re.sub(r"'active', 'disabled'", "", path.read_text())
        for found in re.findall(r"\bstate\s*(?:=|<>|IN|NOT IN)\s*(\([^)]*\)|'\w+')", text):
            n_found += 1
            assert {*re.findall(r"'(\w+)'", found)} <= known, f"{path.name}: {found}"
    assert n_found > 8


@pytest.mark.parametrize("states", [RunState, ModelState, ChangeState], ids=lambda states: states.__name__)
def test_each_state_says_what_it_means_and_what_may_follow(states):
    lines = (ROOT / "madlib_mop/catalog/rows/states.py").read_text().splitlines()
    for state in states:
        where = [n for n, line in enumerate(lines) if line.strip() == f'{state.name} = "{state.value}"']
        assert any(re.search(r"#: .*(follow|last state)", lines[n - 1]) for n in where), state


def test_states_are_named_in_one_place():
    """Elsewhere, a text that equals a state means something else: a data set, a worker's answer."""
    unmistakable = {"waiting", "trained", "running", "interrupted", "cancelled", "finished"}
    for path in [*(ROOT / "madlib_mop/driver").rglob("*.py"), *(ROOT / "madlib_mop/catalog").rglob("*.py")]:
        if path.name == "states.py":
            continue
        for node in nodes_of(path):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            assert not (isinstance(node, ast.Constant) and node.value in unmistakable), where
            if isinstance(node, ast.keyword) and node.arg == "state":
                assert not isinstance(node.value, ast.Constant), where
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                of_state = any(isinstance(side, ast.Attribute) and side.attr == "state" for side in sides)
                assert not (
                    of_state
                    and any(
                        isinstance(side, ast.Constant | ast.Tuple) and isinstance(getattr(side, "value", None), str)
                        for side in sides
                    )
                ), where


class _Record:
    """Stores a run's models; a write can be made to fail."""

    def __init__(self, *models: ModelRow):
        self.rows = {model.mst_key: model for model in models}
        self.fails = False

    def models(self, run_id):
        return list(self.rows.values())

    def set_model(self, run_id, mst_key, waits=True, **columns):
        if self.fails:
            raise OSError("the session is lost")
        self.rows[mst_key] = dataclasses.replace(self.rows[mst_key], **columns)


def test_a_change_of_a_model_is_in_the_record_and_here():
    record = _Record(a_model(1), a_model(2))
    models = RunModels(record, 7)
    models.visit_kept(1, "ab", 1, 1)
    assert (models[1].state, models[1].digest, models[1].state_version) == (ModelState.TRAINING, "ab", 1)
    assert record.rows[1].state is ModelState.WAITING, "what a worker has recorded is not recorded again"
    models.trained(1)
    models.failed(2, "the loss is NaN")
    assert [record.rows[key].state for key in models] == [ModelState.TRAINED, ModelState.FAILED]
    assert [models[key].state for key in models] == [ModelState.TRAINED, ModelState.FAILED]


def test_each_change_of_a_model_is_signalled():
    record, changes = _Record(a_model(1), a_model(2)), []
    models = RunModels(record, 7, lambda: changes.append(len(changes)))
    models.visit_kept(1, "ab", 1, 1)
    models.pinned(2, True)
    models.failed(2, "the loss is NaN")
    models.ended_as(1, ModelState.TRAINED, None)
    assert changes == [0, 1, 2, 3]


def test_what_ended_in_a_visit_stays_ended():
    """The worker does not know that it ended, and writes that it is in training."""
    record = _Record(a_model(1))
    models = RunModels(record, 7)
    models.stopped(1, "it is slow")
    record.rows[1] = dataclasses.replace(record.rows[1], state=ModelState.TRAINING)
    models.visit_kept(1, "ab", 1, 1)
    assert record.rows[1].state is models[1].state is ModelState.STOPPED


def test_a_change_that_is_not_recorded_is_not_made():
    record = _Record(a_model(1))
    models = RunModels(record, 7)
    record.fails = True
    with pytest.raises(OSError):
        models.failed(1, "the loss is NaN")
    assert models[1].state is ModelState.WAITING


@pytest.mark.parametrize(
    "state, change",
    [
        (ModelState.WAITING, lambda models: models.trained(1)),
        (ModelState.FAILED, lambda models: models.trained(1)),
        (ModelState.FAILED, lambda models: models.extended(1, 5)),
        (ModelState.STOPPED, lambda models: models.extended(1, 5)),
        (ModelState.TRAINED, lambda models: models.failed(1, "too late")),
        (ModelState.TRAINED, lambda models: models.stopped(1, "too late")),
    ],
)
def test_an_impossible_succession_is_refused_before_it_is_recorded(state, change):
    record = _Record(a_model(1, state=state))
    models = RunModels(record, 7)
    with pytest.raises(MopError, match="internal error: run 7, mst_key 1 is"):
        change(models)
    assert record.rows[1].state is models[1].state is state


# Only rows with defined fields


def _bare_dicts(annotation: ast.expr) -> bool:
    """Return whether an annotation has a ``dict`` without type arguments."""
    told = {id(node.value) for node in ast.walk(annotation) if isinstance(node, ast.Subscript)}
    names = [node for node in ast.walk(annotation) if isinstance(node, ast.Name) and node.id == "dict"]
    return any(id(name) not in told for name in names)


FILES = sorted((ROOT / "madlib_mop/driver").rglob("*.py"))


def test_no_dict_goes_between_modules_of_the_driver_without_its_types():
    """Rows of the record are dataclasses; a dict in a signature has a named type: `Header`, `Json`, `Node` ..."""
    for path in FILES:
        for function in nodes_of(path):
            if not isinstance(function, ast.FunctionDef):
                continue
            where = f"{path.relative_to(ROOT)}:{function.lineno}"
            for argument in [*function.args.args, *function.args.kwonlyargs]:
                assert argument.annotation is None or not _bare_dicts(argument.annotation), f"{where}: {argument.arg}"
            assert function.returns is None or not _bare_dicts(function.returns), f"{where}: {function.name}"


def test_the_record_returns_no_dicts_of_rows():
    nodes = nodes_of(ROOT / "madlib_mop/catalog/record.py")
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        if function.returns is not None and not function.name.startswith("_"):
            assert not _bare_dicts(function.returns), function.name
            assert "Any" not in ast.unparse(function.returns), function.name
