"""The driver's commands: which Python function does the work of which SQL function."""

from collections.abc import Callable
from importlib import import_module

from madlib_mop.errors import Unsupported

COMMANDS = {
    "help": "help:give_help",
    "version": "installation:version",
    "load_keras_model": "architectures:load_keras_model",
    "delete_keras_model": "architectures:delete_keras_model",
    "load_custom_function": "custom_functions:load_custom_function",
    "delete_custom_function": "custom_functions:delete_custom_function",
    "load_top_k_accuracy_function": "custom_functions:load_top_k_accuracy_function",
    "load_model_selection_table": "configurations:load_model_selection_table",
    "generate_model_configs": "configurations:generate_model_configs",
    "training_preprocessor_dl": "preprocess:training_preprocessor_dl",
    "validation_preprocessor_dl": "preprocess:validation_preprocessor_dl",
    "madlib_keras_fit_multiple_model": "fit:madlib_keras_fit_multiple_model",
    "madlib_keras_fit": "fit:madlib_keras_fit",
    "madlib_keras_automl": "automl:madlib_keras_automl",
    "hyperband_schedule": "automl:hyperband_schedule",
    "add_host": "hosts:add_host",
    "remove_host": "hosts:remove_host",
    "gpu_configuration": "gpu_configuration:gpu_configuration",
    "resume": "runs:resume",
    "cancel": "runs:cancel",
    "replay": "runs:replay",
    "drop_run": "runs:drop_run",
    "drop_models": "runs:drop_models",
    "madlib_keras_evaluate": "evaluate:madlib_keras_evaluate",
    "madlib_keras_predict": "predict:madlib_keras_predict",
    "madlib_keras_predict_byom": "predict:madlib_keras_predict_byom",
    "predict": "scoring:predict",
}


def find_command(function: str) -> Callable:
    """Return the Python function behind an SQL function; each command's module is imported only when it is needed."""
    try:
        module, name = COMMANDS[function].split(":")
    except KeyError:
        raise Unsupported(f"there is no command {function!r}") from None
    return getattr(import_module(f"madlib_mop.driver.commands.{module}"), name)
