"""The functions that pack ordinary tables, column by column, and propose networks for them."""

from madlib_mop.calls.argument import Argument, Function
from madlib_mop.calls.checks import Whole
from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.calls.packing import BUFFER_SIZE, RULES
from madlib_mop.calls.shared import SEED_CHECK

_SOURCE = Argument("source_table", "varchar", "table or view of ordinary columns; each row is an example")
_DEPENDENT = Argument("dependent", "varchar", "column to predict, or columns, with commas")
_EXCLUDE = Argument("exclude", "varchar[]", "columns to ignore", default=None)
_PACKED = Argument("packed_table", "varchar", "packed by pack_columns, or models that were trained on such a table")

PROPOSE = Function(
    "propose_columns",
    "Write an editable table with a row for each column: what pack_columns would do with it, and why.",
    (_SOURCE, Argument("output_table", "varchar", "table to create"), _DEPENDENT, _EXCLUDE),
    schema="madlib_mop",
)
PACK = Function(
    "pack_columns",
    "Pack an ordinary table: numbers, categories, dates, texts and vectors become the inputs of networks.",
    (
        _SOURCE,
        Argument("output_table", "varchar", "packed table to create, with its _summary, and _validation"),
        _DEPENDENT,
        Argument(
            "validation", "double precision",
            "rows to keep for validation: 0.2, 'last 20% by <column>', '20% by group <column>', or a boolean column;"
            " NULL: none",
            default=None, other_types=("text",),
        ),
        Argument("columns", "varchar", "edited table of propose_columns; NULL: what it would propose", default=None),
        _EXCLUDE,
        Argument(
            "seed", "integer", "for the order of rows and the split; NULL: drawn, printed, and recorded",
            default=None, check=SEED_CHECK,
        ),
        BUFFER_SIZE,
        RULES,
    ),
    schema="madlib_mop",
)  # fmt: skip
DESCRIBE = Function(
    "describe_preprocessor",
    "Describe how each column of a packed table's source is encoded, and with which statistics.",
    (_PACKED,),
    schema="madlib_mop",
)
TRANSFORM = Function(
    "transform",
    "Encode each row of an ordinary table as for a network, and write the encoded rows to a table.",
    (
        _PACKED,
        Argument("source_table", "varchar", "table or view with the input columns of training; targets are optional"),
        Argument("output_table", "varchar", "table to create; it has one row for each row of source_table"),
        Argument("keep", "varchar", "columns of source_table to copy, with commas, such as a key", default=None),
    ),
    schema="madlib_mop",
)
NETWORKS = Function(
    "propose_networks",
    "Write architectures that fit a packed table, and a model selection table of configurations to train.",
    (
        _PACKED,
        Argument("arch_table", "varchar", "table of architectures to create"),
        Argument("configs_table", "varchar", "model selection table to create, with its _summary"),
        Argument(
            "n_configs", "integer", "number of configurations; the first is the most robust one",
            default=16, check=Whole(1, 1000, is_needed=True),
        ),
        Argument(
            "num_iterations", "integer", "iterations to train; learning rates fall over this number",
            default=10, check=Whole(1, 1_000_000, is_needed=True),
        ),
        Argument(
            "seed", "integer", "seed of the choice of rates and sizes; one seed always gives the same ones", default=1,
            check=Whole(0, MAX_SEED, must=f"must be from 0 to {MAX_SEED}", is_needed=True),
        ),
    ),
    schema="madlib_mop",
)  # fmt: skip
SEARCH = Function(
    "propose_search",
    "Return what madlib_keras_automl needs to search over proposed networks: ids of architectures and two grids.",
    (_PACKED, Argument("arch_table", "varchar", "table of architectures that propose_networks has made")),
    schema="madlib_mop",
)

FUNCTIONS = (PROPOSE, PACK, DESCRIBE, TRANSFORM, NETWORKS, SEARCH)
