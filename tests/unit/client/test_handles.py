"""The handles of the client without a server: secrets, progress, classes."""

import copy
import pickle
import sys
import types
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec

import pytest
from sqlalchemy import create_engine

import madlib_mop.client
from madlib_mop.catalog.live.facts import ModelLine, RunNow, RunStatus
from madlib_mop.client.calling import sessions
from madlib_mop.client.calling.sessions import Sessions, check_settings, make_engine
from madlib_mop.client.database import Database, connect
from madlib_mop.client.frames.classes import class_of
from madlib_mop.client.progress import html_of, reporter_of
from madlib_mop.client.targets import Target, value_of_json
from madlib_mop.errors import InvalidParameter, NotReady, Unsupported

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
    database = Database(Sessions(engine, {}))
    assert SECRET not in repr(engine) + repr(engine.url) + repr(database) + repr(vars(database))
    with pytest.raises(NotReady) as raised:
        connect(dsn)
    assert SECRET not in str(raised.value) + repr(raised.value) + "".join(raised.value.__notes__)
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


@pytest.mark.parametrize("dsn", [f"password {SECRET}", f"postgresql://[{SECRET}", f"postgresql+nothing://a:{SECRET}@b/c"])
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn):
    with pytest.raises(InvalidParameter, match="DSN cannot be read") as raised:
        connect(dsn)
    assert SECRET not in str(raised.value)


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
    database = Database(Sessions(make_engine("dbname=x"), {}))
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
        ("3", "smallint", 3), ("2.5", "numeric", 2.5), ("2", "numeric", 2), ("t", "boolean", True),
        ("false", "boolean", False), ("3", "text", "3"), (None, "text", None),
    ],
)  # fmt: skip
def test_a_class_has_the_type_of_its_column(text, sql_type, value):
    found = class_of(text, sql_type)
    assert found == value and type(found) is type(value)


def test_of_several_outputs_each_gets_its_best_class_or_its_number():
    kind = Target("kind", "text", ("a", None), ("a", None))
    size = Target("size", "double precision", None, None)
    row = {"kind": {"a": 0.2, "NULL": 0.8}, "size": 3.5}
    assert value_of_json(kind, row) is None
    assert value_of_json(size, row) == 3.5


def test_the_public_names_are_there():
    assert all(getattr(madlib_mop.client, name) for name in madlib_mop.client.__all__)
    with pytest.raises(AttributeError):
        madlib_mop.client.HopperTransformer  # noqa: B018
