"""Specifications of the functions that measure predictions of labelled rows."""

from dataclasses import replace

from madlib_mop.calls.argument import AboveZero, AboveZeroOrNull, Argument, Function, Given, Whole
from madlib_mop.calls.inference import ANY_NAME, CALIBRATED, KEY_OF_TABLE
from madlib_mop.calls.shared import SEED_CHECK

_TABLE = Argument(
    "source_table", "text", "table or view with rows and their true values, packed or not",
    check=Given("Pass the name of a table."),
)  # fmt: skip
_OF_CLASS = Argument(
    "of_class", "text", "the class; NULL: of two classes the second, of more each one against all others", default=None
)
_MAX_POINTS = Argument(
    "max_points", "integer", "number of thresholds at most, evenly spaced among all", default=100,
    check=Whole(2, 100_000, is_needed=True),
)  # fmt: skip

METRICS = Function(
    "metrics",
    "Measure the predictions of a model, for all rows of a table or for each slice of a column.",
    (
        ANY_NAME,
        _TABLE,
        Argument(
            "by", "text", "column of a table that is not packed, each of whose values is a slice; NULL: all rows",
            default=None,
        ),
        KEY_OF_TABLE,
        Argument(
            "max_slices", "integer",
            "maximum number of slices; if a column has more values, numbers and dates are divided into four ranges, and"
            " rare categories are one slice", default=20, check=Whole(2, 1000, is_needed=True),
        ),
    ),
    schema="madlib_mop",
    comments=("The metrics of a model on the rows of a table, beside those of the best constant answer, by slice",),
    returns=(
        "TABLE (output text, slice text, n_rows bigint, metric text, value double precision, baseline double precision)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip
CONFUSION_MATRIX = Function(
    "confusion_matrix",
    "Count the rows of a table by their true and their predicted class.",
    (ANY_NAME, _TABLE, KEY_OF_TABLE),
    schema="madlib_mop",
    comments=("The number of rows with each pair of a true and a predicted class",),
    returns="TABLE (output text, actual text, predicted text, n_rows bigint, share_of_actual double precision)",
    settings=("extra_float_digits = 1",),
)
ROC_CURVE = Function(
    "roc_curve",
    "Compute the false and the true positive rate of a class, for each threshold of its probability.",
    (ANY_NAME, _TABLE, _OF_CLASS, KEY_OF_TABLE, _MAX_POINTS),
    schema="madlib_mop",
    comments=("False and true positive rates at each threshold of a class's probability, and the area under them",),
    returns=(
        "TABLE (output text, class text, threshold double precision, false_positive_rate double precision,"
        " true_positive_rate double precision, auc double precision)"
    ),
    settings=("extra_float_digits = 1",),
)
PRECISION_RECALL_CURVE = Function(
    "precision_recall_curve",
    "Compute the precision and the recall of a class, for each threshold of its probability.",
    (ANY_NAME, _TABLE, _OF_CLASS, KEY_OF_TABLE, _MAX_POINTS),
    schema="madlib_mop",
    comments=("Precision and recall at each threshold of a class's probability, and the average precision",),
    returns=(
        "TABLE (output text, class text, threshold double precision, \"precision\" double precision, recall double"
        " precision, n_predicted bigint, average_precision double precision)"
    ),
    settings=("extra_float_digits = 1",),
)
CHOOSE_THRESHOLD = Function(
    "choose_threshold",
    "Choose the threshold of a class's probability by the cost of errors, by a required precision, or by F1.",
    (
        ANY_NAME,
        _TABLE,
        _OF_CLASS,
        KEY_OF_TABLE,
        Argument(
            "cost_false_positive", "double precision", "cost of a row that is wrongly predicted to have the class",
            default=None, check=AboveZeroOrNull("Costs may have any unit."),
        ),
        Argument(
            "cost_false_negative", "double precision", "cost of a row with the class that is not predicted to have it",
            default=None, check=AboveZeroOrNull("Costs may have any unit."),
        ),
        Argument(
            "least_precision", "double precision",
            "instead of costs: share of the predicted rows that must have the class; of such thresholds, the one with"
            " the most recall is chosen",
            default=None, check=AboveZeroOrNull("0.9: nine of ten predicted rows have the class."),
        ),
        Argument(
            "highest_f1", "boolean",
            "instead of costs or a precision: whether the threshold with the highest F1, the harmonic mean of precision"
            " and recall, is chosen",
            default=False,
        ),
    ),
    schema="madlib_mop",
    comments=("The threshold of a class's probability that costs least, has a precision, or has the highest F1",),
    returns=(
        "TABLE (output text, class text, threshold double precision, \"precision\" double precision, recall double"
        " precision, n_predicted bigint, cost double precision, n_rows bigint)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip
RELIABILITY = Function(
    "reliability",
    "Compare predicted probabilities with how often the predicted classes are true, for the rows of a table.",
    (
        ANY_NAME,
        _TABLE,
        replace(_OF_CLASS, help="the class; NULL: the predicted class of each row"),
        KEY_OF_TABLE,
        Argument(
            "n_bins", "integer", "number of intervals between 0 and 1", default=10,
            check=Whole(1, 1000, is_needed=True),
        ),
        CALIBRATED,
    ),
    schema="madlib_mop",
    comments=(
        "How probable classes are predicted to be, and how often they are true: a row for each interval, and the"
        " expected calibration error",
    ),
    returns=(
        "TABLE (output text, class text, lower double precision, upper double precision, n_rows bigint,"
        " probability double precision, share double precision, calibration_error double precision)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip
GRADIENT_BOOSTING = Function(
    "gradient_boosting",
    "Train scikit-learn's gradient boosting on a packed table, and measure it as a baseline. No model is kept.",
    (
        Argument(
            "packed_table", "varchar",
            "packed table, made by pack_columns: the training rows",
        ),
        Argument(
            "test_table", "varchar",
            "packed table of the rows to measure, with the same encoding; NULL: your tables of the rows that"
            " pack_columns held out from packed_table, for validation and for a test",
            default=None,
        ),
        Argument(
            "max_seconds", "double precision",
            "limit of the call's time; if there are too many rows for it, a sample of them is used; a call that takes"
            " longer fails",
            default=20,
            check=AboveZero("For example 20.", is_needed=True),
        ),
        Argument(
            "seed", "integer", "seed of everything that is drawn", default=1,
            check=replace(SEED_CHECK, hint=None, is_needed=True),
        ),
    ),
    schema="madlib_mop",
    comments=("How good gradient boosting with default parameters is on the rows held out from a packed table",),
    returns=(
        "TABLE (output text, data_set text, n_rows bigint, metric text, value double precision, baseline double"
        " precision, seconds double precision, note text)"
    ),
    settings=("extra_float_digits = 1",),
)  # fmt: skip

FUNCTIONS = (
    METRICS, CONFUSION_MATRIX, ROC_CURVE, PRECISION_RECALL_CURVE, CHOOSE_THRESHOLD, RELIABILITY, GRADIENT_BOOSTING,
)  # fmt: skip
