"""The commands of architectures and configurations change nothing before all arguments are checked."""

import contextlib
import json
import re

import pytest

from madlib_mop.catalog.names import Relation, split_name
from madlib_mop.driver.commands import architectures
from madlib_mop.driver.commands.architectures import delete_keras_model, load_keras_model
from madlib_mop.driver.commands.configurations import generate_model_configs, load_model_selection_table
from madlib_mop.driver.data.library_tables import ARCHITECTURE_COLUMNS as COLUMNS
from madlib_mop.driver.inference.described import DescribedModel, LayerWeights
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.relations import Column
from madlib_mop.engines.greenplum import PRODUCT
from madlib_mop.errors import DuplicateTable, InvalidParameter, MopError, UndefinedColumn, UndefinedTable
from tests.helpers.unit.documents import dense, keras_3, layer

ARCH = json.dumps(keras_3(dense()))
LAMBDA = json.dumps(keras_3(layer("Lambda", function="x")))
COMPILE = "loss='mse', optimizer='adam'"
GRID = "{'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.1, 0.01]}]}"


class FakeSession:
    """Records every statement, and answers the few queries of the commands."""

    def __init__(self, tables=None, summary=(), stored=(), superuser=False):
        self.tables = {name: list(columns) for name, columns in (tables or {"arch": COLUMNS}).items()}
        self.summary, self.stored, self.superuser = list(summary), list(stored), superuser
        self.statements, self.messages, self.info = [], [], None

    def existing(self, name, what="table"):
        if not (name or "").strip():
            raise InvalidParameter(f"{what} is missing. Received: {name!r}")
        base = split_name(name, what)[1]
        return Relation("public", base, 1 + list(self.tables).index(base)) if base in self.tables else None

    def relation(self, name, what="table"):
        found = self.existing(name, what)
        if found is None:
            raise UndefinedTable(f"{what} does not exist. Received: {name!r}")
        return found

    def output(self, name, suffixes=("", "_summary"), what="output table"):
        for suffix in suffixes:
            if self.existing(name + suffix, what):
                raise DuplicateTable(f"{what} exists. Received: {name!r}")
        return Relation("public", split_name(name)[1])

    def lock_to_write(self, table, what="table"):
        pass

    def columns(self, relation):
        return [Column(name, "text", "text", False, False, "S", "", True) for name in self.tables[relation.name]]

    def qualified(self, relation):
        return f"{relation.schema}.{relation.name}"

    def only_row(self, query, relation):
        (row,) = self.execute(query)
        return row

    def caller_setting(self, name):
        return None

    def notice(self, text):
        self.messages.append(text)

    warning = notice

    def execute(self, statement, params=(), types=()):
        self.statements.append((re.sub(r"\s+", " ", statement).strip(), list(params)))
        if made := re.match(r'\s*CREATE TABLE "public"."(\w+)"', statement):
            self.tables[made[1]] = []
        if statement == PRODUCT:
            return [{"has_segments": False, "version": "PostgreSQL 15"}]
        if statement.startswith("SELECT pg_catalog.to_regclass(") and statement.endswith("IS NOT NULL AS yes"):
            return [{"yes": False}]
        if "SELECT DISTINCT model_id" in statement:
            return [{"model_id": 1}, {"model_id": 2}]
        if "rolsuper AS yes" in statement:
            return [{"yes": self.superuser}]
        if "FROM " in statement and "_summary" in statement:
            return [{"written": row["model_arch_table"], "qualified": None, **row} for row in self.summary]
        if statement.startswith('SELECT "model_id"'):
            return self.stored
        if "RETURNING model_id" in statement:
            return [{"model_id": 1}] if "INSERT" in statement or params == [1] else []
        if "has_table_privilege" in statement:
            return [{"may": True}]
        if "pg_has_role" in statement:
            return [{"is_owner": True, "hides_rows": False, "is_used": False}]
        return []

    @property
    def changes(self):
        return [text for text, _ in self.statements if re.match("CREATE|INSERT|UPDATE|DELETE|DROP", text)]

    @property
    def inserted(self):
        """The rows inserted into the model selection table: (model_id, compile_params, fit_params)."""
        ((_, columns),) = [item for item in self.statements if "unnest" in item[0]]
        return list(zip(*columns, strict=True))


def call(command, session, **arguments):
    command(Call.read(command.__name__, arguments, session))
    return session


def load(session, **changed):
    given = {
        "model_arch_table": "arch",
        "model_selection_table": "mst",
        "model_id_list": [1],
        "compile_params_list": [COMPILE],
        "fit_params_list": [""],
        "object_table": None,
    }
    return call(load_model_selection_table, session, **{**given, **changed})


def generate(session, **changed):
    given = {
        "model_arch_table": "arch",
        "model_selection_table": "mst",
        "model_id_list": [2, 1],
        "compile_params_grid": GRID,
        "fit_params_grid": "{'batch_size': [8]}",
        "search_type": "grid",
        "num_configs": None,
        "random_state": None,
        "object_table": None,
    }
    return call(generate_model_configs, session, **{**given, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"model_arch_table": None},
        {"model_arch_table": "nothing"},
        {"model_selection_table": "arch"},
        {"model_id_list": None},
        {"model_id_list": [3]},
        {"compile_params_list": [COMPILE, "loss='mse'"]},
        {"fit_params_list": ["", "epochs=0"]},
        {"fit_params_list": ["callbacks=[ModelCheckpoint('/tmp')]"]},
        {"object_table": "nothing"},
        {"object_table": "other.table"},
    ],
    ids=str,
)
def test_a_bad_argument_of_load_changes_nothing(changed):
    session = FakeSession()
    with pytest.raises(MopError):
        load(session, **changed)
    assert session.changes == []


@pytest.mark.parametrize(
    "changed",
    [
        {"compile_params_grid": GRID.replace("mse", "mes")},
        {"fit_params_grid": "{'epochs': [1, 0]}"},
        {"search_type": "random"},
        {"search_type": "random", "num_configs": 3, "random_state": -1},
        {"num_configs": 3},
        {"model_id_list": [1, None]},
        {"object_table": "nothing"},
    ],
    ids=str,
)
def test_a_bad_argument_of_generate_changes_nothing(changed):
    session = FakeSession()
    with pytest.raises(MopError):
        generate(session, **changed)
    assert session.changes == []


def test_values_never_go_into_the_text_of_a_statement():
    session = load(
        FakeSession(), compile_params_list=[COMPILE + ', metrics=[MeanSquaredError(name="\'; DROP TABLE x")]']
    )
    assert not any("DROP" in text for text, _ in session.statements)
    assert "DROP TABLE x" in session.inserted[0][1]


def test_generated_rows_are_in_the_order_of_ids_and_grid():
    session = generate(FakeSession())
    assert session.inserted == [
        (model_id, f"optimizer='SGD(lr={rate})',loss='mse'", "batch_size=8")
        for model_id in (1, 2)
        for rate in (0.1, 0.01)
    ]
    assert session.messages == ["generate_model_configs: 4 configurations added to public.mst"]


def test_rows_that_are_there_already_are_not_added_again():
    tables = {
        "arch": COLUMNS,
        "mst": ["mst_key", "model_id", "compile_params", "fit_params"],
        "mst_summary": ["model_arch_table", "object_table"],
    }
    stored = [
        {
            "model_id": 1,
            "compile_params": "loss='mse', optimizer=sgd(learning_rate=0.01)",
            "fit_params": "batch_size = 8",
        },
        {"model_id": 2, "compile_params": "not readable", "fit_params": None},
    ]
    session = FakeSession(tables, [{"model_arch_table": "arch", "object_table": None}], stored)
    generate(session)
    assert [(model_id, text.count("0.01")) for model_id, text, _ in session.inserted] == [(1, 0), (2, 0), (2, 1)]
    assert not any(text.startswith("CREATE") for text in session.changes)


def test_a_summary_of_many_rows_is_an_error():
    tables = {
        "arch": COLUMNS,
        "mst": ["mst_key", "model_id", "compile_params", "fit_params"],
        "mst_summary": ["model_arch_table", "object_table"],
    }
    session = FakeSession(tables, [{"model_arch_table": "arch", "object_table": None}] * 2)
    with pytest.raises(InvalidParameter, match="must have one row; it has 2"):
        generate(session)
    assert session.changes == []


@pytest.fixture
def no_trainer(monkeypatch):
    """Describe models without a trainer: each has one layer with 3 weights."""

    class NoTrainer(contextlib.nullcontext):
        pass

    def describe(trainer, arch, seed=None):
        return DescribedModel("canonical", (LayerWeights("dense", ((3,),)),))

    monkeypatch.setattr(architectures, "LocalTrainer", NoTrainer)
    monkeypatch.setattr(architectures, "describe_model", describe)


def test_load_keras_model_makes_its_table_once_and_stores_what_keras_writes(no_trainer):
    session = FakeSession({"other": []})
    for _ in range(2):
        call(load_keras_model, session, keras_model_arch_table="lib", model_arch=ARCH, model_weights=bytes(12))
        session.tables["lib"] = COLUMNS
    assert [text.split(" (")[0] for text in session.changes] == [
        'CREATE TABLE "public"."lib"',
        'INSERT INTO "public"."lib"',
        'INSERT INTO "public"."lib"',
    ]
    assert session.statements[-1][1][:2] == ["canonical", bytes(12)]


@pytest.mark.parametrize("bad", [{"model_arch": "{}"}, {"model_arch": LAMBDA}, {"model_weights": b"1234"}], ids=str)
def test_a_bad_model_changes_nothing(no_trainer, bad):
    session = FakeSession({"other": []})
    with pytest.raises(MopError):
        call(load_keras_model, session, **{"keras_model_arch_table": "lib", "model_arch": ARCH, **bad})
    assert session.changes == []


def test_errors_about_architecture_tables_change_nothing():
    session = FakeSession({"plain": ["model_id"]})
    with pytest.raises(UndefinedColumn, match="'model_arch'"):
        call(load_keras_model, session, keras_model_arch_table="plain", model_arch="{}")
    with pytest.raises(UndefinedColumn):
        call(delete_keras_model, session, keras_model_arch_table="plain", model_id=1)
    with pytest.raises(InvalidParameter):
        call(load_keras_model, session, keras_model_arch_table="lib", model_arch=None)
    assert session.changes == []


def test_the_last_row_takes_its_table_along():
    session = FakeSession()
    call(delete_keras_model, session, keras_model_arch_table="arch", model_id=1)
    assert [text.split()[0] for text in session.changes] == ["DELETE", "DROP"]
    with pytest.raises(InvalidParameter, match="Received: 7"):
        call(delete_keras_model, FakeSession(), keras_model_arch_table="arch", model_id=7)
