"""The driver's commands: maps SQL functions to Python functions."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from madlib_mop.calls.steering import FUNCTIONS as STEERING
from madlib_mop.errors import no_command

if TYPE_CHECKING:
    from madlib_mop.driver.session.call import Call

#: Executes a call; returns what the SQL function returns, in the encoding of `mop_backend.values`.
Command = Callable[["Call"], Any]

COMMANDS = {
    "help": "commands.help:show_help",
    "version": "commands.installation:version",
    "load_keras_model": "commands.architectures:load_keras_model",
    "delete_keras_model": "commands.architectures:delete_keras_model",
    "load_custom_function": "commands.custom_functions:load_custom_function",
    "delete_custom_function": "commands.custom_functions:delete_custom_function",
    "load_top_k_accuracy_function": "commands.custom_functions:load_top_k_accuracy_function",
    "load_model_selection_table": "commands.configurations:load_model_selection_table",
    "generate_model_configs": "commands.configurations:generate_model_configs",
    "learn": "learning.command:learn",
    "propose_columns": "columns.proposing:propose_columns",
    "pack_columns": "columns.packing:pack_columns",
    "drop_packed": "packing.dropping:drop_packed",
    "describe_preprocessor": "columns.describing:describe_preprocessor",
    "transform": "columns.transforming:transform",
    "propose_networks": "networks.proposing:propose_networks",
    "propose_search": "networks.proposing:propose_search",
    "training_preprocessor_dl": "columns.arrays:training_preprocessor_dl",
    "validation_preprocessor_dl": "columns.validation:validation_preprocessor_dl",
    "madlib_keras_fit_multiple_model": "commands.fit:madlib_keras_fit_multiple_model",
    "madlib_keras_fit": "commands.fit:madlib_keras_fit",
    "madlib_keras_automl": "commands.automl:madlib_keras_automl",
    "explain_fit": "commands.explain_fit:explain_fit",
    "hyperband_schedule": "commands.automl:hyperband_schedule",
    "add_host": "commands.hosts:add_host",
    "remove_host": "commands.hosts:remove_host",
    "gpu_configuration": "commands.installation:gpu_configuration",
    "resume": "commands.runs:resume",
    "cancel": "commands.runs:cancel",
    "replay": "commands.runs:replay",
    "report": "commands.runs:report",
    "drop_run": "commands.runs:drop_run",
    "end_lost_run": "commands.runs:end_lost_run",
    "drop_models": "commands.runs:drop_models",
    **dict.fromkeys((function.name for function in STEERING), "changes.people:steer"),
    "command": "changes.people:command",
    "submit": "jobs.submitting:submit",
    **{name: f"jobs.changing:{name}" for name in ("cancel_job", "run_now", "alter_job", "purge_jobs")},
    "madlib_keras_evaluate": "commands.evaluate:madlib_keras_evaluate",
    "madlib_keras_predict": "commands.predict:madlib_keras_predict",
    "madlib_keras_predict_byom": "commands.predict:madlib_keras_predict_byom",
    "score": "commands.predict:score",
    "predict": "commands.scoring:predict",
    "explain_prediction": "commands.explaining:explain_prediction",
    "importance": "commands.explaining:importance",
    "partial_dependence": "commands.explaining:partial_dependence",
    "metrics": "commands.measuring:metrics",
    "confusion_matrix": "commands.measuring:confusion_matrix",
    "roc_curve": "commands.measuring:roc_curve",
    "precision_recall_curve": "commands.measuring:precision_recall_curve",
    "choose_threshold": "commands.measuring:choose_threshold",
    "reliability": "commands.measuring:reliability",
    "gradient_boosting": "commands.boosting:gradient_boosting",
    "make_ensemble": "commands.ensemble:make_ensemble",
    "export_model": "exports.exporting:export_model",
    "export_parts": "exports.exporting:export_parts",
    "model_card": "exports.exporting:model_card",
    "import_model": "imports.architectures:import_model",
    "import_weights": "imports.architectures:import_weights",
    "import_version": "imports.versions:import_version",
    "register": "registry.registering:register",
    "deploy": "registry.deploying:deploy",
    "drift": "drift.command:drift",
}


def find_command(function: str) -> Command:
    """Return the Python function behind an SQL function; each command's module is imported only when it is needed."""
    try:
        module, name = COMMANDS[function].split(":")
    except KeyError:
        raise no_command(function) from None
    command: Command = getattr(import_module(f"madlib_mop.driver.{module}"), name)
    return command
