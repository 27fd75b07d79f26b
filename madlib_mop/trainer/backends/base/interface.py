"""The contract of a backend of Keras: everything in the trainer that depends on which library computes.

No code above it (visits, compiled models, features, predictions, the server) imports TensorFlow or another backend: it
calls the `Backend` of its process (``choice.py``), and passes tensors on without reading them. Keras itself may be used
anywhere in the trainer.

The words
    pass      all mini-batches of one shard once: to train, or to evaluate.
    columns   the columns of one shard as tensors of the backend (`Columns`).
    prefix    the frozen first layers of a model, whose outputs (features) are computed once (`Split`).
    fused     several configurations of one shape, trained as one model.

What every backend promises
  - Exact bits: a training pass leaves the variables, bit for bit, as Keras' ``fit`` on this backend with one thread
    does, for the same rows in the same order. A fused model is the exception.
  - A mini-batch costs at most two calls of compiled functions: nothing of Keras runs in Python for it. The exception
    are steps that PyTorch cannot capture.
  - A compiled pass serves every shard, order and batch size of its kind of data; variables are read and written in
    place, so models of one compile signature take turns in it.
  - Importing it computes nothing and starts no thread, so that a process may fork afterwards. `set_threads`,
    `open_gpus` and `start_threads` are called once in a trainer, in this order, before its sandbox is closed.
  - Results are NumPy arrays and Python numbers. An error of the backend itself is raised as it is;
    ``process/failures.py`` makes an answer of it; `madlib_mop.errors.is_exhausted` knows which ones mean too little
    memory.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import numpy as np
from mop_backend.keras_backends import FACTS, BackendName

from madlib_mop.errors import NotReady
from madlib_mop.exports.formats import Format
from madlib_mop.models.prefix import Split
from madlib_mop.models.running import batch_rows
from madlib_mop.models.sharing import Strengths
from madlib_mop.trainer.backends.base.columns import Columns, DataSpec
from madlib_mop.trainer.data.parts import GROUPS, TensorSpec
from madlib_mop.trainer.data.readable import Readable
from madlib_mop.trainer.data.shard_file import ReadAhead
from madlib_mop.trainer.process.failures import INPUT, RequestFailure

#: A tensor of the backend.
Tensor = Any
#: ``f(columns, order, batch_size, n_batches, ahead) -> {metric: value}``; order is int64 ``(n_rows,)``. The last batch
#: has the remaining rows. The metrics are those that ``fit`` logs. If the rows are in a file, ``ahead`` must be told of
#: the batches.
TrainPass = Callable[[Columns, np.ndarray, int, int, ReadAhead | None], dict[str, float]]
#: ``f(columns, batch_size) -> sums`` over all rows: the float64 values of `MetricAccumulator`.
EvaluatePass = Callable[[Columns, int], np.ndarray]
#: ``f(columns, rows) -> [float32 features]`` for rows (int64) of x, with the bits of a training step.
PrefixBatch = Callable[[Columns, np.ndarray], list[np.ndarray]]
#: ``f(xs) -> [float32 outputs]`` for the rows of one batch, of any number; xs are as for `Backend.tensor_of`.
PredictBatch = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
#: ``f(columns, orders, batch_size, n_batches, ahead) -> float32 (metrics, places)``; orders are int64
#: ``(places, n_rows)``.
FusedTrainPass = Callable[[Columns, np.ndarray, int, int, ReadAhead | None], np.ndarray]
#: ``f(columns, batch_size) -> float64 (metrics, places)``: sums over all rows.
FusedEvaluatePass = Callable[[Columns, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class TensorForm:
    """A value as a tensor; ``shape`` is None if its rank is unknown, and has None for sizes that are unknown."""

    tensor: Tensor
    dtype: str
    is_number: bool
    shape: tuple[int | None, ...] | None


@dataclasses.dataclass(frozen=True)
class FileSpec:
    """What a model's file says besides the model: names of inputs and outputs in its order, and texts by name."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    additions: Mapping[str, str]


#: ``f(model, spec) -> file``. Raises errors of any class for models that the format cannot express.
Converter = Callable[[keras.Model, FileSpec], bytes]


class VariableSource(Protocol):
    """Source of a member's variables: a `State`, or the `ModelVariables` of a newly initialized model."""

    def read(self, group: str, index: int) -> np.ndarray:
        """Return one variable."""


class MemberModel(Protocol):
    """A compiled model as fused models need it: it defines the graph of a member; its variables are not changed."""

    groups: dict[str, list[keras.Variable]]
    strengths: dict[tuple[int, str], Any]

    def specs(self) -> Mapping[str, list[TensorSpec]]:
        """Return shape and dtype of each variable, by group."""

    def measured(self) -> tuple[keras.Model, DataSpec]:
        """Return the model with the metrics' variables made, and the columns that it takes."""

    def traced_strengths(self, strengths: dict[tuple[int, str], Tensor]) -> AbstractContextManager[None]:
        """Trace the model with other tensors for the strengths of its L2 regularizers."""


class FusedModel(ABC):
    """The variables of k models of one compile signature, and the passes that train and evaluate them together.

    Parameters
    ----------
    compiled : MemberModel
        A model of that signature; its layers are called, its variables are not changed.
    n_places : int
        k.

    Attributes
    ----------
    n_places : int
    specs : mapping of str to list of TensorSpec
        Of one member.
    """

    def __init__(self, compiled: MemberModel, n_places: int):
        self.n_places = n_places
        self.specs = compiled.specs()
        self._model, self._spec = compiled.measured()
        self._metrics = self._model._compile_metrics.metrics if self._model._compile_metrics is not None else []

    @property
    @abstractmethod
    def n_bytes(self) -> int:
        """Size of all variables, in bytes."""

    @property
    def metric_names(self) -> list[str]:
        """Names of a pass's results: the loss, and the metrics as Keras reports them."""
        return ["loss", *(self._model._compile_metrics.result() if self._metrics else ())]

    @abstractmethod
    def load(
        self, sources: Sequence[VariableSource], strengths: Sequence[Strengths], groups: Sequence[str] = GROUPS
    ) -> None:
        """Load the state, or some groups of it, and the strengths of each place's member, which fit the model's.

        Raises RequestFailure (model) if members have made different numbers of steps, where an optimizer has one
        counter.
        """

    @abstractmethod
    def members(self) -> Sequence[Readable]:
        """Return the current variables of each place."""

    @property
    @abstractmethod
    def train_pass(self) -> FusedTrainPass:
        """The training pass, compiled."""

    @property
    @abstractmethod
    def evaluate_pass(self) -> FusedEvaluatePass:
        """The evaluation pass, compiled."""


class Backend(ABC):
    """A backend of Keras, in the process whose Keras has it.

    Attributes
    ----------
    name : BackendName
    least_free_bytes : int
        Memory that it needs for any computation, beyond what it takes when it is imported.
    rows_of_predictions : int or None
        Number of rows that predictions of a dense network are computed for, if a row has the same bits in all batches
        of this size only; None if it has them in each size of `models.running.filled`.
    compiles_for_rows : bool
        Whether passes are compiled for each number of rows in a batch: then evaluations have one for all models.
    computes_parts : bool
        Whether the frozen first layers, computed alone, can have the bits that they have in a training step.
    """

    name: BackendName
    least_free_bytes: int
    rows_of_predictions: int | None = None
    compiles_for_rows = False
    computes_parts = True

    @property
    def title(self) -> str:
        """Its name in messages."""
        return FACTS[self.name].title

    # The process

    @abstractmethod
    def version(self) -> str:
        """Return the version of the library."""

    @abstractmethod
    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads that compute; call it before anything is computed."""

    @abstractmethod
    def open_gpus(self) -> list[str]:
        """Open the GPUs that the process may see and the library can use; return the description of each.

        Memory grows as it is needed. Everything that their driver opens, it opens here.
        """

    def no_gpu(self) -> RequestFailure:
        """Return the error of `open_gpus`: the host has GPUs, and the library can use none of them."""
        return RequestFailure(
            INPUT,
            NotReady(
                f"use_gpus: the host has a GPU, but {self.title} {self.version()} cannot use it",
                hint="Its CUDA libraries are missing or do not fit NVIDIA's driver: install "
                f"{FACTS[self.name].with_cuda} into the library's virtual environment; the server's log has"
                f" {self.title}'s messages.",
            ),
        )

    @abstractmethod
    def start_threads(self) -> None:
        """Start the threads that compute, by a first computation."""

    def seconds_of_compiling(self) -> float:
        """Return how long passes have been compiled in this process until now, beyond the calls that make passes."""
        return 0.0

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed the backend's own global generator, which custom functions may use, and layers do not."""

    def begin_pass(self, seed: int) -> None:
        """Seed the global generator that layers without a seed draw from, where the backend has one."""
        return

    # Variables and tensors

    @abstractmethod
    def value_of(self, variable: keras.Variable) -> np.ndarray:
        """Return the value of a variable, without a copy where that is possible; not to be written to."""

    @abstractmethod
    def tensor_of(self, array: np.ndarray) -> Tensor:
        """Convert an array in aligned memory (`aligned_empty`) to a tensor without a copy; it must not change then."""

    @abstractmethod
    def tensor_form(self, value: Any) -> TensorForm:
        """Describe what a custom function returned. Raises TypeError or ValueError for what is no tensor."""

    @abstractmethod
    def strength_variable(self, strength: float) -> Any:
        """Return a variable that stands for an L2 regularizer's strength in compiled passes; it has ``assign``."""

    @abstractmethod
    def columns(
        self,
        xs: Sequence[np.ndarray],
        ys: Sequence[np.ndarray],
        normalizing_const: float,
        row_weights: np.ndarray | None = None,
    ) -> Columns:
        """Return columns of a shard, or features in place of its x, for the passes below.

        ``xs`` and ``ys`` are as for `tensor_of`; ``row_weights`` are any float32 ``(n_rows,)``.
        """

    # Compiled passes

    def static_batch_of(self, n_rows: int, batch_size: int, inherited: int | None) -> tuple[int, int]:
        """Return whether a visit's training step is compiled for one batch size.

        Parameters
        ----------
        n_rows, batch_size : int
            Of the visit.
        inherited : int or None
            ``State.static_batch`` of the state that the visit starts from; None at a model's first visit, and for an
            average of states, because a Keras model with these weights would be a new one.

        Returns
        -------
        tuple of int
            The static batch size of this visit (0: the general step), and ``static_batch`` of the resulting state.
        """
        return 0, 0  # a step does not depend on what a model was compiled for, or each is compiled for its batch

    @abstractmethod
    def train_pass(self, model: keras.Model, spec: DataSpec, weighted: bool, static_batch: int) -> TrainPass:
        """Compile a training pass; with ``weighted``, its columns have row weights.

        The model is compiled, and its metrics' variables are made; so for the evaluation pass.
        """

    @abstractmethod
    def evaluate_pass(self, model: keras.Model, spec: DataSpec) -> EvaluatePass:
        """Compile an evaluation pass."""

    def rows_of_evaluations(self, xs: Sequence[np.ndarray], batch_size: int) -> int:
        """Return the number of rows of an evaluation's batches, for a model that is trained with ``batch_size``."""
        return batch_rows(xs, 1 if self.compiles_for_rows else batch_size)

    def prefix_batch(self, split: Split, spec: DataSpec, static_batch: int) -> PrefixBatch:
        """Compile the function that computes a batch of features; ``static_batch`` as for `train_pass`.

        Called if `computes_parts`.
        """
        raise NotImplementedError

    @abstractmethod
    def predict_batch(self, model: keras.Model, spec: DataSpec, normalizing_const: float) -> PredictBatch:
        """Compile the function that predicts a batch."""

    @abstractmethod
    def fused_model(self, member: MemberModel, optimizer: keras.Optimizer, n_places: int) -> FusedModel:
        """Make the fused model for so many models of one compile signature; the optimizer is new and not built."""

    # Files

    def converters(self) -> Mapping[Format, Converter]:
        """Return the converters of the file formats that are this backend's; all backends have Keras' own formats."""
        return {}
