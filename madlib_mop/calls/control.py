"""The functions that control runs and hosts, and list GPUs and versions."""

from dataclasses import replace

from madlib_mop.calls import shared
from madlib_mop.calls.argument import Argument, Function, Given, OneOf, Whole
from madlib_mop.calls.limits import MAX_SEGMENTS

_RUN_ID = Argument("run_id", "bigint", "number of the run, from madlib_mop.progress")
_SERVER = Argument(
    "server", "name", "name of a foreign server of postgres_fdw", check=Given("SELECT srvname FROM pg_foreign_server;")
)

RESUME = Function(
    "resume",
    "Continue a run that was stopped or has failed, and write its output tables.",
    (
        _RUN_ID,
        Argument(
            "output_table", "text", "new name of the output table; NULL: the name that the run began with", default=None
        ),
        replace(
            shared.MAX_SECONDS,
            help="after this many seconds of further training, models complete their current iteration and the run ends"
            " with the best so far; NULL: after what is left of the run's own max_seconds",
        ),
    ),
    schema="madlib_mop",
    comments=("Continues a run after a fault or a cancel, and writes its output tables",),
)
REPLAY = Function(
    "replay",
    "Repeat the visits of a run as a new run with another output table.",
    (_RUN_ID, Argument("output_table", "text", "table to create")),
    schema="madlib_mop",
    comments=("Repeats the visits of a run, in their order, as a new run",),
)
CANCEL = Function(
    "cancel",
    "Stop a run. Return false if it is not running.",
    (_RUN_ID,),
    schema="madlib_mop",
    comments=("Stops a run from another session; true if it was running. Committed work is kept for resume()",),
    returns="boolean",
    takes_path=False,
)
REPORT = Function(
    "report",
    "Return a run as one HTML page: leaderboard, curves, hyper-parameters, schedule, lineage, failures.",
    (
        replace(
            _RUN_ID, other_types=("text",), help="number of the run, or a registered model, such as 'churn@champion'",
            check=Given("SELECT run_id, state FROM madlib_mop.progress;"),
        ),
    ),
    schema="madlib_mop",
    comments=(
        "A run as one HTML page: leaderboard, learning curves, hyper-parameters, schedule, lineage, failures, and"
        " the SQL that repeats it",
        "The report of the run that trained a registered model, such as churn@champion; or of a run whose number is"
        " a text",
    ),
    returns="text",
    takes_path=False,
    starter="_report",
)  # fmt: skip
DROP_RUN = Function(
    "drop_run",
    "Delete the record and the states of a run. Its output tables stay.",
    (_RUN_ID,),
    schema="madlib_mop",
    comments=("Drops the record and the states of a run; the output tables stay",),
    takes_path=False,
)
DROP_MODELS = Function(
    "drop_models",
    "Drop an output table of models with its _info and _summary. The run stays in the record.",
    (Argument("model_table", "text", "output table of a function that trains, or of make_ensemble"),),
    schema="madlib_mop",
    comments=(
        "Drops the output table of a fit function with its _info and _summary, as far as they exist, and reports"
        " which; the record stays",
    ),
    returns="text[]",
)
ADD_HOST = Function(
    "add_host",
    "Let another PostgreSQL server hold segments of packed tables (superusers only).",
    (
        _SERVER,
        Argument(
            "n_segments", "integer", "number of its segments; NULL: one for each core of that host", default=None,
            check=Whole(
                1, MAX_SEGMENTS, "NULL stands for the number of the host's cores.",
                must=f"must be from 1 to {MAX_SEGMENTS}",
            ),
        ),
    ),
    schema="madlib_mop",
    comments=("Adds a foreign server as a host of segments (superusers)",),
)  # fmt: skip
REMOVE_HOST = Function(
    "remove_host",
    "Remove a server that add_host added (superusers only).",
    (_SERVER,),
    schema="madlib_mop",
    comments=("Removes a foreign server from the hosts of segments (superusers)",),
)
GPU_CONFIGURATION = Function(
    "gpu_configuration",
    "Write a table of the GPUs of the server's machine.",
    (
        Argument("output_table", "text", "table to create"),
        Argument(
            "source", "text", "'tensorflow': the GPUs that trainers can use; 'nvidia': what nvidia-smi -L shows",
            default="tensorflow",
            check=OneOf(
                ("tensorflow", "nvidia"), "tensorflow",
                "'tensorflow' lists what trainers can use, 'nvidia' what NVIDIA's driver shows.",
            ),
        ),
    ),
    comments=("Writes a table of the GPUs of the server's host",),
)  # fmt: skip

FUNCTIONS = (RESUME, REPLAY, CANCEL, REPORT, DROP_RUN, DROP_MODELS, ADD_HOST, REMOVE_HOST, GPU_CONFIGURATION)

#: Commands of the driver whose SQL functions have different signatures.
HELP = Function(
    "help",
    "Return the help text of a function.",
    (Argument("topic", "any", "the function"), Argument("option", "text", "which text", default=None)),
    schema="",
)
#: For mop_backend/call.py, which has killed the driver of a run, or found it dead. No SQL function has this signature.
END_LOST_RUN = Function(
    "end_lost_run",
    "End a run whose driver no longer exists.",
    (_RUN_ID, Argument("reason", "text", "why it ends")),
    schema="",
)
VERSION = Function("version", "Return what is installed, and of which version.", schema="")
