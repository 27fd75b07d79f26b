"""PyTorch as the backend of Keras; see ``base/interface.py``, and ``loop.py`` for the loops over mini-batches."""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from mop_backend.keras_backends import BackendName

from madlib_mop.errors import Unsupported
from madlib_mop.models.prefix import Split
from madlib_mop.trainer.backends.base.columns import Columns, DataSpec
from madlib_mop.trainer.backends.base.interface import (
    Backend,
    EvaluatePass,
    FusedModel,
    MemberModel,
    PredictBatch,
    PrefixBatch,
    TensorForm,
    TrainPass,
)
from madlib_mop.trainer.backends.torch import loop
from madlib_mop.trainer.process.failures import MODEL, RequestFailure


class Torch(Backend):
    """PyTorch: a step is recorded as a graph of its operations, once for each number of rows in a batch."""

    name = BackendName.TORCH
    least_free_bytes = 64 << 20
    rows_of_predictions = 64  # MKL chooses kernels by the number of rows

    def version(self) -> str:
        return str(torch.__version__)

    def set_threads(self, n_threads: int) -> None:
        torch.set_num_threads(n_threads)
        with contextlib.suppress(RuntimeError):  # it can be set once
            torch.set_num_interop_threads(n_threads)

    def open_gpus(self) -> list[str]:
        numbers = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        for number in numbers:
            ones = torch.ones(8, 8, 8, 8, device=f"cuda:{number}", requires_grad=True)
            torch.matmul(ones, torch.nn.functional.conv2d(ones, ones, padding="same")).sum().backward()
            torch.cuda.synchronize(number)
        return [f"device: {number}, name: {torch.cuda.get_device_name(number)}" for number in numbers]

    def start_threads(self) -> None:
        torch.matmul(torch.ones(8, 8), torch.ones(8, 8))

    def seconds_of_compiling(self) -> float:
        return loop.CAPTURING.seconds()

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def begin_pass(self, seed: int) -> None:
        torch.manual_seed(seed)

    def value_of(self, variable: keras.Variable) -> np.ndarray:
        value: torch.Tensor = variable._value.detach()
        if value.dtype == torch.bfloat16:
            array: np.ndarray = keras.ops.convert_to_numpy(value)
            return array
        found: np.ndarray = value.cpu().numpy()
        return found

    def tensor_of(self, array: np.ndarray) -> torch.Tensor:
        return loop.tensor_of(array)

    def tensor_form(self, value: Any) -> TensorForm:
        tensor = keras.ops.convert_to_tensor(value)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return TensorForm(tensor, dtype, not tensor.is_complex(), tuple(tensor.shape))

    def strength_variable(self, strength: float) -> keras.Variable:
        return keras.Variable(strength, dtype="float32", trainable=False)

    def columns(
        self,
        xs: Sequence[np.ndarray],
        ys: Sequence[np.ndarray],
        normalizing_const: float,
        row_weights: np.ndarray | None = None,
    ) -> Columns:
        weights = [] if row_weights is None else [loop.tensor_of(row_weights)]
        constant = torch.tensor(normalizing_const, dtype=torch.float32, device=loop.DEVICE)
        return Columns(list(map(loop.tensor_of, xs)), list(map(loop.tensor_of, ys)), weights, constant)

    def train_pass(self, model: keras.Model, spec: DataSpec, weighted: bool, static_batch: int) -> TrainPass:
        return loop.train_pass(model)

    def evaluate_pass(self, model: keras.Model, spec: DataSpec) -> EvaluatePass:
        return loop.evaluate_pass(model)

    def prefix_batch(self, split: Split, spec: DataSpec, static_batch: int) -> PrefixBatch:
        return loop.prefix_batch(split)

    def predict_batch(self, model: keras.Model, spec: DataSpec, normalizing_const: float) -> PredictBatch:
        return loop.predict_batch(model, normalizing_const)

    def fused_model(self, member: MemberModel, optimizer: keras.Optimizer, n_places: int) -> FusedModel:
        raise RequestFailure(MODEL, Unsupported("models are not trained together on PyTorch"))


BACKEND = Torch()
