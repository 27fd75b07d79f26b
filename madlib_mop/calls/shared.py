"""Arguments that several functions take."""

from madlib_mop.calls.argument import AboveZeroOrNull, Argument, Every, OneOf, Whole
from madlib_mop.calls.limits import MAX_ITERATIONS, MAX_SEED
from madlib_mop.schedule import SCHEDULES

SOURCE_TABLE = Argument(
    "source_table", "varchar", "packed and committed table, made by training_preprocessor_dl or pack_columns"
)
VALIDATION_TABLE = Argument(
    "validation_table", "varchar",
    "packed and committed table of validation rows, made by validation_preprocessor_dl or pack_columns",
    default=None,
)  # fmt: skip
NUM_ITERATIONS = Argument(
    "num_iterations", "integer", "number of iterations; in each, every model trains on all rows",
    check=Whole(1, MAX_ITERATIONS, "Pass a whole number such as 10.", is_needed=True),
)  # fmt: skip
USE_GPUS = Argument("use_gpus", "boolean", "whether each segment's trainer uses one GPU", default=False)
METRICS_FREQUENCY = Argument(
    "metrics_compute_frequency", "integer",
    "n: metrics are computed after every n-th iteration, and after the last one; NULL: after each iteration if there is"
    " a validation table (the output tables have the last ones), else only after the last one",
    default=None,
)  # fmt: skip
METRICS_EVERY = Argument(
    "metrics_every", "text",
    "'visit': metrics on a sample of rows are also computed after each visit of a model; a number such as '4': after"
    " every fourth visit; 'iteration': there are only the metrics of metrics_compute_frequency",
    default="iteration",
    check=Every(("iteration", "visit"), "With 'visit', models can be compared as soon as each has made one visit."),
)  # fmt: skip
METRICS_SAMPLE_ROWS = Argument(
    "metrics_sample_rows", "integer",
    "with metrics_every: number of rows in the sample, of the validation table if there is one;"
    " NULL: a tenth of the rows of a visit, but at least 100", default=None, check=Whole(1),
)  # fmt: skip
POLICY = Argument(
    "policy", "text",
    "a SELECT, evaluated after new metrics, that returns commands to the run in the columns mst_key, action, reason"
    " and arguments; $1 is the run_id",
    default=None,
)  # fmt: skip
MAX_SECONDS = Argument(
    "max_seconds", "double precision",
    "after this many seconds of training, models complete their current iteration and the run ends with the best so"
    " far; NULL: no limit",
    default=None, check=AboveZeroOrNull("Omit it to train without a limit of time."),
)  # fmt: skip
COPIES = Argument(
    "copies", "integer",
    "with direct hops between hosts: how many of the newest states of each model are kept, at as many different hosts",
    default=2, check=Whole(1, hint="Omit it to keep the newest two.", is_needed=True),
)  # fmt: skip
CHECKPOINT_EVERY = Argument(
    "checkpoint_every", "integer",
    "with direct hops between hosts: n: the state of each model comes to this server after every n-th iteration; NULL:"
    " only after the last one",
    default=None, check=Whole(1, hint="Omit it, and states come only after the last iteration."),
)  # fmt: skip
NAME = Argument("name", "varchar", "copied into _summary", default=None)
DESCRIPTION = Argument("description", "varchar", "copied into _summary", default=None)
OBJECT_TABLE = Argument(
    "object_table",
    "varchar",
    "table of custom functions: its name in schema madlib, without the schema",
    default=None,
)
MODEL_ARCH_TABLE = Argument(
    "model_arch_table", "varchar", "table of architectures, made by load_keras_model or propose_networks"
)
MODEL_ID_LIST = Argument("model_id_list", "integer[]", "model_id of each architecture to use")
USE_CACHING = Argument(
    "use_caching", "boolean",
    "whether trainers keep more rows between visits: up to half of their memory limit, not a quarter",
    default=False,
)  # fmt: skip
REPLACE = Argument(
    "replace",
    "boolean",
    "whether an existing output table is dropped when the new one is written",
    default=False,
)
EARLY_STOPPING = Argument(
    "early_stopping", "text",
    "when a model stops early, e.g. 'patience=3, metric=val_loss, restore_best=true';"
    " early_stopping in the fit parameters overrides it", default=None,
)  # fmt: skip
SEED_CHECK = Whole(0, MAX_SEED, "If you omit it, a seed is drawn and recorded.", must=f"must be from 0 to {MAX_SEED}")
SEED = Argument(
    "seed", "integer",
    "seed of start weights and of the order of rows; NULL: drawn at random, or with warm_start that of the earlier run",
    default=None, check=SEED_CHECK,
)  # fmt: skip


def schedule(default: str) -> Argument:
    """Return the argument schedule with a function's own default."""
    check = OneOf(tuple(SCHEDULES), default, "If you omit it, the schedule is chosen from the costs of visits.")
    return Argument("schedule", "text", f"one of {', '.join(map(repr, SCHEDULES))}", default=default, check=check)
