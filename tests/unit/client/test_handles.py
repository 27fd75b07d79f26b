"""The handles of the client without a server: secrets, progress, classes."""

import copy
import json
import pickle
import sys
import types
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec

import numpy as np
import psycopg
import psycopg2
import pytest
from mop_backend.weights import ModelWeights
from sqlalchemy import create_engine

import madlib_mop.client
from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import RunNow, RunStatus
from madlib_mop.catalog.facts.reader import login
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.sessions.dsn import check_dsn
from madlib_mop.cli.sessions import connect as cli_connect
from madlib_mop.client.calling import sessions
from madlib_mop.client.calling.errors import of_server
from madlib_mop.client.calling.sessions import ClientSessions, check_settings, make_engine
from madlib_mop.client.calling.statements import scalar
from madlib_mop.client.database import Database, connect
from madlib_mop.client.frames.classes import class_of
from madlib_mop.client.jobs import Job
from madlib_mop.client.models import Model, _probabilities
from madlib_mop.client.predicting import Answers
from madlib_mop.client.progress import html_of, reporter_of
from madlib_mop.client.runs import Run
from madlib_mop.client.targets import Target, facts_of, value_of_json
from madlib_mop.errors import InvalidParameter, NotReady, Unsupported
from madlib_mop.trackers.following import RunSession

SECRET = "hunter2secret"
STATUS = RunStatus(
    run_id=7, kind="fit_multiple_model", state="running", detail=None, owner="<b>ann</b>", source_table="t",
    validation_table=None, output_table="m", schedule="auto", paused_by=None, waits=False, may_steer=True, seed=1,
    num_iterations=2, n_segments=2, n_models=1, n_waiting=0, n_training=1, n_trained=0, n_stopped=0, n_failed=0,
    visits_done=1, visits_total=4, created_at=datetime.now(UTC), ended_at=None, elapsed_s=3.0,
    time_left_s=None,
)  # fmt: skip


def now(**changes) -> RunNow:
    status = replace(STATUS, **changes)
    model = ModelLine(1, 3, 1, "training", None, 1, 1, 2, False, 1, True, "<i>acc</i>", 0.5, 0.7, None, None, "", "")
    return RunNow(status, (model,), (), (), ())


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://ann:{SECRET}@localhost:1/db",
        f"postgresql://ann@localhost:1/db?password={SECRET}",
        f"host=localhost port=1 user=ann password={SECRET}",
        f"postgresql+psycopg2://ann:{SECRET}@localhost:1/db",
    ],
)
def test_no_repr_and_no_error_has_the_password(dsn):
    engine = make_engine(dsn)
    database = Database(ClientSessions(engine, {}))
    assert SECRET not in repr(engine) + repr(engine.url) + repr(database) + repr(vars(database))
    with pytest.raises(NotReady) as raised:
        connect(dsn)
    assert SECRET not in str(raised.value) + repr(raised.value) + "".join(raised.value.__notes__)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


@pytest.mark.parametrize(
    "dsn",
    [
        f"password {SECRET}",
        f"postgresql://[{SECRET}",
        f"postgresql+nothing://a:{SECRET}@b/c",
        f"postgresql://ann:x@{SECRET}@localhost:1/db",
        f"postgresql://ann:x@1:{SECRET}@localhost:1/db",
        f"postgresql+psycopg2://ann:x@{SECRET}@localhost:1/db",
        f"postgresql://ann:{SECRET}/x@localhost:1/db",
        f"postgres://ann:1/{SECRET}@localhost:1/db",
        f"postgresql://ann:x%{SECRET}@localhost:1/db",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn):
    with pytest.raises(InvalidParameter, match="DSN cannot be read") as raised:
        connect(dsn)
    assert SECRET not in str(raised.value) + "".join(raised.value.__notes__)


@pytest.mark.parametrize("log_in", [cli_connect, lambda dsn: login(dsn).__enter__(), lambda dsn: RunSession(dsn, 1)])
def test_the_command_line_and_trackers_do_not_repeat_a_password(log_in):
    with pytest.raises(InvalidParameter, match="DSN cannot be read") as raised:
        log_in(f"postgresql://ann:x@{SECRET}@localhost:1/db")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "", "dbname=a@b password=x@y", "postgresql://", "postgresql://ann:a%40b%2F@localhost:1/d%40b?password=@",
        "postgresql://[::1]:5432/db", "postgresql+psycopg2://ann:a/b%@localhost:1/db",
    ],
)  # fmt: skip
def test_a_dsn_whose_special_characters_are_escapes_is_read(dsn):
    check_dsn(dsn)


def test_without_psycopg2_psycopg_3_is_used(monkeypatch):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name == "psycopg2" else find_spec(name))
    engine = make_engine(f"host=localhost port=1 password={SECRET}")
    assert engine.dialect.driver == "psycopg"
    with pytest.raises(NotReady, match="cannot log in") as raised:
        connect(f"host=localhost port=1 password={SECRET}")
    assert SECRET not in str(raised.value) + repr(engine)
    with pytest.raises(InvalidParameter, match="DSN cannot be read"):
        connect(f"password {SECRET}")
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="no driver"):
        make_engine("")


@pytest.mark.parametrize("engine", ["sqlite://", 5])
def test_other_engines_are_refused(engine):
    with pytest.raises(InvalidParameter):
        connect(create_engine(engine) if isinstance(engine, str) else engine)


@pytest.mark.parametrize("settings", [{"segments; DROP": 1}, {"": 1}, {3: 1}])
def test_names_of_settings_are_checked(settings):
    with pytest.raises(InvalidParameter, match="no setting"):
        check_settings(settings)


def test_settings_are_texts():
    assert check_settings({"segments": 2, "materialise_features": False}) == {
        "segments": "2", "materialise_features": "off",
    }  # fmt: skip


def test_a_handle_is_shared_by_copies_and_is_not_pickled():
    database = Database(ClientSessions(make_engine("dbname=x"), {}))
    assert copy.deepcopy({"db": database})["db"] is database
    with pytest.raises(TypeError, match="connect"):
        pickle.dumps(database)


def test_html_escapes_what_other_roles_wrote():
    page = html_of(now(detail="<script>alert(1)</script>"))
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "value='25'" in page and "<td>3</td>" in page


def test_lines_show_changes_and_not_each_state(capsys):
    show = reporter_of(True)
    show(now())
    show(now(elapsed_s=4.0))
    show(now(visits_done=2))  # within two seconds
    show(now(state="finished", visits_done=4))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["run 7: running", "run 7: finished"]
    assert "100 %" in lines[1] and "model 3 leads" in lines[1]


def test_progress_is_shown_by_a_function_or_not_at_all(capsys):
    seen = []
    reporter_of(seen.append)(now())
    reporter_of(False)(now())
    assert seen == [STATUS] and capsys.readouterr() == ("", "")
    with pytest.raises(InvalidParameter, match="progress"):
        reporter_of("bar")


def test_in_a_notebook_one_output_is_replaced(monkeypatch):
    shown = []

    class Handle:
        def update(self, page):
            shown.append(("update", page))

    def display(page, display_id):
        shown.append(("display", page))
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    show = reporter_of(True)
    show(now())
    show(now(visits_done=2))
    assert [what for what, _ in shown] == ["display", "update"]
    assert "value='50'" in shown[1][1]


@pytest.mark.parametrize(
    "text, sql_type, value",
    [
        ("3", "smallint", 3), ("2.5", "numeric", 2.5), ("2.0", "numeric", 2), ("t", "boolean", True),
        ("9007199254740993", "numeric", 9007199254740993), ("2", "real", 2.0),
        ("false", "boolean", False), ("3", "text", "3"), (None, "text", None),
    ],
)  # fmt: skip
def test_a_class_has_the_type_of_its_column(text, sql_type, value):
    found = class_of(text, sql_type)
    assert found == value and type(found) is type(value)


def test_of_several_outputs_each_gets_its_best_class_or_its_number():
    kind = Target("kind", "text", (None, "a"), (None, "a"))
    size = Target("size", "double precision", None, None)
    row = {"kind": {"NULL": 0.8, "a": 0.2}, "size": 3.5}
    assert value_of_json(kind, row) is None
    assert value_of_json(kind, {"kind": {"NULL": 0.1, "a": 0.2}}) == "a"
    assert value_of_json(size, row) == 3.5


def test_of_a_row_without_an_array_or_with_nan_there_is_no_error():
    kind = Target("kind", "text", ("a", "b", "c"), ("a", "b", "c"))
    assert value_of_json(kind, None) is None
    assert value_of_json(kind, {"kind": {"a": None, "b": 0.1, "c": None}}) == "b"


def targets_of(values) -> tuple[Target, ...]:
    output = {"name": "kind", "vartype": "text", "values": values}
    return facts_of(json.dumps({"outputs": [output], "preprocessor": None, "n_inputs": 1})).targets


def test_outputs_that_num_classes_reserves_are_no_classes():
    (kind,) = targets_of([None, "a", "b", None, None])
    assert kind.classes == (None, "a", "b") and kind.n_padding == 2
    assert value_of_json(kind, {"kind": {"NULL": 0.1, "a": 0.2, "b": 0.3}}) == "b"
    (kind,) = targets_of(["a", "b", None, None])
    assert kind.classes == ("a", "b") and value_of_json(kind, {"kind": {"a": 0.2, "b": 0.1}}) == "a"
    assert targets_of([None])[0].classes is None


class Rows:
    """What a `ClientPredictor` returns for rows of a table."""

    def __init__(self, *values):
        self.values = values

    def answers(self, function, data, key):
        return Answers(None, None, list(self.values))


def test_a_probability_is_that_of_its_class():
    found = _probabilities(targets_of([None, "a", "b", None]), Rows([0.4, 0.3, 0.2, 0.1]), "t", "id")
    assert found.columns.tolist() == [None, "a", "b"]
    assert found.to_numpy().tolist() == [[np.float32(0.4), np.float32(0.3), np.float32(0.2)]]
    found = _probabilities(targets_of(["a", None]), Rows([0.25]), "t", "id")
    assert found.columns.tolist() == ["a"] and found["a"].tolist() == [0.75]


def test_a_row_without_an_array_has_no_probabilities():
    found = _probabilities(targets_of(["a", "b"]), Rows([0.25], None), "t", "id")
    assert found["a"].tolist()[0] == 0.75 and found.iloc[1].isna().all()
    found = _probabilities(targets_of(["a", "b"]), Rows(None), "t", "id")
    assert found.columns.tolist() == ["a", "b"] and found.iloc[0].isna().all()
    assert _probabilities(targets_of(["a", "b"]), Rows(), "t", "id").shape == (0, 2)


def test_keys_of_numpy_are_numbers_of_python():
    database = Database(ClientSessions(make_engine("dbname=x"), {}))
    for key in (Run(database, np.int64(7)).run_id, Job(database, np.int32(7)).job_id):
        assert type(key) is int and key == 7
    assert type(Model(database, Relation("s", "t"), np.int32(2)).mst_key) is int
    for wrong in ("7", 7.0, None):
        with pytest.raises(InvalidParameter, match=r"run_id must be a whole number of 1 or more. Received: ('?7|None)"):
            Run(database, wrong)


def test_values_of_numpy_are_values_of_python():
    when = datetime(2020, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 -- as NumPy has it
    for value, expected in ((np.float64(1.5), 1.5), (np.int64(7), 7), (np.bool_(True), True), (np.str_("a"), "a"),
                            (np.datetime64(when, "ns"), when), ("b", "b"), (None, None)):  # fmt: skip
        assert scalar(value) == expected and type(scalar(value)) is type(expected)


@pytest.mark.parametrize("driver", [psycopg2, psycopg])
def test_an_error_of_the_driver_itself_is_no_lost_connection(driver):
    for error in (driver.ProgrammingError("can't adapt type 'x'\nLINE 1"), driver.DataError("too large")):
        found = of_server(error)
        assert isinstance(found, InvalidParameter) and str(error).splitlines()[0] in str(found)
        assert "LINE" not in str(found)
    for error in (driver.OperationalError("server closed"), driver.InterfaceError("closed"), driver.DatabaseError("x")):
        assert isinstance(of_server(error), NotReady) and "was lost" in str(of_server(error))


def test_weights_that_are_cut_are_one_clear_error(monkeypatch, keras):
    network = {"class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 3]}},
        {"class_name": "Dense", "config": {"units": 2}},
    ]}}  # fmt: skip
    model = Model(Database(ClientSessions(make_engine("dbname=x"), {})), Relation("s", "t"), 1)
    weights = np.arange(8, dtype=np.float32).tobytes()

    def stored(data):
        return json.dumps(network), ModelWeights([len(data)], lambda _: data, None, None)

    monkeypatch.setattr(Model, "_stored", lambda self: stored(weights))
    assert model.to_keras().get_weights()[1].tolist() == [6, 7]
    for damaged in (weights[:-4], weights[:-1], weights + b"0000"):
        monkeypatch.setattr(Model, "_stored", lambda self, damaged=damaged: stored(damaged))
        with pytest.raises(NotReady, match="its architecture needs 32"):
            model.to_keras()


def test_weights_in_a_view_that_says_any_size_take_no_memory(monkeypatch):
    """Its parts need not be stored: the view can make them while they are read."""
    network = {"class_name": "Sequential", "config": {"layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 1_000_000]}},
        {"class_name": "Dense", "config": {"units": 1_000_000}},
    ]}}  # fmt: skip
    model = Model(Database(ClientSessions(make_engine("dbname=x"), {})), Relation("s", "t"), 1)
    lengths = [4_000_004_000_000 >> 1] * 2
    stored = json.dumps(network), ModelWeights(lengths, lambda _: pytest.fail("it was read"), None, None)
    monkeypatch.setattr(Model, "_stored", lambda self: stored)
    monkeypatch.setattr("madlib_mop.imports.loading.build_architecture", lambda *_: pytest.fail("it was built"))
    with pytest.raises(InvalidParameter, match="more than half of the memory"):
        model.to_keras()


def test_the_public_names_are_there():
    assert all(getattr(madlib_mop.client, name) for name in madlib_mop.client.__all__)
    with pytest.raises(AttributeError):
        madlib_mop.client.HopperTransformer  # noqa: B018
