"""The functions that use models: evaluation, and predictions of whole tables."""

from dataclasses import replace

from mop_backend.registered_names import ALIAS, NAME

from madlib_mop.calls import shared
from madlib_mop.calls.argument import AboveZero, AboveZeroOrNull, Argument, Function, Given, OneOf, RegistryName, Whole
from madlib_mop.calls.limits import MAX_SEED

_MODEL_TABLE = Argument(
    "model_table",
    "varchar",
    "output table of a function that trains, or of make_ensemble; or a registered model, such as 'churn@champion'",
)
_TEST_TABLE = Argument("test_table", "varchar", "table or view with the rows to predict, not packed")
_ID_COL = Argument("id_col", "varchar", "column of test_table that identifies a row; any type")
_OUTPUT = Argument("output_table", "varchar", "table to create")
_PRED_TYPE = Argument(
    "pred_type", "varchar",
    "classes to write for each row: 'prob': all; 'response': the best; an integer k: the best k; a number v with"
    " 0 <= v < 1: those with a probability above v",
    default="prob", other_types=("integer", "double precision"),
)  # fmt: skip
_PRED_KIND = Argument("pred_kind", "text", "the SQL type of pred_type: text, integer or float8", default="text")
_USE_GPUS = replace(shared.USE_GPUS, help="whether the trainer uses a GPU")
_MST_KEY = Argument("mst_key", "integer", "key of the model; required if the table has several", default=None)

EVALUATE = Function(
    "madlib_keras_evaluate",
    "Compute the loss and the metrics of a trained model on the rows of a table.",
    (
        _MODEL_TABLE,
        Argument(
            "test_table",
            "varchar",
            "table or view with the rows and their true values, packed or not",
        ),
        _OUTPUT,
        _USE_GPUS,
        _MST_KEY,
    ),
    comments=("Loss and metrics of a trained model over a packed table, as a table of one row",),
    settings=("extra_float_digits = 1",),
)

PREDICT = Function(
    "madlib_keras_predict",
    "Predict the rows of a table with a trained model.",
    (
        _MODEL_TABLE,
        _TEST_TABLE,
        _ID_COL,
        Argument(
            "independent_varname", "varchar",
            "input columns of test_table, in the order of training; '*' if pack_columns made the training table",
        ),
        _OUTPUT,
        _PRED_TYPE,
        _USE_GPUS,
        _MST_KEY,
    ),
    added=(_PRED_KIND,),
    comments=(
        "Predictions for the rows of a table: 'prob', every class, or 'response', the best one",
        "Predictions for the rows of a table: the best pred_type classes",
        "Predictions for the rows of a table: the classes with a probability above pred_type",
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

PREDICT_BYOM = Function(
    "madlib_keras_predict_byom",
    "Predict the rows of a table with an architecture and weights of your own.",
    (
        replace(shared.MODEL_ARCH_TABLE, help="table of architectures, made by load_keras_model"),
        Argument("model_id", "integer", "row of that table; it must have weights"),
        _TEST_TABLE,
        _ID_COL,
        Argument("independent_varname", "varchar", "input columns of test_table, in the order of the model's inputs"),
        _OUTPUT,
        _PRED_TYPE,
        _USE_GPUS,
        Argument(
            "class_values", "text[]", "names of the classes, in the order of the last layer's units", default=None,
            any_dimensions=True,
        ),
        Argument(
            "normalizing_const", "double precision", "inputs are divided by it; NULL: 1", default=None,
            check=AboveZero("1 leaves the data as it is."),
        ),
        Argument("dependent_count", "integer", "number of outputs of the model", default=1),
    ),
    added=(_PRED_KIND,),
    comments=(
        "Predictions of a model from an architecture table for the rows of a table: 'prob', every class, or"
        " 'response', the best one",
        "Predictions of a model from an architecture table for the rows of a table: the best pred_type classes",
        "Predictions of a model from an architecture table for the rows of a table: the classes with a probability"
        " above pred_type",
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

MAKE_ENSEMBLE = Function(
    "make_ensemble",
    "Choose the models that together predict a validation table best, and write one model that averages their outputs.",
    (
        Argument("model_table", "text", "output table of madlib_keras_fit_multiple_model or madlib_keras_automl"),
        Argument("validation_table", "text", "table with the rows on which models are compared, packed or not"),
        Argument(
            "output_table", "text", "table to create, with its _info and _summary; it gets one model, with mst_key 1"
        ),
        Argument(
            "n_members", "integer", "maximum number of members; a model that is chosen twice counts as two", default=8,
            check=Whole(1, 100, "The same model can be added several times.", is_needed=True),
        ),
        Argument(
            "metric", "text", "metric by which models are chosen: 'loss' or 'accuracy'", default="loss",
            check=OneOf(("loss", "accuracy"), "loss", "'loss' is log loss for classes, and mse or mae for numbers."),
        ),
        Argument("mst_keys", "integer[]", "keys of the models to choose from; NULL: all", default=None),
        shared.REPLACE,
    ),
    schema="madlib_mop",
    comments=(
        "Chooses models of a table by their predictions of a validation table, and writes their average as a table"
        " with one model",
    ),
    returns=(
        "TABLE (mst_key integer, copies integer, weight double precision, validation_metric double precision,"
        " ensemble_metric double precision)"
    ),
)  # fmt: skip

_ANY_MODEL = replace(_MODEL_TABLE, type="text")
EXPORT_MODEL = Function(
    "export_model",
    "Return a trained model as a file for other programs, with its preprocessor, signature and card.",
    (
        _ANY_MODEL,
        _MST_KEY,
        Argument(
            "format", "text",
            "'keras', 'saved_model' (a zip archive), 'onnx' or 'safetensors'", default="keras",
            check=OneOf(
                ("keras", "saved_model", "onnx", "safetensors"), "keras", "'keras' holds every model."
            ),
        ),
    ),
    schema="madlib_mop",
    comments=(
        "A trained model as a file: keras, saved_model, onnx or safetensors, with its preprocessor,"
        " signature and card in it",
    ),
    returns="bytea",
    starter="_export",
)  # fmt: skip
EXPORT_PARTS = replace(
    EXPORT_MODEL,
    name="export_parts",
    purpose="Return a trained model as a file of any size, in parts, one after the other.",
    comments=("A trained model as a file, as export_model returns it, of any size: its parts, one after the other",),
    returns="SETOF bytea",
    starter="_export_parts",
)
MODEL_CARD = Function(
    "model_card",
    "Return the card of a trained model as Markdown: its data, metrics, inputs, outputs and lineage.",
    (_ANY_MODEL, _MST_KEY),
    schema="madlib_mop",
    comments=(
        "The card of a trained model as Markdown: data, metrics, inputs and outputs, lineage, and what people must"
        " fill in",
    ),
    returns="text",
    starter="_card",
)

_NAME = Argument(
    "name", "text", "name of the registered model",
    check=RegistryName(NAME, "a letter, a digit or _", "For example churn."),
)  # fmt: skip
REGISTER = Function(
    "register",
    "Copy a trained model into the registry as a new version of a name. Return the number of the version.",
    (
        _NAME,
        replace(
            _MODEL_TABLE, type="text",
            help="output table of a function that trains, or of make_ensemble",
        ),
        Argument(
            "mst_key", "integer",
            "key of the model; NULL: the only one of the table, or the best of the leaderboard of its run",
            default=None,
        ),
        Argument("note", "text", "a note for the registry", default=None),
        Argument(
            "baseline", "text",
            "table, packed or not, such as that of the validation rows; drift compares later predictions with those of"
            " its rows; NULL: none",
            default=None,
        ),
        Argument(
            "held_out", "text",
            "table, packed or not, of rows that neither trained nor chose the model, such as that of the test rows: for"
            " predict_interval, predict_set and calibrated probabilities; NULL: none",
            default=None,
        ),
        Argument(
            "calibration", "text",
            "how the held-out rows calibrate probabilities: 'temperature', or 'isotonic' for at least about 1,000 rows",
            default="temperature",
            check=OneOf(("temperature", "isotonic"), "temperature", "'temperature' needs few rows."),
        ),
        Argument(
            "explained", "text",
            "table or view with rows, not packed: the importance of the columns and the partial dependence of the"
            " predictions of these rows are recorded for reports; NULL: they are not",
            default=None,
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Copies a trained model into the registry as a new version of a name; returns the number of the version",
    ),
    returns="integer",
)  # fmt: skip
IMPORT_VERSION = Function(
    "import_version",
    "Store the model of a .keras file in the registry as a new version of a name. Return the number of the version.",
    (
        _NAME,
        Argument(
            "file", "bytea", "a .keras file, as Keras 3 or madlib_mop.export_model writes it",
            check=Given("The file itself, such as pg_read_binary_file('/path/model.keras')."),
        ),
        Argument(
            "class_values", "text[]",
            "names of the classes, in the order of the last layer's units; NULL: those of the file, if it has some",
            default=None, any_dimensions=True,
        ),
        Argument(
            "normalizing_const", "double precision", "inputs are divided by it; NULL: that of the file, or 1",
            default=None, check=AboveZeroOrNull("1 leaves the data as it is."),
        ),
        Argument(
            "compile_params", "text", "loss and metrics, for evaluate and deploy; NULL: none", default=None,
        ),
        Argument("note", "text", "a note for the registry", default=None),
    ),
    schema="madlib_mop",
    comments=(
        "Stores the model of a .keras file in the registry as a new version of a name; returns the number of the"
        " version",
    ),
    returns="integer",
    settings=("extra_float_digits = 1",),
)  # fmt: skip
DEPLOY = Function(
    "deploy",
    "Set an alias to a version, if its metric on the rows of a table is good enough. Return whether the alias is set.",
    (
        _NAME,
        Argument(
            "alias", "text", "name of the alias, such as champion",
            check=RegistryName(ALIAS, "a letter or _", "For example champion."),
        ),
        Argument("version", "integer", "number of the version", check=Whole(1, is_needed=True)),
        Argument(
            "metric", "text", "'loss' or a metric of the model; NULL: its first metric, or its loss if it has none",
            default=None,
        ),
        Argument(
            "test_table", "text", "table on which the metric is computed, packed or not; NULL: there is no condition",
            default=None,
        ),
        Argument("at_least", "double precision", "the least value, if higher values are better", default=None),
        Argument("at_most", "double precision", "the greatest value, if lower values are better", default=None),
        Argument(
            "better_than_current", "boolean",
            "whether the value must also be better than that of the alias's current version", default=False,
        ),
        Argument("reason", "text", "why, for the history", default=None),
    ),
    schema="madlib_mop",
    comments=(
        "Gives an alias a version, if a metric of the version on the rows of a table is good enough; returns whether"
        " it did",
    ),
    returns="boolean",
    settings=("extra_float_digits = 1",),
)  # fmt: skip

DRIFT = Function(
    "drift",
    "Compare the rows of a table, and their predictions, with the training rows. Return a row for each comparison.",
    (
        replace(_MODEL_TABLE, type="text"),
        Argument("source_table", "text", "table or view with the rows of today, not packed"),
        replace(_MST_KEY, help="key of the model, for a table of models"),
        Argument(
            "baseline", "text",
            "table or view with rows to compare with, not packed; NULL: the training rows, as packing recorded them",
            default=None,
        ),
        Argument(
            "predictions", "boolean", "whether the rows are predicted too, and the predictions compared", default=True
        ),
        Argument(
            "max_rows", "bigint", "approximate number of rows that are drawn at random from each table; NULL: all rows",
            default=None, check=Whole(1, hint="NULL reads all rows."),
        ),
        Argument(
            "moderate", "double precision", "from this stability index (PSI) on, a difference is moderate", default=0.1,
            check=AboveZero("The usual one is 0.1.", is_needed=True),
        ),
        Argument(
            "large", "double precision", "from this PSI on, a difference is large", default=0.25,
            check=AboveZero("The usual one is 0.25.", is_needed=True),
        ),
        Argument(
            "independent_varname", "text",
            "for a model that was trained on arrays: the input columns, in the order of training", default=None,
        ),
    ),
    schema="madlib_mop",
    comments=(
        "How far the rows of a table, and the predictions of them, are from the training rows: a row for each"
        " comparison",
    ),
    returns=(
        "TABLE (model text, feature text, kind text, measured text, verdict text, psi double precision,"
        " psi_by_chance double precision, n_rows bigint, baseline_rows bigint, null_share double precision,"
        " baseline_null_share double precision, new_share double precision, new_levels text[], outside_share double"
        " precision, minimum text, maximum text, baseline_minimum text, baseline_maximum text, reason text)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

_SEED = Argument(
    "seed", "bigint", "seed of everything that is drawn", default=0,
    check=Whole(0, MAX_SEED, is_needed=True),
)  # fmt: skip
ANY_NAME = Argument(
    "model_table",
    "text",
    "a registered model: 'churn@champion' (an alias), 'churn@3' (a version) or 'churn' (short for 'churn@newest'); or a"
    " table of models, with mst_key. A table of one model without mst_key is written in double quotes: '\"my_model\"'",
    check=Given("Pass the name of a registered model or of a table."),
)
KEY_OF_TABLE = replace(_MST_KEY, help="key of the model, for a table of models")
CALIBRATED = Argument(
    "calibrated", "boolean", "whether probabilities are calibrated by the held-out rows of a registered model",
    default=False,
)  # fmt: skip
_MAX_ROWS = "number of rows that are drawn from the table; fewer, if they are wide: at most 512 MiB"
SCORE = Function(
    "score",
    "Write predictions for all rows of a table into a new table. Return the number of rows.",
    (
        ANY_NAME,
        Argument(
            "source_table", "text", "table or view with the rows, not packed",
            check=Given("For example score('churn', 'customers', 'scored_customers')."),
        ),
        Argument("output_table", "text", "table to create, with one row for each row of source_table"),
        Argument(
            "keep", "text",
            "columns of source_table to copy, separated by commas; '*': all; NULL: the primary key, or all columns of a"
            " table or view that has none",
            default=None,
        ),
        KEY_OF_TABLE,
        Argument(
            "of_class", "text", "the class whose probability is written; NULL: the class that is predicted",
            default=None,
        ),
        Argument(
            "independent_varname", "text",
            "for a model that was trained on arrays: the input columns, in the order of training; NULL: those of"
            " training",
            default=None,
        ),
        Argument("replace", "boolean", "whether a table that score has written is replaced", default=False),
        replace(
            CALIBRATED,
            help="whether probabilities are calibrated by the held-out rows of a registered model; the predicted class"
            " stays the same",
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Predicts all rows of a table with a model, and writes their predictions into a new table; returns the number"
        " of rows",
    ),
    returns="bigint",
    settings=("extra_float_digits = 1",),
)  # fmt: skip
IMPORTANCE = Function(
    "importance",
    "Compute how much the loss of a model grows if the values of a column are exchanged between rows.",
    (
        ANY_NAME,
        Argument("source_table", "text", "table or view with rows and their true values, packed or not"),
        KEY_OF_TABLE,
        Argument(
            "metric", "text",
            "the loss: 'log_loss' or 'error_rate' for classes, 'squared_error' or 'absolute_error' for numbers; NULL:"
            " the first of these",
            default=None,
            check=OneOf(
                ("log_loss", "error_rate", "squared_error", "absolute_error"), None,
                "'log_loss' and 'error_rate' are for classes, the others for numbers.",
            ),
        ),
        Argument(
            "n_repeats", "integer", "how often the values of a column are exchanged", default=5,
            check=Whole(1, 1000, is_needed=True),
        ),
        Argument(
            "max_rows", "integer", _MAX_ROWS, default=5000,
            check=Whole(2, 1_000_000, "All rows that are drawn are in memory.", is_needed=True),
        ),
        _SEED,
    ),
    schema="madlib_mop",
    comments=(
        "How much the loss of a model on the rows of a table grows if the values of a column are exchanged between"
        " rows: a row for each column, with a 95 % interval",
    ),
    returns=(
        "TABLE (output text, feature text, metric text, loss double precision, importance double precision,"
        " lower double precision, upper double precision, n_rows integer)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip
PARTIAL_DEPENDENCE = Function(
    "partial_dependence",
    "Compute the mean prediction of the rows of a table, if all of them had the same value in a column.",
    (
        ANY_NAME,
        Argument("source_table", "text", "table or view with rows, not packed"),
        Argument("feature", "text", "name of the input column"),
        KEY_OF_TABLE,
        Argument(
            "of_class", "text", "the class whose probability is predicted; NULL: each class, or the number",
            default=None,
        ),
        Argument(
            "n_values", "integer",
            "number of values at most: quantiles of a number or a date, or the most frequent categories", default=20,
            check=Whole(1, 1000, is_needed=True),
        ),
        Argument(
            "max_rows", "integer", _MAX_ROWS, default=1000,
            check=Whole(1, 1_000_000, "All rows that are drawn are in memory.", is_needed=True),
        ),
        _SEED,
    ),
    schema="madlib_mop",
    comments=(
        "The mean prediction of the rows of a table, if all of them had the same value in a column: a row for each"
        " value",
    ),
    returns=(
        "TABLE (output text, class text, value text, prediction double precision, lower double precision,"
        " upper double precision, n_rows integer)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

FUNCTIONS = (
    EVALUATE, PREDICT, PREDICT_BYOM, MAKE_ENSEMBLE, REGISTER, IMPORT_VERSION, DEPLOY, EXPORT_MODEL, EXPORT_PARTS,
    MODEL_CARD, DRIFT, SCORE, IMPORTANCE, PARTIAL_DEPENDENCE,
)  # fmt: skip

#: For mop_backend/predict.py, which finds the model of madlib_mop.predict with it. No SQL function has this signature.
PREDICT_ROWS = Function(
    "predict",
    "Find and check a model for madlib_mop.predict.",
    (
        replace(_MODEL_TABLE, type="text"),
        _MST_KEY,
    ),
    schema="",
)

#: For mop_backend/explain.py, which gets the background of madlib_mop.explain_prediction with it; that SQL function is
#: written in sql/, because it takes a row.
EXPLAIN_PREDICTION = Function(
    "explain_prediction",
    "Return encoded rows of a table, for the explanation of a prediction.",
    (
        replace(_MODEL_TABLE, type="text"),
        _MST_KEY,
        Argument("background", "text", "table with rows to compare with, packed or not", default=None),
        Argument(
            "n_background", "integer", "number of its rows that are drawn", check=Whole(1, 10_000, is_needed=True)
        ),
        Argument("n_permutations", "integer", "pairs of orders for each of them", check=Whole(1, 1000)),
        _SEED,
    ),
    schema="",
)
