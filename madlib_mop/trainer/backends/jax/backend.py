"""JAX as the backend of Keras; see ``base/interface.py``, and ``loop.py`` for the loops over mini-batches."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp
from mop_backend.keras_backends import FACTS, USE_GPUS_WITH, BackendName

from madlib_mop.errors import Unsupported
from madlib_mop.trainer.backends.base.columns import Columns, DataSpec
from madlib_mop.trainer.backends.base.interface import (
    Backend,
    EvaluatePass,
    FusedModel,
    MemberModel,
    PredictBatch,
    TensorForm,
    TrainPass,
)
from madlib_mop.trainer.backends.jax import compiling, fused, loop
from madlib_mop.trainer.process.failures import INPUT, RequestFailure


class Jax(Backend):
    """JAX: a pass is one function compiled by XLA, for the shapes of its arguments."""

    name = BackendName.JAX
    least_free_bytes = 64 << 20
    rows_of_predictions = 64  # XLA compiles for a number of rows, and rounds differently for another one
    compiles_for_rows = True
    computes_parts = False  # in a step, XLA combines operations of all layers in other groups, and rounds differently

    def __init__(self) -> None:
        self._compiling = compiling.watch()

    def version(self) -> str:
        return str(jax.__version__)

    def set_threads(self, n_threads: int) -> None:
        if n_threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.environ["NPROC"] = str(n_threads)  # XLA's number of threads
        jax.config.update("jax_cpu_enable_async_dispatch", False)

    def open_gpus(self) -> list[str]:
        return []

    def no_gpu(self) -> RequestFailure:
        return RequestFailure(INPUT, Unsupported(f"use_gpus: {FACTS[self.name].no_gpus}", hint=USE_GPUS_WITH))

    def start_threads(self) -> None:
        ones = jnp.ones((8, 8))
        jnp.matmul(ones, ones).block_until_ready()

    def seconds_of_compiling(self) -> float:
        return self._compiling.seconds()

    def seed(self, seed: int) -> None:
        """Do nothing: JAX has no global generator."""

    def value_of(self, variable: keras.Variable) -> np.ndarray:
        return np.asarray(variable.value)

    def tensor_of(self, array: np.ndarray) -> jax.Array:
        tensor: jax.Array = jnp.from_dlpack(array)
        return tensor

    def tensor_form(self, value: Any) -> TensorForm:
        tensor = jnp.asarray(value)
        is_number = bool(jnp.issubdtype(tensor.dtype, jnp.number) or tensor.dtype == jnp.bool_)
        return TensorForm(tensor, str(tensor.dtype), is_number, tuple(tensor.shape))

    def strength_variable(self, strength: float) -> loop.Strength:
        return loop.Strength(strength)

    def columns(
        self,
        xs: Sequence[np.ndarray],
        ys: Sequence[np.ndarray],
        normalizing_const: float,
        row_weights: np.ndarray | None = None,
    ) -> Columns:
        return Columns(xs, ys, [] if row_weights is None else [row_weights], np.float32(normalizing_const))

    def train_pass(self, model: keras.Model, spec: DataSpec, weighted: bool, static_batch: int) -> TrainPass:
        return loop.train_pass(model)

    def evaluate_pass(self, model: keras.Model, spec: DataSpec) -> EvaluatePass:
        return loop.evaluate_pass(model)

    def predict_batch(self, model: keras.Model, spec: DataSpec, normalizing_const: float) -> PredictBatch:
        return loop.predict_batch(model, normalizing_const)

    def fused_model(self, member: MemberModel, optimizer: keras.Optimizer, n_places: int) -> FusedModel:
        return fused.MappedModel(member, n_places)


BACKEND = Jax()
