"""What a visit trains, from the words of a request to a compiled Keras model; called by ``visits.py``.

The only place in the trainer that calls ``madlib_mop.models``.
"""

import dataclasses

import keras

from madlib_mop.models import architecture, build, params, seeds
from madlib_mop.trainer.failures import MODEL, blaming, model_failed


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One configuration: what its model is built from, and the numbers that its chance is drawn from."""

    config: dict
    compile_params: params.CompileParams
    fit_params: params.FitParams
    seed: int
    mst_key: int

    @classmethod
    def read(cls, model: dict) -> "Recipe":
        """Check and parse ``model`` of a request. Raises Failure (model)."""
        with blaming(MODEL):
            return cls(
                architecture.check_architecture(model["arch"]),
                params.parse_compile_params(model["compile_params"]),
                params.parse_fit_params(model["fit_params"]),
                int(model["seed"]),
                int(model["mst_key"]),
            )

    @property
    def signature(self) -> str:
        """What models must share to take turns in one compiled model."""
        return build.compile_signature(self.config, self.compile_params)

    @property
    def chance(self) -> tuple[int, int]:
        """What the start weights are drawn from."""
        return self.seed, self.mst_key

    def build(self) -> keras.Model:
        """Build the model as it is before its first visit: weights drawn after seeding from (seed, mst_key)."""
        with blaming(MODEL):
            keras.utils.set_random_seed(seeds.model_seed(self.seed, self.mst_key))
            model = build.build_model(self.config, self.compile_params)
            if not model.built:
                raise model_failed(
                    "the architecture does not say what shape its input has",
                    hint="Give the first layer an input shape (keras.Input, or input_shape in Keras 2) and load it again.",
                )
            return model

    def order(self, epoch: int, segment_id: int, pass_: int, n_rows: int):
        """Give the order of rows of one pass; int64 ``(n_rows,)``."""
        return seeds.pass_permutation(self.seed, self.mst_key, epoch, segment_id, pass_, n_rows)
