"""The functions that define models: architectures, configurations, custom functions."""

from madlib_mop.calls import shared
from madlib_mop.calls.argument import Argument, Function, Given, Label, Whole
from madlib_mop.calls.training import RANDOM_STATE_CHECK

_ARCH_TABLE = "keras_model_arch_table"
_OBJECT_TABLE = Argument(
    "object_table", "varchar", "name of a table of schema madlib, without the schema; created if absent"
)
_OBJECTS = Argument("object_table", "varchar", "name of a table of schema madlib, without the schema")

LOAD_KERAS_MODEL = Function(
    "load_keras_model",
    "Store the architecture of a Keras model as a row of a table.",
    (
        Argument(_ARCH_TABLE, "varchar", "table of architectures; the first call creates it"),
        Argument(
            "model_arch", "json", "what Keras' model.to_json() returns",
            check=Given("Pass the output of Keras' model.to_json()."),
        ),
        Argument(
            "model_weights", "bytea", "start weights, as float32 in the order of Keras' get_weights()", default=None
        ),
        Argument("name", "text", "a name for the model", default=None),
        Argument("description", "text", "a description of the model", default=None),
        Argument(
            "weights", "text", "table with weights; each layer takes those of the layer of the same name", default=None
        ),
        Argument("weights_key", "integer", "mst_key or model_id of the row with the weights", default=None),
    ),
    comments=("Adds an architecture, with or without start weights, to a table of architectures",),
)  # fmt: skip

_FILE_HINT = "The file itself, such as pg_read_binary_file('/path/model.keras') or the bytes that a program has read."
IMPORT_MODEL = Function(
    "import_model",
    "Add the model of a .keras file to a table of architectures, with its weights as start weights. Return its"
    " model_id.",
    (
        Argument("model_arch_table", "text", "table of architectures; the first call creates it"),
        Argument("file", "bytea", "a .keras file, as Keras 3 writes it", check=Given(_FILE_HINT)),
        Argument("name", "text", "a name for the model", default=None),
        Argument("description", "text", "a description of the model", default=None),
    ),
    schema="madlib_mop",
    comments=(
        "Adds the model of a .keras file to a table of architectures, with its weights as start weights; returns its"
        " model_id",
    ),
    returns="integer",
)
IMPORT_WEIGHTS = Function(
    "import_weights",
    "Set the weights of an architecture of a table to those of a file. Return the number of layers that got weights.",
    (
        Argument("model_arch_table", "text", "table of architectures, made by load_keras_model or import_model"),
        Argument("model_id", "integer", "the row that gets the weights"),
        Argument("file", "bytea", "a .keras, .weights.h5, .h5 or .safetensors file", check=Given(_FILE_HINT)),
        Argument(
            "by_name", "boolean",
            "true: layers are matched by name, and layers without a match keep their weights; false: all layers are"
            " matched by order",
            default=False,
        ),
        Argument("skip_mismatch", "boolean", "whether layers that do not fit are left as they are", default=False),
    ),
    schema="madlib_mop",
    comments=(
        "Gives an architecture of a table the weights of a .keras, .weights.h5, .h5 or .safetensors file; returns"
        " the number of layers that got weights",
    ),
    returns="integer",
)  # fmt: skip

DELETE_KERAS_MODEL = Function(
    "delete_keras_model",
    "Delete an architecture from its table.",
    (
        Argument(_ARCH_TABLE, "varchar", "table of architectures, made by load_keras_model"),
        Argument("model_id", "integer", "the row to delete", check=Given()),
    ),
    comments=("Deletes an architecture from its table, and the table with the last one",),
)

LOAD_MODEL_SELECTION_TABLE = Function(
    "load_model_selection_table",
    "Write every combination of the listed architectures and parameters into a model selection table.",
    (
        shared.MODEL_ARCH_TABLE,
        Argument("model_selection_table", "varchar", "table to create; it must not exist"),
        shared.MODEL_ID_LIST,
        Argument("compile_params_list", "varchar[]", "sets of compile parameters, one text each"),
        Argument("fit_params_list", "varchar[]", "sets of fit parameters, one text each; '' means the defaults"),
        shared.OBJECT_TABLE,
    ),
    comments=("Creates a model selection table of all combinations of architectures, compile and fit parameters",),
)

GENERATE_MODEL_CONFIGS = Function(
    "generate_model_configs",
    "Fill a model selection table by grid search or random search.",
    (
        shared.MODEL_ARCH_TABLE,
        Argument("model_selection_table", "varchar", "table to create, or to append to if it exists"),
        shared.MODEL_ID_LIST,
        Argument("compile_params_grid", "varchar", "a dict that lists the values of each compile parameter"),
        Argument("fit_params_grid", "varchar", "a dict that lists the values of each fit parameter"),
        Argument("search_type", "varchar", "'grid' or 'random'; the first letters are enough", default="grid"),
        Argument("num_configs", "integer", "number of configurations to draw; random search only", default=None),
        Argument(
            "random_state",
            "integer",
            "seed of random search; the same seed draws the same configurations",
            default=None,
            check=RANDOM_STATE_CHECK,
        ),
        shared.OBJECT_TABLE,
    ),
    comments=("Fills a model selection table by grid search or random search; appends to an existing one",),
)

LOAD_CUSTOM_FUNCTION = Function(
    "load_custom_function",
    "Register a loss or a metric of your own for compile parameters (superusers only).",
    (
        _OBJECT_TABLE,
        Argument("object", "bytea", "Python source in UTF-8 that defines a function of the given name"),
        Argument(
            "name", "text", "name of the function in compile parameters; case-sensitive",
            check=Label(200, is_needed=True),
        ),
        Argument("description", "text", "a description of the function", default=None),
    ),
    comments=("Registers a loss or metric, as Python source in UTF-8, in a table of schema madlib (superusers)",),
    takes_path=False,
)

DELETE_CUSTOM_FUNCTION = Function(
    "delete_custom_function",
    "Delete a custom function from its table (superusers only). Deleting the last function drops the table.",
    (
        _OBJECTS,
        Argument("id", "integer", "the function's id; pass either id or name"),
        Argument("name", "text", "the function's name; pass either id or name"),
    ),
    forms=(("object_table", "id"), ("object_table", "name")),
    comments=(
        "Deletes a custom function by its id, and the table with the last one (superusers)",
        "Deletes a custom function by its name, and the table with the last one (superusers)",
    ),
    takes_path=False,
)

LOAD_TOP_K = Function(
    "load_top_k_accuracy_function",
    "Register a top-k accuracy as a metric, such as top_3_accuracy (superusers only).",
    (
        _OBJECT_TABLE,
        Argument(
            "k", "integer", "a row counts as correct if its class is one of the k classes with the highest scores",
            check=Whole(1, says_whole=True, is_needed=True),
        ),
    ),
    comments=("Registers the metric top_<k>_accuracy (superusers)",),
    takes_path=False,
)  # fmt: skip

FUNCTIONS = (
    LOAD_KERAS_MODEL,
    IMPORT_MODEL,
    IMPORT_WEIGHTS,
    DELETE_KERAS_MODEL,
    LOAD_MODEL_SELECTION_TABLE,
    GENERATE_MODEL_CONFIGS,
    LOAD_CUSTOM_FUNCTION,
    DELETE_CUSTOM_FUNCTION,
    LOAD_TOP_K,
)
