"""The functions that steer a run while it trains."""

from dataclasses import replace

from madlib_mop.calls.argument import Argument, Function, Given, Whole

_RUN_ID = Argument(
    "run_id", "bigint", "number of the run, from madlib_mop.progress",
    check=Given("SELECT run_id, state FROM madlib_mop.progress;"),
)  # fmt: skip
_MST_KEY = Argument(
    "mst_key", "integer", "key of the model, from madlib_mop.leaderboard",
    check=Given("SELECT mst_key, state FROM madlib_mop.leaderboard;"),
)  # fmt: skip
_ITERATIONS = Whole(1, 1_000_000, "It is a number of iterations.", must="must be from 1 to 1,000,000")
_SOME_ITERATIONS = replace(_ITERATIONS, is_needed=True)

STOP_MODEL = Function(
    "stop_model",
    "Stop a model of a run: its visit in flight is completed, and no other starts. resume_model lets it continue.",
    (_RUN_ID, _MST_KEY, Argument("reason", "text", "why, for the record", default=None)),
    schema="madlib_mop",
    comments=("Stops a model of a run; its state is kept for resume_model",),
    takes_path=False,
)
RESUME_MODEL = Function(
    "resume_model",
    "Let a stopped model continue with its next visit.",
    (_RUN_ID, _MST_KEY),
    schema="madlib_mop",
    comments=("Lets a stopped model continue with its next visit",),
    takes_path=False,
)
CLONE_MODEL = Function(
    "clone_model",
    "Add a copy of a model to its run, with other parameters or another number of iterations. Return its mst_key.",
    (
        _RUN_ID,
        _MST_KEY,
        Argument("compile_params", "text", "compile parameters of the copy; NULL: those of the model", default=None),
        Argument("fit_params", "text", "fit parameters of the copy; NULL: those of the model", default=None),
        Argument(
            "from_state", "boolean", "true: begin with the model's state; false: begin with start weights", default=True
        ),
        Argument(
            "keep_optimizer", "boolean", "also copy the variables of the optimizer, such as its moments", default=True
        ),
        Argument(
            "num_iterations", "integer", "number of iterations that the copy makes; those that the model has completed"
            " do not count. NULL: it ends with the same iteration as the model", default=None, check=_ITERATIONS,
        ),
    ),
    schema="madlib_mop",
    comments=("Adds a copy of a model to its run, with its state, and returns the key of the copy",),
    returns="integer",
    takes_path=False,
)  # fmt: skip
EXTEND = Function(
    "extend",
    "Add iterations to one model of a run, or to all models that were not stopped and have not failed.",
    (
        _RUN_ID,
        Argument("num_iterations", "integer", "number of further iterations", check=_SOME_ITERATIONS),
        Argument("mst_key", "integer", "key of the model; NULL: all models", default=None),
    ),
    schema="madlib_mop",
    comments=("Lets one model or all models of a run make more iterations",),
    takes_path=False,
)
ADD_MODELS = Function(
    "add_models",
    "Add the configurations of a model selection table to a run. Return their keys in the run.",
    (_RUN_ID, Argument("model_selection_table", "text", "table of the configurations to add")),
    schema="madlib_mop",
    comments=("Adds the configurations of a model selection table to a run, and returns their keys",),
    returns="integer[]",
)
PAUSE = Function(
    "pause",
    "Pause a run: its visits in flight are completed, then its trainers exit. The call of the run waits until unpause.",
    (_RUN_ID,),
    schema="madlib_mop",
    comments=("Pauses a run until unpause: its visits in flight are completed, then its trainers exit",),
    takes_path=False,
)
UNPAUSE = Function(
    "unpause",
    "Let a paused run continue.",
    (_RUN_ID,),
    schema="madlib_mop",
    comments=("Lets a paused run continue",),
    takes_path=False,
)
PIN_MODEL = Function(
    "pin_model",
    "Prevent searches and policies from stopping a model of a run.",
    (_RUN_ID, _MST_KEY, Argument("pinned", "boolean", "false: allow it again", default=True)),
    schema="madlib_mop",
    comments=("Prevents searches and policies from stopping a model; with pinned false, allows it again",),
    takes_path=False,
)

FUNCTIONS = (STOP_MODEL, RESUME_MODEL, CLONE_MODEL, EXTEND, ADD_MODELS, PAUSE, UNPAUSE, PIN_MODEL)

#: The driver's command behind an INSERT into view madlib_mop.command.
COMMAND = Function(
    "command",
    "Issue a command to a run; return its outcome.",
    (_RUN_ID, Argument("command", "text", "name of the command"), Argument("arguments", "text", "JSON object")),
    schema="",
)
