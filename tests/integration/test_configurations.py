"""load_model_selection_table and generate_model_configs, called from SQL."""

from contextlib import closing

import pytest

from tests.helpers.sessions import undone
from tests.integration.test_architectures import Loader

pytestmark = pytest.mark.one_session

COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.1)', metrics=['accuracy']"
REORDERED = "  metrics=['accuracy'] ,optimizer = 'adam(learning_rate=0.1)', loss='categorical_crossentropy'"
SLOWER = COMPILE.replace("0.1", "0.01")
GRID = """{'loss': ['categorical_crossentropy'], 'metrics': ['categorical_accuracy'],
           'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.0001, 0.1, 1]}]}"""
RANGES = GRID.replace("0.1, 1]", "0.1, 'log']")
FIT_GRID = "{'batch_size': [8, 32], 'epochs': [4]}"


@pytest.fixture(scope="module")
def loaded(db):
    """Two tables of architectures."""
    with closing(db.connect()) as connection:
        for table in ("arch", "arch", "arch2"):
            Loader(connection).load(table)
    return db


@pytest.fixture
def session(loaded):
    with undone(loaded, Loader) as session:
        yield session


def load(session, ids=(1, 2), compile_list=(COMPILE, SLOWER), fit_list=("batch_size=5", "batch_size=10"), **others):
    names = "".join(f", {name} => %s" for name in others)
    session.rows(
        f"SELECT madlib.load_model_selection_table('arch', 'mst', %s::integer[], %s::varchar[], %s::varchar[]{names})",
        list(ids), list(compile_list), list(fit_list), *others.values(),
    )  # fmt: skip


def generate(session, *more, arch="arch", ids=(1, 2), compile_grid=GRID, fit_grid=FIT_GRID):
    arguments = ", ".join(["%s"] * len(more))
    comma = ", " if more else ""
    session.rows(
        f"SELECT madlib.generate_model_configs(%s, 'mst', %s::integer[], %s, %s{comma}{arguments})",
        arch, list(ids), compile_grid, fit_grid, *more,
    )  # fmt: skip


def refused(session, call, *args, **kwargs):
    """Return SQLSTATE and message of a call that must fail."""
    error = session.refused(call, session, *args, **kwargs)
    return error.sqlstate, error.message


def test_every_combination_is_there_once_in_order(session):
    load(session)
    assert session.rows("SELECT * FROM mst ORDER BY mst_key") == [
        (key, model_id, compile_params, fit_params)
        for key, (model_id, compile_params, fit_params) in enumerate(
            ((m, c, f) for m in (1, 2) for c in (COMPILE, SLOWER) for f in ("batch_size=5", "batch_size=10")), 1
        )
    ]


def test_tables_have_the_documented_columns(session):
    load(session)
    assert session.columns("mst") == [
        ("mst_key", "integer"),
        ("model_id", "integer"),
        ("compile_params", "character varying"),
        ("fit_params", "character varying"),
    ]
    assert session.columns("mst_summary") == [
        ("model_arch_table", "character varying"),
        ("object_table", "character varying"),
        ("qualified_names", "json"),
    ]
    assert session.rows("SELECT model_arch_table, object_table FROM mst_summary") == [("arch", None)]
    unique = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'mst'::regclass AND contype = 'u'"
    assert session.rows(unique) == [("UNIQUE (model_id, compile_params, fit_params)",)]
    assert session.value("SELECT pg_get_serial_sequence('mst', 'mst_key')") == "public.mst_mst_key_seq"


def test_duplicates_are_dropped_whatever_their_order_and_spacing(session):
    load(session, (2, 1, 1, 2), (COMPILE, REORDERED, SLOWER), ("batch_size=5, epochs=1", "epochs=1,batch_size=5 ", ""))
    found = session.rows("SELECT model_id, compile_params, fit_params FROM mst ORDER BY mst_key")
    assert found == [(m, c, f) for m in (1, 2) for c in (COMPILE, SLOWER) for f in ("batch_size=5, epochs=1", "")]


def test_null_fit_params_are_stored_as_empty_text(session):
    load(session, (1,), (COMPILE,), (None,))
    assert session.rows("SELECT fit_params FROM mst") == [("",)]


@pytest.mark.parametrize(
    "arguments,sqlstate,message",
    [
        ({"ids": [1, 9]}, "22023", "model_id_list: public.arch has no model_id 9"),
        ({"ids": []}, "22023", "model_id_list must be an array"),
        ({"ids": [None]}, "22023", "model_id_list must be an array"),
        ({"compile_list": []}, "22023", "compile_params_list must be an array"),
        ({"fit_list": []}, "22023", "fit_params_list must be an array"),
        ({"compile_list": [COMPILE, "foo='bar'"]}, "22023", "compile_params_list[2]: compile_params: there is no"),
        ({"compile_list": [None]}, "22023", "compile_params_list[1]: compile_params is missing"),
        ({"compile_list": ["loss="]}, "22P02", "compile_params_list[1]: compile_params cannot be read"),
        ({"fit_list": ["", "batch_size='bar'"]}, "22023", "fit_params_list[2]: fit_params: batch_size must be"),
        ({"object_table": "none"}, "42P01", "object_table does not exist"),
        ({"object_table": "madlib.none"}, "22023", "a name without a schema"),
    ],
)
def test_errors_of_loading_name_what_is_wrong(session, arguments, sqlstate, message):
    found = refused(session, load, **arguments)
    assert found[0] == sqlstate and message in found[1] and found[1].startswith("load_model_selection_table: ")
    assert session.value("SELECT to_regclass('mst')") is None


def test_errors_about_tables(session):
    def called(arch, mst):
        return session.refusal(
            "SELECT madlib.load_model_selection_table(%s, %s, '{1}'::integer[], %s::varchar[], '{\"\"}'::varchar[])",
            arch, mst, [COMPILE],
        )[0]  # fmt: skip

    assert called("nothing", "mst") == "42P01"
    assert called(None, "mst") == "22023"
    assert called("arch", None) == "22023"
    assert called("arch", "x" * 60) == "22023"
    session.rows("CREATE TABLE plain (model_id integer); CREATE TABLE taken_summary ()")
    assert called("plain", "mst") == "42703"
    assert called("arch", "plain") == "42P07"
    assert called("arch", "taken") == "42P07"


def test_custom_functions_of_a_superusers_object_table_are_known(session):
    session.rows("CREATE TABLE madlib.mine (id serial, name text PRIMARY KEY, description text, object bytea)")
    session.rows("INSERT INTO madlib.mine (name) VALUES ('my_loss'), ('Top-3')")
    text = "loss='my_loss', optimizer='adam', metrics=['Top-3']"
    load(session, (1,), (text,), ("",), object_table="mine")
    assert session.rows("SELECT model_arch_table, object_table FROM mst_summary") == [("arch", "madlib.mine")]
    assert session.rows("SELECT compile_params FROM mst") == [(text,)]
    session.rows("DROP TABLE mst, mst_summary")
    assert "'my_loss'" in refused(session, load, (1,), (text,), ("",))[1]
    session.rows("CREATE ROLE somebody; ALTER TABLE madlib.mine OWNER TO somebody")
    assert refused(session, load, (1,), (text,), ("",), object_table="mine")[0] == "42501"


def test_tensorboard_is_taken_with_a_notice_that_names_the_command_that_writes_its_files(session):
    text = "callbacks=[TensorBoard(log_dir='/tmp/x')]"
    load(session, (1,), (COMPILE,), (text,))
    assert session.rows("SELECT fit_params FROM mst") == [(text,)]
    told = [notice for notice in session.connection.notices if "TensorBoard has no effect" in notice]
    assert len(told) == 1 and told[0].startswith("NOTICE") and "madlib-mop tensorboard RUN DIR" in told[0]


def test_grid_search_fills_a_table(session):
    generate(session)
    assert session.value("SELECT count(*) FROM mst") == 24
    assert session.rows("SELECT model_arch_table, object_table FROM mst_summary") == [("arch", None)]
    assert session.rows("SELECT model_id, compile_params, fit_params FROM mst ORDER BY mst_key LIMIT 1") == [
        (1, "optimizer='Adam(lr=0.0001)',loss='categorical_crossentropy',metrics=['categorical_accuracy']",
         "batch_size=8,epochs=4"),
    ]  # fmt: skip
    generate(session)
    assert session.value("SELECT count(*) FROM mst") == 24


def test_random_search_appends_and_restores_a_lost_summary(session):
    generate(session, "random", 8, ids=(1,), compile_grid=RANGES)
    session.rows("DROP TABLE mst_summary")
    generate(session, "rand", 7, 1, ids=(2,), compile_grid=RANGES)
    assert session.rows("SELECT model_arch_table, object_table FROM mst_summary") == [("arch", None)]
    generate(session, "Random", 12, compile_grid=RANGES, arch="public.arch")
    assert session.value("SELECT count(*) FROM mst") == 27
    assert session.rows("SELECT model_arch_table, object_table FROM mst_summary") == [("arch", None)]


def test_random_search_is_repeatable(session):
    tables = []
    for _ in range(2):
        generate(session, "random", 10, 42, compile_grid=RANGES)
        tables.append(session.rows("SELECT * FROM mst ORDER BY 1"))
        session.rows("DROP TABLE mst, mst_summary")
    assert tables[0] == tables[1]
    assert {row[1] for row in tables[0]} == {1, 2}


@pytest.mark.slow
def test_random_search_without_enough_configurations_says_so(session):
    generate(session, "random", 50, 1)
    assert session.value("SELECT count(*) FROM mst") == 24
    assert any("only 24 of 50" in notice for notice in session.connection.notices)


@pytest.mark.parametrize(
    "more,arguments,sqlstate,message",
    [
        ((), {"arch": "nothing"}, "42P01", "model_arch_table does not exist"),
        ((), {"ids": [-1, 2]}, "22023", "has no model_id -1"),
        ((), {"compile_grid": "{foo='bar'}"}, "22P02", "compile_params_grid cannot be read"),
        ((), {"compile_grid": None}, "22023", "compile_params_grid is missing"),
        ((), {"compile_grid": RANGES}, "22023", "used in random search"),
        ((), {"compile_grid": "{'loss': ['mse']}"}, "22023", "optimizer is required"),
        (
            (),
            {"compile_grid": GRID.replace("'lr'", "'rate'")},
            "22023",
            "compile_params_grid results in optimizer='Adam(rate",
        ),
        ((), {"fit_grid": "{'batch_size': [0]}"}, "22023", "fit_params_grid results in batch_size=0: "),
        (("grid", 5), {}, "22023", "num_configs must be NULL"),
        (("grid", None, 5), {}, "22023", "random_state must be NULL"),
        (("random",), {}, "22023", "num_configs must be a whole number of 1 or more"),
        (("random", 0), {}, "22023", "num_configs must be a whole number of 1 or more"),
        (("random", 5, -1), {}, "22023", "random_state must be"),
        (("bayes", 5), {}, "22023", "search_type must be 'grid' or 'random'"),
        ((None,), {}, "22023", "search_type must be 'grid' or 'random'"),
    ],
)
def test_errors_of_generating_name_what_is_wrong(session, more, arguments, sqlstate, message):
    found = refused(session, generate, *more, **arguments)
    assert found[0] == sqlstate and message in found[1] and found[1].startswith("generate_model_configs: ")


def test_a_table_of_another_architecture_table_is_not_appended_to(session):
    generate(session)
    state, message = refused(session, generate, arch="arch2", ids=(1,))
    assert state == "22023" and "was created from architecture table arch" in message
    session.rows("ALTER TABLE mst DROP COLUMN fit_params")
    assert refused(session, generate)[0] == "42703"


def test_a_table_made_by_load_is_appended_to(session):
    load(session)
    generate(session)
    assert session.value("SELECT count(*) FROM mst") == 8 + 24


@pytest.mark.parametrize("function", ["load_model_selection_table", "generate_model_configs"])
def test_help(session, function):
    short, long = (session.value(f"SELECT madlib.{function}({argument})") for argument in ("", "'usage'"))
    assert f"madlib.{function}" in short and "USAGE" not in short
    assert "USAGE" in long and "EXAMPLE" in long
