"""The function that goes from a table to a registered model in one statement."""

from dataclasses import replace

from mop_backend.registered_names import NAME

from madlib_mop.calls.argument import AboveZero, Argument, Function, Given, RegistryName, Whole
from madlib_mop.calls.columns import PACK

_OF_PACK = {argument.name: argument for argument in PACK.arguments}
_SHARE = AboveZero("For example 0.2.", is_needed=True)
_REGISTERED = RegistryName(NAME, "a letter, a digit or _", "For example name => 'churn'.")

LEARN = Function(
    "learn",
    "Train networks that predict a column of a table, register the best, and measure it on held-out rows.",
    (
        replace(
            _OF_PACK["source_table"],
            help="table or view of ordinary columns, committed; each row is an example",
            check=Given("For example learn('customers', 'left_us')."),
        ),
        replace(_OF_PACK["dependent"], check=Given("For example learn('customers', 'left_us').")),
        Argument(
            "name", "text",
            "name of the registered model, and prefix of the new tables; NULL: the names of the table and of the"
            " column, such as customers_left_us",
            default=None, check=lambda name, value: None if value is None else _REGISTERED(name, value),
        ),
        Argument(
            "budget", "interval",
            "time for the whole call, 10 seconds or more; the search ends with the best model so far",
            default="00:05:00", check=Given("For example budget => '10 minutes'."),
        ),
        Argument(
            "n_configs", "integer", "maximum number of configurations to try", default=16,
            check=Whole(1, 1000, "16 is the usual number.", is_needed=True),
        ),
        replace(_OF_PACK["columns"], help="table made by propose_columns, with your edits; NULL: the proposal"),
        replace(_OF_PACK["exclude"], help="columns to ignore, such as those that are known only afterwards"),
        _OF_PACK["task"],
        Argument(
            "validation", "double precision", "share of the rows on which the models are compared", default=0.2,
            check=_SHARE,
        ),
        replace(
            _OF_PACK["test"], default=0.2, check=_SHARE,
            help="share of the rows that measure the quality, and neither train nor choose a model",
        ),
        Argument(
            "split", "text",
            "how these rows are chosen: 'by time COLUMN': the last ones; 'by group COLUMN': whole groups, such as all"
            " rows of a customer; NULL: at random, equal rows together", default=None,
        ),
        Argument(
            "ensemble", "boolean",
            "what is registered if it is clearly better than the linear model: true: the average of the best models;"
            " false: the best single model",
            default=True,
        ),
        replace(_OF_PACK["seed"], help="seed of all random choices; NULL: drawn at random, and shown"),
        Argument(
            "replace", "boolean", "whether the tables of an earlier call with this name are replaced",
            default=False,
        ),
        Argument(
            "schema", "text",
            "existing schema for the new tables; NULL: the first one of search_path",
            default=None,
        ),
    ),
    schema="madlib_mop",
    comments=(
        "Trains networks that predict a column of a table, registers the best, and returns how good it is on rows that"
        " were held out",
    ),
    returns="TABLE (item text, value text, baseline text, note text)",
    settings=("IntervalStyle = 'postgres'", "extra_float_digits = 1"),
)  # fmt: skip

FUNCTIONS = (LEARN,)
