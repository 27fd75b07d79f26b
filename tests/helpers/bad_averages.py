"""Bad inputs to madlib_keras_fit with their errors, for test_averaging_errors."""

from tests.helpers.bad_inputs import COMPILE, case
from tests.helpers.no_gpu import HINT, NO_GPU

HOPPERS = "warm start cannot write its results into"
CASES = [
    case("22023", "num_iterations must be at least 1. Received: 0", "whole number", num_iterations=0),
    case("22023", "num_iterations must be at least 1. Received: NULL", "whole number", num_iterations=None),
    case(
        "22023", "metrics_compute_frequency must be from 1 to num_iterations (2). Received: 3", "Omit it",
        metrics_compute_frequency=3,
    ),
    case("22023", "seed must be from 0 to 2147483647. Received: -1", "If you omit it", seed=-1),
    case("0A000", f"use_gpus => true: {NO_GPU}", HINT, use_gpus=True),
    case("22023", "source_table is missing. Received: NULL", "", source_table=None),
    case("42P01", "source_table does not exist. Received: 'nowhere'", "", source_table="nowhere"),
    case("42P01", "source_table: table public.train_rows is not packed", "Pack", source_table="train_rows"),
    case("42P01", "validation_table does not exist. Received: 'nowhere'", "", validation_table="nowhere"),
    case("22023", "validation_table: its normalizing_const", "training_preprocessor", validation_table="other_const"),
    case("22023", "validation_table: column 'x' of public.text_x must be of type bytea. Received: text", "Pack",
         validation_table="text_x"),
    case("22023", "model is missing. Received: NULL", "", model=None),
    case("42P07", "model: tables public.train and public.train_summary exist already", "Drop them", model="train"),
    case("22P02", "model cannot be read. Received: 'a.b.c'", "schema.name", model="a.b.c"),
    case("22023", "model_arch_table is missing. Received: NULL", "", model_arch_table=None),
    case("42703", "model_arch_table: table public.train has no column 'model_id'", "", model_arch_table="train"),
    case("22023", "model_id is missing. Received: NULL", "SELECT model_id", model_id=None),
    case("22023", "model_arch_table: public.arch must have one row", "load_keras_model", model_id=99),
    case("22P02", "compile_params", "", compile_params="optimizer="),
    case("22023", "compile_params", "", compile_params=None),
    case("22023", "compile_params", "", compile_params="optimizer='sgd'"),
    case("22023", "compile_params: loss: neither Keras nor the custom functions have a", "",
         compile_params="optimizer='sgd', loss='custom_fn'"),
    case("22023", "compile_params: metrics: neither Keras nor the custom functions have a", "",
         compile_params="optimizer='sgd', loss='mse', metrics=['mae', 'custom_fn']"),
    case("22023", "fit_params", "", fit_params="batch_size=0"),
    case("42P01", "object_table does not exist in schema madlib", "load_custom_function", object_table="nowhere"),
    case("42P01", "model does not exist. Received: 'nowhere'", "", model="nowhere", warm_start=True),
    case("42P01", "model: warm_start needs a table that madlib_keras_fit wrote", "omit", model="train",
         warm_start=True),
    case("42P01", "model: warm_start needs a table that madlib_keras_fit wrote", "omit", model="multi",
         warm_start=True),
    case("22023", "model: a warm start needs a table with one row; public.arch has ", "new name", model="arch",
         warm_start=True),
    case("22023", f"model: a {HOPPERS} public.lone", "Omit warm_start", model="lone", warm_start=True),
]  # fmt: skip
GOOD = {
    "source_table": "train", "model": "never", "model_arch_table": "arch", "model_id": 1, "compile_params": COMPILE,
    "fit_params": "batch_size=8, epochs=1", "num_iterations": 2,
}  # fmt: skip
