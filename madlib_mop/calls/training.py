"""The functions that train: model hopping, model averaging, and searches."""

from dataclasses import replace

from madlib_mop.calls import shared
from madlib_mop.calls.argument import Argument, Function, Given, Whole

RANDOM_STATE_CHECK = Whole(0, says_whole=True)

FIT_MULTIPLE_MODEL = Function(
    "madlib_keras_fit_multiple_model",
    "Train every configuration of a model selection table by model hopping.",
    (
        shared.SOURCE_TABLE,
        Argument("model_output_table", "varchar", "table to create, with its _info and _summary"),
        Argument(
            "model_selection_table",
            "varchar",
            "table of configurations, made by load_model_selection_table, generate_model_configs or propose_networks",
        ),
        shared.NUM_ITERATIONS,
        shared.USE_GPUS,
        shared.VALIDATION_TABLE,
        shared.METRICS_FREQUENCY,
        Argument("warm_start", "boolean", "whether to continue with the models of the output table", default=False),
        shared.NAME,
        shared.DESCRIPTION,
        shared.USE_CACHING,
        shared.SEED,
        shared.schedule("auto"),
        shared.REPLACE,
        shared.EARLY_STOPPING,
        shared.METRICS_EVERY,
        shared.METRICS_SAMPLE_ROWS,
        shared.POLICY,
        shared.MAX_SECONDS,
        shared.COPIES,
        shared.CHECKPOINT_EVERY,
    ),
    comments=("Trains every configuration of a model selection table by model hopping",),
)

FIT = Function(
    "madlib_keras_fit",
    "Train one model by model averaging: all segments train at the same time.",
    (
        shared.SOURCE_TABLE,
        Argument("model", "varchar", "table to create, with its _summary"),
        shared.MODEL_ARCH_TABLE,
        Argument("model_id", "integer", "model_id of the architecture to train"),
        Argument("compile_params", "varchar", "e.g. loss='categorical_crossentropy', optimizer='Adam(lr=0.01)'"),
        Argument("fit_params", "varchar", "e.g. batch_size=32, epochs=1; may be NULL or empty"),
        replace(
            shared.NUM_ITERATIONS,
            help="number of iterations; in each, the segments train copies of the model, which are then averaged",
        ),
        shared.USE_GPUS,
        shared.VALIDATION_TABLE,
        shared.METRICS_FREQUENCY,
        Argument("warm_start", "boolean", "whether to continue with the model of the output table", default=None),
        shared.NAME,
        shared.DESCRIPTION,
        shared.OBJECT_TABLE,
        shared.SEED,
        shared.REPLACE,
        shared.EARLY_STOPPING,
        shared.MAX_SECONDS,
    ),
    comments=("Trains one model on all segments at once and averages the models of the segments after each iteration",),
)

AUTOML = Function(
    "madlib_keras_automl",
    "Search for the best model among architectures and parameters. The whole search is one run.",
    (
        shared.SOURCE_TABLE,
        Argument("model_output_table", "varchar", "table to create, with its _info and _summary"),
        shared.MODEL_ARCH_TABLE,
        Argument(
            "model_selection_table",
            "varchar",
            "table to create for the best configuration (with several objectives, for those that no other one"
            " surpasses), with its _summary",
        ),
        shared.MODEL_ID_LIST,
        Argument("compile_params_grid", "varchar", "dict of lists and ranges, as for generate_model_configs"),
        Argument("fit_params_grid", "varchar", "dict of lists and ranges, as for generate_model_configs"),
        Argument(
            "automl_method",
            "varchar",
            "how to search; madlib.madlib_keras_automl('usage') lists the methods",
            default="hyperband",
        ),
        Argument("automl_params", "varchar", "parameters of the method, e.g. 'R=9, eta=3'", default=None),
        Argument(
            "random_state",
            "integer",
            "seed of the random choices; NULL: drawn, printed and recorded",
            default=None,
            check=RANDOM_STATE_CHECK,
        ),
        shared.OBJECT_TABLE,
        shared.USE_GPUS,
        shared.VALIDATION_TABLE,
        replace(
            shared.METRICS_FREQUENCY,
            help="n: metrics are also computed after every n-th iteration; NULL: only when the search needs them",
        ),
        shared.NAME,
        shared.DESCRIPTION,
        shared.USE_CACHING,
        replace(shared.SEED, help="seed of start weights and of the order of rows; NULL: the value of random_state"),
        shared.schedule("rotation"),
        replace(shared.REPLACE, help="whether existing output tables are dropped when the new ones are written"),
        shared.METRICS_EVERY,
        shared.METRICS_SAMPLE_ROWS,
        shared.POLICY,
        shared.MAX_SECONDS,
        Argument(
            "objective",
            "text",
            "what the search minimizes: loss, alone or with multiplications (of a prediction of one row) and size_bytes"
            " (of the weights), e.g. 'loss, multiplications'",
            default="loss",
        ),
        Argument(
            "constraints",
            "text",
            "limits of the architectures, e.g. 'size_bytes <= 100000, multiplications <= 50000'; the others are left"
            " out. NULL: none",
            default=None,
        ),
        shared.COPIES,
        shared.CHECKPOINT_EVERY,
    ),
    comments=("Searches architectures and parameters for the best model, by the method of automl_method",),
)

HYPERBAND_SCHEDULE = Function(
    "hyperband_schedule",
    "Write a table of the brackets and rounds of hyperband.",
    (
        Argument("schedule_table", "varchar", "table to create"),
        Argument("r", "integer", "R of hyperband: the maximum number of iterations of a round"),
        Argument("eta", "integer", "the best 1/eta of the configurations of a round continue to the next", default=3),
        Argument("skip_last", "integer", "number of rounds to leave out at the end of each bracket", default=0),
    ),
    comments=("Writes the brackets and rounds of hyperband into a table",),
)

EXPLAIN_FIT = Function(
    "explain_fit",
    "Estimate what a call that trains would cost: visits, time, memory, disk, and what limits it. Nothing is changed.",
    (
        Argument(
            "function_name", "text", "name of a function that trains one model or several, or searches",
            check=Given("For example 'madlib_keras_fit_multiple_model'."),
        ),
        Argument("arguments", "json", "its arguments, by name", check=Given("A JSON object.")),
    ),
    schema="madlib_mop",
    comments=("Estimates the visits, time, memory and disk of a call that trains, and says what limits it",),
    returns="TABLE (item text, value float8, low float8, high float8, unit text, note text)",
)  # fmt: skip

FUNCTIONS = (FIT_MULTIPLE_MODEL, FIT, AUTOML, HYPERBAND_SCHEDULE, EXPLAIN_FIT)
