"""What a visit trains, from the words of a request to a compiled Keras model.

Here, ``madlib_mop.models`` parses and builds.
"""

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache

import keras
import numpy as np
from mop_backend.frames import Blob, Header

from madlib_mop.models import build, sharing
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.parameters.parser import CompileParams, FitParams
from madlib_mop.trainer import custom, seeds
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.failures import MODEL, blaming

#: Models whose parsed texts a process keeps, because they take turns in it; and the longest such text, in characters.
_N_KEPT, _LONGEST_KEPT = 64, 1 << 18


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One configuration, the numbers that its chance is drawn from, and its custom functions."""

    configuration: Configuration
    seed: int
    mst_key: int
    custom: CustomFunctions = CustomFunctions()

    @classmethod
    def read(cls, model: Header) -> "Recipe":
        """Check and parse ``model`` of a request. Raises RequestFailure (model)."""
        text = json.dumps(model)
        return (_read if len(text) <= _LONGEST_KEPT else _read.__wrapped__)(text)

    @property
    def architecture(self) -> Node:
        """The checked architecture."""
        return self.configuration.architecture

    @property
    def fit(self) -> FitParams:
        """The fit parameters."""
        return self.configuration.fit

    @property
    def n_inputs(self) -> int:
        """How many inputs the model has."""
        return self.configuration.shape.n_inputs

    @cached_property
    def signature(self) -> str:
        """What models must share to take turns in one compiled model."""
        functions = self.custom.digest(self.training.custom_names)
        return sharing.compile_signature(self.architecture, self.training, functions)

    @property
    def strengths(self) -> sharing.Strengths:
        """The L2 strengths that models of the same signature may differ in."""
        return sharing.strengths_of(self.architecture)

    @property
    def chance(self) -> tuple[int, int, float | None]:
        """The identity of an initial state among those of its signature: its random numbers and its learning rate."""
        return self.seed, self.mst_key, self.training.learning_rate

    @property
    def is_compiled(self) -> bool:
        """Whether it has compile parameters; a model that is only to predict has none."""
        return bool(self.configuration.compile_params)

    @property
    def training(self) -> CompileParams:
        """The compile parameters of a model that is to be trained or evaluated."""
        assert self.is_compiled, "a model that is only to predict is not compiled"
        return self.configuration.compiled

    def build(self, weights: Sequence[Blob] | None = None) -> keras.Model:
        """Build the model as it is before its first visit: weights drawn after seeding from (seed, mst_key).

        ``weights`` (as `ModelVariables.load_weights` takes them) replace the drawn ones before the optimizer is
        made, for some optimizers start from them (ScheduleFreeAdamW).
        """
        with blaming(MODEL):
            model = self.draw()
            if weights is not None:
                ModelVariables(model, with_optimizer=False).load_weights(weights)
            if self.is_compiled:
                self.compile(model)
            return model

    def draw(self) -> keras.Model:
        """Build the model as `build` does, without compiling it."""
        seed = seeds.model_seed(self.seed, self.mst_key)
        with blaming(MODEL):
            if self.is_compiled and self.training.custom_names:
                choice.current().seed(seed)  # custom functions, unlike layers, may use the global generator
            return build.build_architecture(self.architecture, seed)

    def compile(self, model: keras.Model) -> None:
        """Compile a model, or a part of one, by the configuration's compile parameters."""
        functions = custom.define(self.custom, self.training.custom_names)
        build.compile_model(model, self.training, functions)

    def optimizer(self) -> keras.Optimizer:
        """Make the configuration's optimizer, not built yet."""
        with blaming(MODEL):
            return build.make_optimizer(self.training.optimizer)

    def callbacks(self, model: keras.Model, n_passes: int, n_batches: int) -> keras.callbacks.CallbackList | None:
        """Make the callbacks of a visit. They see its passes as Keras' epochs; None when there are none."""
        if not self.fit.callbacks:
            return None
        made = [build.make(spec) for spec in self.fit.callbacks]
        return keras.callbacks.CallbackList(
            made, add_history=False, add_progbar=False, model=model, epochs=n_passes, steps=n_batches, verbose=0
        )

    def order(self, epoch: int, segment_id: int, pass_: int, n_rows: int, out: np.ndarray | None = None) -> np.ndarray:
        """Return the order of rows of one pass; int64 ``(n_rows,)``, in ``out`` if it is given."""
        if not self.fit.shuffle:
            return seeds.in_order(n_rows, out)
        return seeds.pass_permutation(self.seed, self.mst_key, epoch, segment_id, pass_, n_rows, out)

    def pass_seed(self, epoch: int, segment_id: int, pass_: int) -> int:
        """Return the seed of the backend's global generator for one pass."""
        return seeds.pass_seed(self.seed, self.mst_key, epoch, segment_id, pass_)


@lru_cache(_N_KEPT)
def _read(text: str) -> Recipe:
    model: Header = json.loads(text)
    with blaming(MODEL):
        compile_text = model.get("compile_params")
        functions = CustomFunctions.from_request(model.get("custom"))
        c = Configuration(0, compile_text or "", model.get("fit_params") or "", model["arch"], functions.names)
        _ = c.architecture, c.fit, None if compile_text is None else c.compiled
        return Recipe(c, int(model.get("seed") or 0), int(model.get("mst_key") or 0), functions)
