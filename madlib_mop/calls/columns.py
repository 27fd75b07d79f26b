"""The functions that pack ordinary tables, column by column, and propose networks for them."""

from dataclasses import replace

from madlib_mop.calls.argument import Argument, Function, OneOf, Whole, WithoutNull
from madlib_mop.calls.packing import BUFFER_SIZE, RULES
from madlib_mop.calls.shared import SEED_CHECK

_SOURCE = Argument("source_table", "varchar", "table or view of ordinary columns; each row is an example")
_DEPENDENT = Argument("dependent", "varchar", "column to predict, or several columns, separated by commas")
_EXCLUDE = Argument(
    "exclude", "varchar[]", "columns to ignore", default=None, check=WithoutNull("Leave it out, or name a column.")
)
_TASK = Argument(
    "task", "text",
    "'classification' or 'regression'; NULL: texts, booleans and numbers with few values are classes, other numbers"
    " are not",
    default=None,
    check=OneOf(("classification", "regression"), None, "If you leave it out, the columns' types and values decide."),
)  # fmt: skip
_PACKED = Argument("packed_table", "varchar", "packed table, made by pack_columns")
_PACKED_OR_MODELS = replace(_PACKED, help="packed table, made by pack_columns; or a table of models trained on one")

PROPOSE = Function(
    "propose_columns",
    "Write an editable table with a row for each column: what pack_columns would do with it, and why.",
    (_SOURCE, Argument("output_table", "varchar", "table to create"), _DEPENDENT, _EXCLUDE, _TASK),
    schema="madlib_mop",
    comments=(
        "Writes an editable table with a row for each column of a table: what pack_columns would do with it, and why",
    ),
)
PACK = Function(
    "pack_columns",
    "Pack an ordinary table: numbers, categories, dates, texts, vectors and images become inputs of networks.",
    (
        _SOURCE,
        Argument(
            "output_table", "varchar",
            "packed table to create, with its _summary; tables for validation and test rows have names that end in"
            " _validation and _test",
        ),
        _DEPENDENT,
        Argument(
            "validation", "double precision",
            "rows to keep for validation: a share such as 0.2, 'last 20% by COLUMN', '20% by group COLUMN', or the name"
            " of a boolean column; NULL: none",
            default=None, other_types=("text",),
        ),
        Argument(
            "columns", "varchar",
            "table made by propose_columns, with your edits; NULL: the proposal without edits", default=None,
        ),
        replace(_EXCLUDE, help="columns to ignore; with columns, set their role to ignored instead"),
        Argument(
            "seed", "integer",
            "seed of the order of rows and of the rows that are held out; NULL: drawn at random, printed and recorded",
            default=None, check=SEED_CHECK,
        ),
        BUFFER_SIZE,
        RULES,
        _TASK,
        Argument(
            "replace", "boolean",
            "whether a packed table of this name, with all that belongs to it, is replaced",
            default=False,
        ),
        Argument(
            "test", "double precision",
            "share of the rows, such as 0.1, to hold out for a test, chosen as for validation; NULL: none",
            default=None,
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Packs an ordinary table for training: numbers, categories, dates and texts are encoded; validation: a share"
        " of the rows",
        "Packs an ordinary table for training; validation: 'last 20% by <column>', '20% by group <column>', or a"
        " boolean column",
    ),
)  # fmt: skip
DESCRIBE = Function(
    "describe_preprocessor",
    "Describe how each column of a packed table's source is encoded, and with which statistics.",
    (_PACKED_OR_MODELS,),
    schema="madlib_mop",
    comments=("How each column of a packed table's source is encoded, and by which statistics",),
    returns=(
        "TABLE (column_name text, sql_type text, role text, kind text, inputs text[], encoding text, nulls text,"
        " units text[])"
    ),
)
TRANSFORM = Function(
    "transform",
    "Write the rows of an ordinary table to a new table, encoded as for a network.",
    (
        _PACKED_OR_MODELS,
        Argument(
            "source_table",
            "varchar",
            "table or view with the input columns of training; the columns to predict are optional",
        ),
        Argument("output_table", "varchar", "table to create; it has one row for each row of source_table"),
        Argument(
            "keep",
            "varchar",
            "columns of source_table to copy, such as its key, separated by commas",
            default=None,
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Encodes each row of a table by the preprocessor of a packed table, and writes a table with one column for"
        " each unit",
    ),
    settings=("extra_float_digits = 1",),
)
NETWORKS = Function(
    "propose_networks",
    "Write architectures that fit a packed table, and a model selection table of configurations to train.",
    (
        _PACKED,
        Argument("arch_table", "varchar", "table to create, with the architectures"),
        Argument("configs_table", "varchar", "model selection table to create, with its _summary"),
        Argument(
            "n_configs", "integer",
            "number of configurations; the first one is the most robust, the second one the linear model",
            default=16, check=Whole(1, 1000, is_needed=True),
        ),
        Argument(
            "num_iterations", "integer",
            "number of iterations that you will train; learning rates fall until the last one", default=10,
            check=Whole(1, 1_000_000, is_needed=True),
        ),
        Argument(
            "seed", "integer",
            "seed of the random values in configurations; the same seed gives the same values", default=1,
            check=replace(SEED_CHECK, hint=None, is_needed=True),
        ),
        Argument(
            "replace", "boolean", "whether tables of an earlier call with these names are replaced", default=False
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Writes architectures for the inputs and targets of a packed table, and a model selection table of"
        " configurations",
    ),
)  # fmt: skip
SEARCH = Function(
    "propose_search",
    "Return what madlib_keras_automl needs to search over proposed networks: ids of architectures and two grids.",
    (_PACKED, Argument("arch_table", "varchar", "table of architectures, made by propose_networks")),
    schema="madlib_mop",
    comments=(
        "The architectures and grids with which madlib_keras_automl searches over the networks of propose_networks",
    ),
    returns="TABLE (model_id_list integer[], compile_params_grid text, fit_params_grid text)",
)

FUNCTIONS = (PROPOSE, PACK, DESCRIBE, TRANSFORM, NETWORKS, SEARCH)
