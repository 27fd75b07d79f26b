"""The functions that use models: evaluation, and predictions of whole tables."""

from dataclasses import replace

from madlib_mop.calls import shared
from madlib_mop.calls.argument import Argument, Function
from madlib_mop.calls.checks import AboveZero

_MODEL_TABLE = Argument("model_table", "varchar", "output table of madlib_keras_fit_multiple_model or madlib_keras_fit")
_TEST_TABLE = Argument("test_table", "varchar", "a table or view with the rows to predict, not packed")
_ID_COL = Argument("id_col", "varchar", "its column that tells rows apart, of any type")
_OUTPUT = Argument("output_table", "varchar", "table to create")
_PRED_TYPE = Argument(
    "pred_type", "varchar", "'prob', 'response', an integer (the best k classes) or a number below 1 (a threshold)",
    default="prob", other_types=("integer", "double precision"),
)  # fmt: skip
_PRED_KIND = Argument("pred_kind", "text", "the SQL type of pred_type: text, integer or float8", default="text")
_USE_GPUS = replace(shared.USE_GPUS, help="whether the trainer uses a GPU")
_MST_KEY = Argument("mst_key", "integer", "which model of a table with many", default=None)

EVALUATE = Function(
    "madlib_keras_evaluate",
    "Write loss and metrics of a trained model over a packed table into a table of one row.",
    (
        _MODEL_TABLE,
        Argument("test_table", "varchar", "a packed table, made by validation_preprocessor_dl"),
        _OUTPUT,
        _USE_GPUS,
        _MST_KEY,
    ),
)

PREDICT = Function(
    "madlib_keras_predict",
    "Predict the rows of a table with a trained model.",
    (
        _MODEL_TABLE,
        _TEST_TABLE,
        _ID_COL,
        Argument("independent_varname", "varchar", "its columns that go into the model, in the order of training"),
        _OUTPUT,
        _PRED_TYPE,
        _USE_GPUS,
        _MST_KEY,
    ),
    added=(_PRED_KIND,),
)

PREDICT_BYOM = Function(
    "madlib_keras_predict_byom",
    "Predict the rows of a table with a model of your own, wherever it was trained.",
    (
        shared.MODEL_ARCH_TABLE,
        Argument("model_id", "integer", "the model's row there; it must have weights"),
        _TEST_TABLE,
        _ID_COL,
        Argument("independent_varname", "varchar", "its columns that go into the model, in the order of its inputs"),
        _OUTPUT,
        _PRED_TYPE,
        _USE_GPUS,
        Argument(
            "class_values", "text[]", "the classes, as text, in the order of the last layer's units", default=None,
            any_dimensions=True,
        ),
        Argument(
            "normalizing_const", "double precision", "inputs are divided by it; NULL: 1", default=None,
            check=AboveZero("1 leaves the data as it is."),
        ),
        Argument("dependent_count", "integer", "how many outputs the model has", default=1),
    ),
    added=(_PRED_KIND,),
)  # fmt: skip

FUNCTIONS = (EVALUATE, PREDICT, PREDICT_BYOM)

#: Asked for by mop_backend/predict.py, which finds the model of madlib_mop.predict by it: no function of that form.
PREDICT_ROWS = Function(
    "predict",
    "Find and check a model for madlib_mop.predict.",
    (
        replace(_MODEL_TABLE, type="text"),
        _MST_KEY,
    ),
    schema="",
)
