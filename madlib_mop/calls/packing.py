"""The functions that pack tables."""

from dataclasses import replace

from madlib_mop.calls.argument import AboveZero, Argument, Function, Whole

_COLUMNS = "or several columns, separated by commas"
_SOURCE = Argument("source_table", "varchar", "table or view with one example in each row")
_OUTPUT = Argument("output_table", "varchar", "packed table to create, with its _summary")
_DEPENDENT = Argument("dependent_varname", "varchar", f"column with the labels, {_COLUMNS}")
_INDEPENDENT = Argument("independent_varname", "varchar", f"column with the inputs, {_COLUMNS}")
BUFFER_SIZE = Argument(
    "buffer_size", "integer", "rows in a buffer; NULL: about 8 MB of rows", default=None,
    check=Whole(1, hint="NULL chooses a size from the width of a row."),
)  # fmt: skip
RULES = Argument(
    "distribution_rules", "text",
    "which segments get rows: 'all_segments', 'gpu_segments', or a table that lists them in its column dbid; NULL: all",
    default=None,
)  # fmt: skip
_IMAGE_SHAPE = Argument(
    "image_shape", "integer[]",
    "size to which JPEG or PNG images are scaled: {height,width} or {height,width,channels}", default=None,
)

TRAINING = Function(
    "training_preprocessor_dl",
    "Pack a table for training: shuffle its rows, and divide them among the segments.",
    (
        _SOURCE,
        _OUTPUT,
        _DEPENDENT,
        _INDEPENDENT,
        BUFFER_SIZE,
        Argument(
            "normalizing_const", "real", "inputs are divided by it", default=1.0,
            check=AboveZero("1 leaves the data as it is.", is_single=True),
        ),
        Argument(
            "num_classes", "integer[]",
            "number of classes of each dependent column; NULL: as many as in the data;"
            " '{}': numbers are packed as they are, for regression",
            default=None,
        ),
        RULES,
        Argument(
            "seed", "integer",
            "seed of the order of rows; NULL: drawn at random, printed, and kept in the table's comment",
            default=None, check=Whole(0, hint="With NULL, a seed is drawn.", must="must not be negative"),
        ),
        _IMAGE_SHAPE,
        Argument(
            "labels", "text",
            "form of class labels: 'one-hot', or 'index' (the class number, for sparse losses); NULL: 'one-hot'",
            default=None,
        ),
    ),
    comments=("Packs a table for training: shuffled by a seed, labels one-hot, one partition for each segment",),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

VALIDATION = Function(
    "validation_preprocessor_dl",
    "Pack a table for validation or evaluation, like its training table.",
    (
        _SOURCE,
        _OUTPUT,
        replace(_DEPENDENT, help=f"{_DEPENDENT.help}; '*' if pack_columns made the training table"),
        replace(_INDEPENDENT, help=f"{_INDEPENDENT.help}; '*' if pack_columns made the training table"),
        Argument(
            "training_preprocessor_table",
            "varchar",
            "packed training table, made by training_preprocessor_dl or pack_columns",
        ),
        BUFFER_SIZE,
        RULES,
        _IMAGE_SHAPE,
    ),
    comments=("Packs a table for validation like a training table: same constant, same classes, rows in their order",),
    settings=("extra_float_digits = 1", "synchronize_seqscans = off"),
)

DROP = Function(
    "drop_packed",
    "Drop a packed table, its _summary, and the packed tables of its held-out rows.",
    (Argument("packed_table", "text", "packed table, made by pack_columns or by training_preprocessor_dl"),),
    schema="madlib_mop",
    comments=(
        "Drops a packed table with its _summary and the packed tables of its held-out rows, and reports which;"
        " refused while a run needs them",
    ),
    returns="text[]",
)

FUNCTIONS = (TRAINING, VALIDATION, DROP)
