"""Calls that every engine must reject with one clear error before any work: one for each argument of the hopper."""

from dataclasses import dataclass

from madlib_mop.schedule import SCHEDULES


@dataclass(frozen=True)
class BadCall:
    """A call that must be rejected.

    Attributes
    ----------
    statement : str
    sqlstate : str
    message : str
        Start of the message.
    hint : str
        A part of the hint.
    """

    statement: str
    sqlstate: str
    message: str
    hint: str

    def __str__(self):
        return self.message


_FIT = "madlib_keras_fit_multiple_model"
_GOOD = {
    "source_table": "'train'", "model_output_table": "'never'", "model_selection_table": "'mst'", "num_iterations": "2",
}  # fmt: skip


def _fit(sqlstate: str, message: str, hint: str, **arguments: str) -> BadCall:
    named = ", ".join(f"{name} := {value}" for name, value in (_GOOD | arguments).items())
    return BadCall(f"SELECT madlib.{_FIT}({named})", sqlstate, f"{_FIT}: {message}", hint)


CALLS = (
    _fit("42P01", "source_table does not exist. Received: 'nowhere'", "search_path", source_table="'nowhere'"),
    _fit("42P01", "source_table: table public.train_rows is not packed", "Pack", source_table="'train_rows'"),
    _fit(
        "42P07", "model_output_table: tables public.undisturbed, public.undisturbed_info and"
        " public.undisturbed_summary exist already", "drop_models('public.undisturbed')",
        model_output_table="'undisturbed'",
    ),
    _fit("42P01", "model_selection_table does not exist. Received: 'no'", "", model_selection_table="'no'"),
    _fit("22023", "num_iterations must be at least 1. Received: 0", "number", num_iterations="0"),
    _fit("0A000", "use_gpus => true: ", "", use_gpus="true"),
    _fit("42P01", "validation_table: table public.valid_rows is not", "Pack", validation_table="'valid_rows'"),
    _fit(
        "22023", "metrics_compute_frequency must be from 1 to num_iterations (2). Received: 3", "Omit it",
        metrics_compute_frequency="3",
    ),
    _fit("42P01", "model_output_table does not exist. Received: 'never'", "search_path", warm_start="true"),
    _fit("22023", "seed must be from 0 to 2147483647. Received: -1", "If you omit it", seed="-1"),
    _fit(
        "22023", f"schedule must be one of {', '.join(SCHEDULES)}. Received: 'fastest'", "If you omit it",
        schedule="'fastest'",
    ),
    BadCall(
        "SELECT madlib.training_preprocessor_dl('nowhere', 'never', 'y', 'x')", "42P01",
        "training_preprocessor_dl: source_table does not exist. Received: 'nowhere'", "search_path",
    ),
    BadCall(
        "SELECT madlib.training_preprocessor_dl('train_rows', 'never', 'y', 'x', 0)", "22023",
        "training_preprocessor_dl: buffer_size must be at least 1. Received: 0", "NULL",
    ),
    BadCall(
        "SELECT madlib.madlib_keras_evaluate('nowhere', 'valid', 'never', mst_key := 1)", "42P01",
        "madlib_keras_evaluate: model_table does not exist. Received: 'nowhere'", "search_path",
    ),
    BadCall("SELECT madlib_mop.resume(0)", "22023", "resume: you have no run with this run_id", "progress"),
)  # fmt: skip
