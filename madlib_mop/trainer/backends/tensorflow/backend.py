"""TensorFlow as the backend of Keras; see ``base/interface.py``, and ``loop.py`` for the loops over mini-batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from mop_backend.keras_backends import BackendName

from madlib_mop.exports.formats import Format
from madlib_mop.models.prefix import Split
from madlib_mop.trainer.backends.base.columns import Columns, DataSpec
from madlib_mop.trainer.backends.base.interface import (
    Backend,
    Converter,
    EvaluatePass,
    FusedModel,
    MemberModel,
    PredictBatch,
    PrefixBatch,
    TensorForm,
    TrainPass,
)
from madlib_mop.trainer.backends.base.metric_sums import scalar
from madlib_mop.trainer.backends.tensorflow import fused, gpus, loop
from madlib_mop.trainer.data.shard_file import ReadAhead


class TensorFlow(Backend):
    """TensorFlow: a pass is one traced function."""

    name = BackendName.TENSORFLOW
    least_free_bytes = 64 << 20

    def version(self) -> str:
        return str(tf.__version__)

    def set_threads(self, n_threads: int) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(n_threads)
        tf.config.threading.set_inter_op_parallelism_threads(n_threads)
        tf.config.set_soft_device_placement(True)

    def open_gpus(self) -> list[str]:
        return gpus.take()

    def start_threads(self) -> None:
        tf.matmul(tf.ones((8, 8)), tf.ones((8, 8))).numpy()

    def seed(self, seed: int) -> None:
        tf.random.set_seed(seed)

    def value_of(self, variable: keras.Variable) -> np.ndarray:
        return np.asarray(variable.value.read_value())

    def tensor_of(self, array: np.ndarray) -> tf.Tensor:
        return loop.tensor_of(array)

    def tensor_form(self, value: Any) -> TensorForm:
        tensor = value if tf.is_tensor(value) else tf.convert_to_tensor(value)
        dtype, shape = tensor.dtype, tensor.shape
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        return TensorForm(tensor, dtype.name, is_number, None if shape.rank is None else tuple(shape))

    def strength_variable(self, strength: float) -> tf.Variable:
        return tf.Variable(strength, dtype=tf.float32, trainable=False)

    def columns(
        self,
        xs: Sequence[np.ndarray],
        ys: Sequence[np.ndarray],
        normalizing_const: float,
        row_weights: np.ndarray | None = None,
    ) -> Columns:
        weights = [] if row_weights is None else [tf.constant(row_weights)]
        constant = tf.constant(normalizing_const, tf.float32)
        return Columns(list(map(loop.tensor_of, xs)), list(map(loop.tensor_of, ys)), weights, constant)

    def static_batch_of(self, n_rows: int, batch_size: int, inherited: int | None) -> tuple[int, int]:
        return loop.static_batch_of(n_rows, batch_size, inherited)

    def train_pass(self, model: keras.Model, spec: DataSpec, weighted: bool, static_batch: int) -> TrainPass:
        run = loop.make_train_pass(model, spec, weighted, static_batch).get_concrete_function()

        def train(
            columns: Columns, order: np.ndarray, batch_size: int, n_batches: int, ahead: ReadAhead | None = None
        ) -> dict[str, float]:
            for part, n_of_part in loop.stretches(order, batch_size, n_batches, ahead):
                sizes = tf.constant(batch_size, tf.int64), tf.constant(n_of_part, tf.int64)
                data = columns.xs, columns.ys, columns.row_weights
                logs = run(*data, tf.constant(part, tf.int64), *sizes, columns.constant)
            return {name: scalar(value) for name, value in logs.items()}

        return train

    def evaluate_pass(self, model: keras.Model, spec: DataSpec) -> EvaluatePass:
        run = loop.make_evaluate_pass(model, spec).get_concrete_function()

        def evaluate(columns: Columns, batch_size: int) -> np.ndarray:
            size = tf.constant(batch_size, tf.int64)
            sums: np.ndarray = run(columns.xs, columns.ys, size, columns.constant).numpy()
            return sums

        return evaluate

    def prefix_batch(self, split: Split, spec: DataSpec, static_batch: int) -> PrefixBatch:
        run = loop.make_prefix_batch(split, spec, static_batch).get_concrete_function()

        def compute(columns: Columns, rows: np.ndarray) -> list[np.ndarray]:
            return [made.numpy() for made in run(columns.xs, tf.constant(rows, tf.int64), columns.constant)]

        return compute

    def predict_batch(self, model: keras.Model, spec: DataSpec, normalizing_const: float) -> PredictBatch:
        constant = tf.constant(normalizing_const, tf.float32)
        return loop.TracedCall(loop.make_predict_batch(model, spec), constant)

    def fused_model(self, member: MemberModel, optimizer: keras.Optimizer, n_places: int) -> FusedModel:
        return fused.StackedModel(member, optimizer, n_places)

    def converters(self) -> Mapping[Format, Converter]:
        from madlib_mop.trainer.backends.tensorflow import exporting  # imported only for exports

        return exporting.CONVERTERS


BACKEND = TensorFlow()
