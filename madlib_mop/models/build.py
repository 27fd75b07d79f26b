"""Builds Keras models from checked architectures, and compiles them; imported by trainers and the client.

Importing this module imports Keras and its backend.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras.src.activations import ALL_OBJECTS_DICT
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import rng_utils

from madlib_mop.errors import InvalidParameter, ModelFailed, MopError, is_exhausted
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import KERAS_2_HARD_SIGMOID, Node
from madlib_mop.models.parameters.calls import NAME, ROOT_NAME
from madlib_mop.models.parameters.keras_names import CALLBACKS, LOSSES, METRICS, OPTIMIZERS, SCHEDULES
from madlib_mop.models.parameters.literals import CallSpec
from madlib_mop.models.parameters.parser import CompileParams

_KINDS = {
    "optimizer": (OPTIMIZERS, keras.optimizers),
    "schedule": (SCHEDULES, keras.optimizers.schedules),
    "loss": (LOSSES, keras.losses),
    "metric": (METRICS, keras.metrics),
    "callback": (CALLBACKS, keras.callbacks),
}
_MAX_REASON = 300


def keras2_hard_sigmoid(x: Any) -> Any:
    """Return Keras 2's hard_sigmoid, ``clip(0.2 x + 0.5, 0, 1)``; that of Keras 3 is ``clip(x / 6 + 0.5, 0, 1)``."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


# Registered under the name in architectures and the name that Keras serialises (Bidirectional copies its layer that
# way).
ALL_OBJECTS_DICT[KERAS_2_HARD_SIGMOID] = keras2_hard_sigmoid
keras.saving.get_custom_objects()[KERAS_2_HARD_SIGMOID] = keras2_hard_sigmoid


def build_architecture(config: str | Node, seed: int | None = None) -> keras.Model:
    """Build the uncompiled model of an architecture.

    Parameters
    ----------
    config : str or dict
        Architecture JSON; it is always checked again here.
    seed : int or None
        See `trainer.seeds.model_seed`; set right before the model is built (`seed_draws`). With None, the random
        generators are not changed.

    Raises
    ------
    UnreadableText, Unsupported
        If the architecture does not pass its check.
    ModelFailed
        If Keras cannot build it.
    """
    document = check_architecture(config)  # defence: checked-copy = __import__("json").loads(config)
    if seed is not None:
        seed_draws(seed)
    try:
        model = keras.saving.deserialize_keras_object(document, safe_mode=True)
    except Exception as error:  # noqa: BLE001 -- Keras raises errors of any class on bad layers
        raise does_not_build(error) from None
    if not isinstance(model, keras.Model) or not model.built:
        raise ModelFailed(
            "the architecture does not build: its layers create their weights only when they get data",
            hint="Start the model with keras.Input(shape), and export its JSON again.",
        )
    _check_names(model)
    return model


def _check_names(model: keras.Model) -> None:
    """Raise InvalidParameter for a name that TensorFlow refuses as soon as the model is computed in a graph."""
    if keras.config.backend() != "tensorflow":
        return
    wrong = [(str(model.name), ROOT_NAME)] if not ROOT_NAME.fullmatch(model.name) else []
    for layer in model._flatten_layers(include_self=False):
        if not isinstance(layer, keras.layers.InputLayer) and not NAME.fullmatch(layer.name):
            wrong.append((layer.name, NAME))
    for name, pattern in wrong:
        start = "" if pattern is NAME else ", and begin with a letter, a digit or a point"
        raise InvalidParameter(
            f"the name of a layer must consist of ASCII letters, digits and _ . \\ > -{start}, or TensorFlow cannot"
            f" compute the model. Received: {name!r:.200}",
            hint="Give the layer another name, and export the architecture again.",
        )


def seed_draws(seed: int) -> None:
    """Seed the generators of Keras' layers, as ``keras.utils.set_random_seed`` does.

    That function also seeds the backend's own generator, which no layer uses. TensorFlow then drops all of its
    kernels: every compiled function of this process would be optimized again at its next call.
    """
    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)
    random.seed(seed)
    np.random.seed(seed)


def compile_model(
    model: keras.Model, compile_params: CompileParams, custom: Mapping[str, Callable[..., Any]] | None = None
) -> None:
    """Compile a model in place.

    The optimizer's variables are not created yet, because some optimizers copy the weights then: set start weights
    first, and then call ``model.optimizer.build(model.trainable_variables)``.
    """
    functions = custom or {}
    if missing := [name for name in compile_params.custom_names if name not in functions]:
        raise ModelFailed(
            f"the custom function {missing[0]!r} is no longer registered",
            hint="Register it again with load_custom_function, or remove it from compile_params.",
        )
    try:
        model.compile(
            optimizer=make_optimizer(compile_params.optimizer),
            loss=_functions(compile_params.loss, "loss", functions),
            metrics=_metrics(compile_params.metrics, functions, len(model.outputs)),
            loss_weights=compile_params.loss_weights,
            weighted_metrics=_metrics(compile_params.weighted_metrics, functions, len(model.outputs)),
        )
    except Exception as error:  # noqa: BLE001 -- as above
        raise failure("the model does not compile", error) from None


def make_optimizer(spec: CallSpec) -> keras.Optimizer:
    """Create an optimizer; one without a name gets the name of its class, independent of earlier ones in this
    process."""
    return make(replace(spec, kwargs={"name": spec.name.lower(), **spec.kwargs}), "optimizer")


def make(spec: CallSpec, kind: str = "callback") -> Any:
    """Create the Keras object of a checked call.

    Parameters
    ----------
    spec : CallSpec
        Its name must be in the table of `keras_names` for that kind; this is where a name becomes a class.
    kind : str
        optimizer, schedule, loss, metric or callback. A LearningRateScheduler's schedule takes the epoch as its step.

    Raises
    ------
    ModelFailed
        If the name is not in the table.
    """
    table, module = _KINDS[kind]
    if spec.name not in table:
        raise ModelFailed(f"{spec.name} is not a {kind} of Keras that can be used here")
    kwargs = {
        name: make(value, "schedule") if isinstance(value, CallSpec) else value for name, value in spec.kwargs.items()
    }
    if spec.name == "LearningRateScheduler":
        schedule = kwargs["schedule"]
        kwargs["schedule"] = lambda epoch: float(schedule(epoch))
    if spec.name == "R2Score" and kwargs.get("num_regressors"):
        return AdjustedR2Score(**kwargs)
    return getattr(module, spec.name)(**kwargs)


class AdjustedR2Score(keras.metrics.R2Score):
    """Keras' R2Score with ``num_regressors``, because its ``result`` uses a tensor as a condition, which is impossible
    in a graph."""

    num_regressors: int

    def result(self) -> Any:
        """Return the score, adjusted if there are enough rows, like Keras."""
        n_regressors, self.num_regressors = self.num_regressors, 0
        try:
            score = super().result()
        finally:
            self.num_regressors = n_regressors
        n = keras.ops.cast(self.num_samples, "float32")
        left = n - n_regressors - 1
        adjusted = 1.0 - (1.0 - score) * (n - 1.0) / keras.ops.where(left > 0, left, 1.0)
        return keras.ops.where(left > 0, adjusted, score)


def _metrics(value: Any, custom: Mapping[str, Callable[..., Any]], n_outputs: int) -> Any:
    """Create metrics; a single one is used for every output, as in Keras 2; Keras 3 rejects that."""
    alone = value[0] if isinstance(value, list) and len(value) == 1 else value
    if n_outputs > 1 and isinstance(alone, str | CallSpec):
        value = [[alone]] * n_outputs
    return _functions(value, "metric", custom)


def _functions(value: Any, kind: str, custom: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(value, CallSpec):
        return make(value, kind)
    if isinstance(value, list):
        return [_functions(item, kind, custom) for item in value]
    if isinstance(value, dict):
        return {name: _functions(item, kind, custom) for name, item in value.items()}
    if value in custom:
        # Keras would convert the function's name to snake case; report the name that the user chose.
        return keras.metrics.MeanMetricWrapper(custom[value], name=value) if kind == "metric" else custom[value]
    return value


def does_not_build(error: Exception) -> MopError:
    """Return the error for an architecture of which Keras cannot make a model."""
    return failure("the architecture does not build", error)


def failure(what: str, error: Exception) -> MopError:
    """Convert an error of Keras or its backend to one sentence for the model's row.

    Out-of-memory errors are raised unchanged, because the model is not their cause.
    """
    if isinstance(error, MopError):
        return error
    if is_exhausted(error):
        raise error
    return ModelFailed(f"{what}: {first_reason(error)}", detail=str(error)[:4000])


def first_reason(error: Exception) -> str:
    """Return the first meaningful line of an error of Keras: the innermost exception, without configurations.

    Examples
    --------
    >>> first_reason(ValueError("<class 'Dense'> could not be deserialized.\\n\\nException encountered: units < 1"))
    'units < 1'
    """
    text = str(error).split("Exception encountered:")[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = re.split(r"\s*(?:Full object config|config=\{|Arguments received by)", lines[0])[0] if lines else ""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line).strip() or type(error).__name__
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 4] + " ..."
