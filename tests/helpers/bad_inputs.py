"""Bad inputs to the hopper, among them damaged tables, with their errors; for test_bad_input_fit."""

from dataclasses import dataclass

from madlib_mop.schedule import SCHEDULES
from tests.helpers.no_gpu import HINT, NO_GPU
from tests.helpers.security.attacks import SOFTMAX
from tests.helpers.training import load_digits, pack

COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
LONG, N64, O56, E28 = "n" * 60, "n" * 64, "o" * 56, "é" * 28
DEEP = "[" * 3000 + "]" * 3000
TWO_OUTPUTS = """{"class_name": "Functional", "config": {"name": "two", "input_layers": [["in", 0, 0]],
    "output_layers": [["a", 0, 0], ["b", 0, 0]], "layers": [
    {"class_name": "InputLayer", "name": "in", "config": {"name": "in", "batch_input_shape": [null, 8, 8, 1]},
     "inbound_nodes": []},
    {"class_name": "Dense", "name": "a", "config": {"name": "a", "units": 10}, "inbound_nodes": [[["in", 0, 0, {}]]]},
    {"class_name": "Dense", "name": "b", "config": {"name": "b", "units": 10}, "inbound_nodes": [[["in", 0, 0, {}]]]}
    ]}}"""


@dataclass(frozen=True)
class Case:
    """A call that must be rejected.

    Attributes
    ----------
    sqlstate : str
    message : str
        Start of the message, after the function's name.
    hint : str
        A part of the hint.
    arguments : dict
        Arguments that differ from those of a valid call.
    """

    sqlstate: str
    message: str
    hint: str
    arguments: dict

    def __str__(self):
        return " ".join(f"{name}={value!r:.40}" for name, value in self.arguments.items())


def case(sqlstate: str, message: str, hint: str, **arguments) -> Case:
    """Return a case."""
    return Case(sqlstate, message, hint, arguments)


VARIANTS = {  # variant of a packed table -> the SELECT from the valid one and the content of its summary
    "no_buffer_id": ("SELECT __dist_key__, x, y, x_shape, y_shape FROM train", ""),
    "no_shape": ("SELECT __dist_key__, x, y, y_shape, buffer_id FROM train", ""),
    "text_x": ("SELECT __dist_key__, 'x'::text AS x, y, x_shape, y_shape, buffer_id FROM train", ""),
    "text_key": ("SELECT 'a'::text AS __dist_key__, x, y, x_shape, y_shape, buffer_id FROM train", ""),
    "null_key": ("SELECT NULL::int AS __dist_key__, x, y, x_shape, y_shape, buffer_id FROM train", ""),
    "null_x": ("SELECT __dist_key__, NULL::bytea AS x, y, x_shape, y_shape, buffer_id FROM train", ""),
    "no_rows": ("SELECT * FROM train WHERE false", ""),
    "no_names": ("SELECT * FROM train", "independent_varname = '{}'"),
    "null_names": ("SELECT * FROM train", "dependent_varname = NULL"),
    "null_const": ("SELECT * FROM train", "normalizing_const = NULL"),
    "two_rows": ("SELECT * FROM train", ""),
    "other_const": ("SELECT * FROM train", "normalizing_const = 255"),
    "other_classes": ("SELECT * FROM train", "y_class_values = '{1,2}', num_classes = '{2}'"),
    "other_shape": ("SELECT __dist_key__, x, y, '{20,64}'::int[] AS x_shape, y_shape, buffer_id FROM train", ""),
    "other_inputs": ("SELECT * FROM train", "independent_varname = '{x,x}'"),
    "nan_x": (  # the 321st number, in row 5
        "SELECT __dist_key__, set_byte(set_byte(x, 1282, 192), 1283, 127) AS x, y, x_shape, y_shape, buffer_id"
        " FROM train",
        "",
    ),
    "ragged": (
        "SELECT __dist_key__, x, y, CASE WHEN buffer_id = 0 THEN x_shape ELSE ARRAY[x_shape[1], 64] END AS x_shape,"
        " y_shape, buffer_id FROM train",
        "",
    ),
}  # fmt: skip
SELECTIONS = {  # variant of a model selection table -> its rows: mst_key, model_id, compile_params, fit_params
    "mst": [(1, 1, COMPILE, "batch_size=8, epochs=1")],
    "mst_empty": [],
    "mst_unknown_model": [(1, 99, COMPILE, "")],
    "mst_null_model": [(1, None, COMPILE, "")],
    "mst_three_units": [(1, 8, COMPILE, "")],
    "mst_other_input": [(1, 1, COMPILE, ""), (2, 6, COMPILE, "")],
    "mst_two_outputs": [(1, 7, COMPILE, "")],
    "mst_null_key": [(None, 1, COMPILE, "")],
    "mst_negative": [(-3, 1, COMPILE, "")],
    "mst_twice": [(1, 1, COMPILE, ""), (1, 1, COMPILE, "epochs=2")],
    "mst_compile": [(5, 1, "loss='mse', optimizer=Adam(lr=", "")],
    "mst_no_compile": [(5, 1, None, "")],
    "mst_loss": [(5, 1, "loss='nothing', optimizer='Adam()'", "")],
    "mst_sparse": [(5, 1, "loss='sparse_categorical_crossentropy', optimizer='Adam()'", "")],
    "mst_fit": [(5, 1, COMPILE, "batch_size=0")],
    "mst_fit_name": [(5, 1, COMPILE, "batchsize=8")],
    "mst_scalar_arch": [(5, 2, COMPILE, "")],
    "mst_null_arch": [(5, 3, COMPILE, "")],
    "mst_deep_arch": [(5, 4, COMPILE, "")],
    "mst_arch_twice": [(5, 5, COMPILE, "")],
}
MORE = f"""
    INSERT INTO two_rows_summary TABLE train_summary;
    CREATE TABLE {LONG} AS TABLE train; CREATE SEQUENCE counter;
    CREATE TABLE taken (a int); CREATE TABLE taken_i_info (a int); CREATE TABLE taken_s_summary (a int);
    CREATE TABLE half (mst_key int, model_weights bytea, model_arch json, __dist_key__ int);
    CREATE TABLE half_info (a int);
    CREATE TABLE arch (model_id integer, model_arch json, model_weights bytea);
    INSERT INTO arch VALUES (2, '7', NULL), (3, NULL, NULL), (5, '{{}}', NULL), (5, '{{}}', NULL);
"""
CASES = [
    case("22023", "source_table is missing. Received: NULL", "name of a table", source_table=None),
    case("22023", "source_table is missing. Received: ' '", "name of a table", source_table=" "),
    case("42P01", "source_table does not exist. Received: 'nowhere'", "search_path", source_table="nowhere"),
    case(
        "42P01", "source_table does not exist. Received: 'nowhere.train'",
        "search_path", source_table="nowhere.train",
    ),
    case(
        "42P01", "source_table does not exist. Received: '\"Train\"'",
        "folded to lower case", source_table="\"Train\"",
    ),
    case("22P02", "source_table cannot be read. Received: 'a.b.c'", "schema.name", source_table="a.b.c"),
    case(
        "22P02", "source_table cannot be read. Received: 'train; DROP",
        "schema", source_table="train; DROP TABLE train",
    ),
    case("22023", f"source_table: '{N64}' is longer than 63 bytes", "63 bytes", source_table="n" * 64),
    case("22023", "source_table is neither a table nor a view. Received: 'counter'", "view", source_table="counter"),
    case("42P01", "source_table: table public.train_rows is not packed", "Pack the data", source_table="train_rows"),
    case("42703", "source_table: public.mst_summary has no column 'dependent_varname'", "Pack", source_table="mst"),
    case("22023", f"table: '{LONG}_summary' is longer than 63 bytes", "63 bytes", source_table=LONG),
    case(
        "42703", "source_table: table public.no_buffer_id has no column 'buffer_id'",
        "Pack", source_table="no_buffer_id",
    ),
    case("42703", "source_table: table public.no_shape has no column 'x_shape'", "Pack", source_table="no_shape"),
    case(
        "22023", "source_table: column 'x' of public.text_x must be of type bytea. Received: text",
        "Pack", source_table="text_x",
    ),
    case(
        "22023", "source_table: column '__dist_key__' of public.text_key must be of type integer. Received: text",
        "Pack", source_table="text_key",
    ),
    case(
        "22023", "source_table: public.null_key has rows where __dist_key__ is NULL",
        "Pack", source_table="null_key",
    ),
    case(
        "22023", "source_table: public.null_x has rows where a packed column is NULL",
        "Pack", source_table="null_x",
    ),
    case(
        "22023", "source_table: packed table public.no_rows has no rows. Received: 'no_rows'",
        "Pack", source_table="no_rows",
    ),
    case(
        "22023", "source_table: public.no_names_summary has no value for independent_varname. Received: []",
        "Pack", source_table="no_names",
    ),
    case(
        "22023", "source_table: public.null_names_summary has no value for dependent_varname. Received: NULL",
        "Pack", source_table="null_names",
    ),
    case(
        "22023", "source_table: public.null_const_summary has no value for normalizing_const. Received: NULL",
        "Pack", source_table="null_const",
    ),
    case(
        "22023", "source_table: public.two_rows_summary must have one row; it has 2",
        "Pack", source_table="two_rows",
    ),
    case("22023", "model_output_table is missing. Received: NULL", "name", model_output_table=None),
    case("22P02", "model_output_table cannot be read. Received: 'x.y.z'", "schema.name", model_output_table="x.y.z"),
    case(
        "22023", "model_output_table: there is no schema 'nowhere'",
        "Create it first", model_output_table="nowhere.out",
    ),
    case(
        "42P07", "model_output_table: table public.taken exists already. Received: 'taken'",
        "Drop it", model_output_table="taken",
    ),
    case(
        "42P07", "model_output_table: table public.taken_i_info exists already. Received: 'taken_i'",
        "Drop it", model_output_table="taken_i",
    ),
    case(
        "42P07", "model_output_table: table public.taken_s_summary exists already. Received: 'taken_s'",
        "Drop it", model_output_table="taken_s",
    ),
    case(
        "42P07", "model_output_table: tables public.train and public.train_summary exist already. Received: 'train'",
        "Drop them", model_output_table="train",
    ),
    case(
        "22023", f"model_output_table: '{O56}_summary' would be longer than 63 bytes",
        "shorter", model_output_table="o" * 56,
    ),
    case(
        "22023", f"model_output_table: '{E28}_summary' would be longer than 63 bytes",
        "shorter", model_output_table="é" * 28,
    ),
    case("22023", "model_selection_table is missing. Received: NULL", "name of a table", model_selection_table=None),
    case(
        "42P01", "model_selection_table does not exist. Received: 'nowhere'",
        "search_path", model_selection_table="nowhere",
    ),
    case(
        "42703", "model_selection_table: table public.valid_rows has no column 'mst_key'",
        "load_model_selection_table", model_selection_table="valid_rows",
    ),
    case(
        "42P01", "model_selection_table: public.mst_lonely has no mst_lonely_summary",
        "load_model_selection_table", model_selection_table="mst_lonely",
    ),
    case("22023", "model_selection_table: public.mst_empty has no rows", "Load", model_selection_table="mst_empty"),
    case("42P01", "model_arch_table does not exist. Received: 'gone'", "schema", model_selection_table="mst_no_arch"),
    case(
        "42703", "model_arch_table: table public.train has no column 'model_id'",
        "load_keras_model", model_selection_table="mst_odd_arch",
    ),
    case(
        "22023", "model_arch_table: public.arch must have one row for each model_id",
        "load_keras_model", model_selection_table="mst_unknown_model",
    ),
    case(
        "22023", "model_arch_table: public.arch must have one row for each model_id",
        "load_keras_model", model_selection_table="mst_arch_twice",
    ),
    case(
        "22023",
        "model_selection_table: mst_key must be 0 or more, and model_id not NULL. Received: mst_key 1,"
        " model_id None",
        "Create it", model_selection_table="mst_null_model",
    ),
    case(
        "22023", "model_selection_table: mst_key must be 0 or more, and model_id not NULL. Received: mst_key None",
        "Create it", model_selection_table="mst_null_key",
    ),
    case(
        "22023", "model_selection_table: mst_key must be 0 or more, and model_id not NULL. Received: mst_key -3",
        "Create it", model_selection_table="mst_negative",
    ),
    case(
        "22023", "model_selection_table: mst_key must be unique in public.mst_twice. Received twice: 1",
        "Create it", model_selection_table="mst_twice",
    ),
    case("22P02", "model_selection_table: mst_key 5: compile_params", "", model_selection_table="mst_compile"),
    case(
        "22023", "model_selection_table: mst_key 5: compile_params",
        "loss=", model_selection_table="mst_no_compile",
    ),
    case("22023", "model_selection_table: mst_key 5: ", "", model_selection_table="mst_loss"),
    case("22023", "model_selection_table: mst_key 5: ", "categorical", model_selection_table="mst_sparse"),
    case("22023", "model_selection_table: mst_key 5: ", "", model_selection_table="mst_fit"),
    case("22023", "model_selection_table: mst_key 5: ", "batch_size", model_selection_table="mst_fit_name"),
    case("22P02", "model_arch_table: model_id 2: ", "", model_selection_table="mst_scalar_arch"),
    case("22P02", "model_arch_table: model_id 3: ", "", model_selection_table="mst_null_arch"),
    case("22P02", "model_arch_table: model_id 4: ", "", model_selection_table="mst_deep_arch"),
    case("22023", "num_iterations must be at least 1. Received: NULL", "number", num_iterations=None),
    case("22023", "num_iterations must be at least 1. Received: 0", "number", num_iterations=0),
    case("22023", "num_iterations must be at least 1. Received: -7", "number", num_iterations=-7),
    case("0A000", f"use_gpus => true: {NO_GPU}", HINT, use_gpus=True),
    case(
        "22023", "model_arch_table: model_id 8: the architecture's output has 3 units, but column 'y' of public.train"
        " has 10 classes", "num_classes", model_selection_table="mst_three_units",
    ),
    case(
        "22023", "model_arch_table: model_id 6: the architecture's input takes rows of the shape [7, 8, 1], but column"
        " 'x' of public.train has [8, 8, 1]", "input shape", model_selection_table="mst_other_input",
    ),
    case(
        "22023", "model_arch_table: model_id 7: the architecture has 2 output(s), but public.train has 1 output"
        " column(s)", "dependent_varname", model_selection_table="mst_two_outputs",
    ),
    case("42P01", "validation_table does not exist. Received: 'nowhere'", "search_path", validation_table="nowhere"),
    case("42P01", "validation_table: table public.valid_rows is not packed", "Pack", validation_table="valid_rows"),
    case(
        "22023",
        "validation_table: its normalizing_const differs from that of source_table. Received: 255.0,"
        " expected: 16.0",
        "validation_preprocessor_dl", validation_table="other_const",
    ),
    case(
        "22023",
        "validation_table: its list of class values differs from that of source_table. Received: {1,2},"
        " expected: {0,1,2,3,4,5,6,7,8,9}",
        "validation_preprocessor_dl", validation_table="other_classes",
    ),
    case(
        "22023",
        "validation_table: its shape of a row differs from that of source_table. Received: [[64], [10]],"
        " expected: [[8, 8, 1], [10]]",
        "validation_preprocessor_dl", validation_table="other_shape",
    ),
    case(
        "22023", "validation_table: its number of inputs differs from that of source_table. Received: 2, expected: 1",
        "validation_preprocessor_dl", validation_table="other_inputs",
    ),
    case(
        "22023", "metrics_compute_frequency must be from 1 to num_iterations (2). Received: 0",
        "Omit it", metrics_compute_frequency=0,
    ),
    case(
        "22023", "metrics_compute_frequency must be from 1 to num_iterations (2). Received: 3",
        "Omit it", metrics_compute_frequency=3,
    ),
    case(
        "22023", "metrics_compute_frequency must be from 1 to num_iterations (2). Received: -1",
        "Omit it", metrics_compute_frequency=-1,
    ),
    case(
        "22023", f"schedule must be one of {', '.join(SCHEDULES)}. Received: 'fastest'",
        "If you omit it", schedule="fastest",
    ),
    case("22023", "seed must be from 0 to 2147483647. Received: -1", "If you omit it", seed=-1),
    case("22023", "max_seconds must be a number above 0. Received: 0", "without a limit", max_seconds=0),
    case("22023", "max_seconds must be a number above 0. Received: -0.5", "without a limit", max_seconds=-0.5),
    case("22023", "max_seconds must be a number above 0. Received: NaN", "without a limit", max_seconds="NaN"),
    case("22023", "max_seconds must be a number above 0. Received: Infinity", "Omit it", max_seconds="Infinity"),
    case("22023", "copies must be at least 1. Received: 0", "keep the newest two", copies=0),
    case("22023", "copies must be at least 1. Received: NULL", "keep the newest two", copies=None),
    case("22023", "checkpoint_every must be at least 1. Received: 0", "the last iteration", checkpoint_every=0),
    case("22023", "checkpoint_every must be at least 1. Received: -2", "the last iteration", checkpoint_every=-2),
    case("42P01", "model_output_table does not exist. Received: 'never'", "search_path", warm_start=True),
    case(
        "42P01", "model_output_table: warm_start needs a table that",
        "Pass the name", warm_start=True, model_output_table="taken",
    ),
    case(
        "22023", "model_output_table: a warm start cannot write its results into public.half_info, which has different",
        "Omit warm_start", warm_start=True, model_output_table="half",
    ),
]  # fmt: skip


def write_tables(db) -> None:
    """Write a valid table, ``train``, with configurations, ``mst``, and all damaged ones."""
    load_digits(db, 40, 20)
    pack(db, 1, buffer_size=20)
    connection = db.connect()
    with connection.cursor() as cursor:
        for name, (select, change) in VARIANTS.items():
            cursor.execute(f"CREATE TABLE {name} AS {select}; CREATE TABLE {name}_summary AS TABLE train_summary")
            if change:
                cursor.execute(f"UPDATE {name}_summary SET {change}")
        cursor.execute(MORE)
        cursor.execute("INSERT INTO arch VALUES (1, %s, NULL), (4, %s, NULL)", [SOFTMAX, DEEP])
        unfit = SOFTMAX.replace(": 10", ": 3"), SOFTMAX.replace("[null, 8, 8, 1]", "[null, 7, 8, 1]"), TWO_OUTPUTS
        cursor.execute("INSERT INTO arch VALUES (8, %s, NULL), (6, %s, NULL), (7, %s, NULL)", unfit)
        selections = SELECTIONS | dict.fromkeys(("mst_no_arch", "mst_odd_arch", "mst_lonely"), SELECTIONS["mst"])
        for name, rows in selections.items():
            arch = {"mst_no_arch": "gone", "mst_odd_arch": "train"}.get(name, "arch")
            cursor.execute(f"CREATE TABLE {name} (mst_key int, model_id int, compile_params text, fit_params text)")
            for row in rows:
                cursor.execute(f"INSERT INTO {name} VALUES (%s, %s, %s, %s)", row)
            cursor.execute(f"CREATE TABLE {name}_summary (model_arch_table text, object_table text)")
            cursor.execute(f"INSERT INTO {name}_summary VALUES (%s, NULL)", [arch])
        cursor.execute("DROP TABLE mst_lonely_summary")
    connection.close()
