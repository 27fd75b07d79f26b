"""The functions that write what models are made of: architectures, configurations, custom functions."""

from madlib_mop.calls import shared
from madlib_mop.calls.argument import Argument, Function
from madlib_mop.calls.checks import Given, Whole
from madlib_mop.calls.training import RANDOM_STATE_CHECK

_ARCH_TABLE = "keras_model_arch_table"
_OBJECT_TABLE = Argument("object_table", "varchar", "a table of schema madlib, without the schema; created if absent")
_OBJECTS = Argument("object_table", "varchar", "a table of schema madlib, without the schema")

LOAD_KERAS_MODEL = Function(
    "load_keras_model",
    "Store the architecture of a Keras model as a row of a table, so that it can be trained.",
    (
        Argument(_ARCH_TABLE, "varchar", "the table; made on the first load"),
        Argument(
            "model_arch", "json", "what Keras' model.to_json() returns",
            check=Given("Give what Keras' model.to_json() returns."),
        ),
        Argument("model_weights", "bytea", "start weights", default=None),
        Argument("name", "text", "a name for the model", default=None),
        Argument("description", "text", "what it is for", default=None),
        Argument("weights", "text", "a table to take start weights from, by the names of layers", default=None),
        Argument("weights_key", "integer", "mst_key or model_id of its row", default=None),
    ),
)  # fmt: skip

DELETE_KERAS_MODEL = Function(
    "delete_keras_model",
    "Delete an architecture from its table.",
    (
        Argument(_ARCH_TABLE, "varchar", "a table that load_keras_model made"),
        Argument("model_id", "integer", "the row to delete", check=Given()),
    ),
)

LOAD_MODEL_SELECTION_TABLE = Function(
    "load_model_selection_table",
    "Write every combination of architectures, compile and fit parameters into a model selection table.",
    (
        shared.MODEL_ARCH_TABLE,
        Argument("model_selection_table", "varchar", "table to create; it must not exist"),
        shared.MODEL_ID_LIST,
        Argument("compile_params_list", "varchar[]", "compile parameters, one text for each choice"),
        Argument("fit_params_list", "varchar[]", "fit parameters, one text for each choice; '': the defaults"),
        shared.OBJECT_TABLE,
    ),
)

GENERATE_MODEL_CONFIGS = Function(
    "generate_model_configs",
    "Fill a model selection table by a grid, or by random search.",
    (
        shared.MODEL_ARCH_TABLE,
        Argument("model_selection_table", "varchar", "created if absent, otherwise appended to"),
        shared.MODEL_ID_LIST,
        Argument("compile_params_grid", "varchar", "a dict of lists of compile parameters"),
        Argument("fit_params_grid", "varchar", "a dict of lists of fit parameters"),
        Argument("search_type", "varchar", "'grid' or 'random', or how one begins", default="grid"),
        Argument("num_configs", "integer", "how many to draw; random search only", default=None),
        Argument("random_state", "integer", "makes random search repeatable", default=None, check=RANDOM_STATE_CHECK),
        shared.OBJECT_TABLE,
    ),
)

LOAD_CUSTOM_FUNCTION = Function(
    "load_custom_function",
    "Register a loss or a metric of your own, so that compile parameters can name it (superusers).",
    (
        _OBJECT_TABLE,
        Argument("object", "bytea", "Python source in UTF-8 that defines a function of that name"),
        Argument("name", "text", "what compile parameters write; its case is kept"),
        Argument("description", "text", "what it is for", default=None),
    ),
)

DELETE_CUSTOM_FUNCTION = Function(
    "delete_custom_function",
    "Delete a custom function from its table, and with the last one the table (superusers).",
    (
        _OBJECTS,
        Argument("id", "integer", "the function's id"),
        Argument("name", "text", "the function's name"),
    ),
    forms=(("object_table", "id"), ("object_table", "name")),
)

LOAD_TOP_K = Function(
    "load_top_k_accuracy_function",
    "Register the metric top_k_accuracy for one k, so that compile parameters can name it (superusers).",
    (
        _OBJECT_TABLE,
        Argument(
            "k", "integer", "a row counts as right if its class is among the k with the highest scores",
            check=Whole(1, must="must be a whole number of 1 or more", is_needed=True),
        ),
    ),
)  # fmt: skip

FUNCTIONS = (
    LOAD_KERAS_MODEL,
    DELETE_KERAS_MODEL,
    LOAD_MODEL_SELECTION_TABLE,
    GENERATE_MODEL_CONFIGS,
    LOAD_CUSTOM_FUNCTION,
    DELETE_CUSTOM_FUNCTION,
    LOAD_TOP_K,
)
