"""A training state whose variables can be read: of a model, or of a place of a fused model; NumPy only."""

import hashlib
from collections.abc import Mapping

import numpy as np

from madlib_mop.trainer.data.parts import USUAL_BACKEND, TensorSpec
from madlib_mop.trainer.data.state import encode_state


class Readable:
    """A training state whose variables can be read one by one.

    Attributes
    ----------
    backend : str
        Keras' name of the backend whose variables these are.
    """

    backend: str = USUAL_BACKEND

    def specs(self) -> Mapping[str, list[TensorSpec]]:
        """Return shape and dtype of each variable, by group."""
        raise NotImplementedError

    def read(self, group: str, index: int) -> np.ndarray:
        """Return the value of one variable, without a copy; not to be written to."""
        raise NotImplementedError

    def snapshot(self) -> "ReadArrays":
        """Read all variables once."""
        values = {group: [self.read(group, i) for i in range(len(specs))] for group, specs in self.specs().items()}
        return ReadArrays(self.backend, self.specs(), values)

    @property
    def weights_bytes(self) -> int:
        """Size of the weights as float32, the form in which they are stored."""
        return 4 * sum(spec.n_elements for spec in self.specs()["weights"])

    def encode(self, static_batch: int, part_bytes: int) -> list[memoryview]:
        """Return the training state in parts."""
        sizes = {"static_batch": static_batch, "part_bytes": part_bytes}
        return encode_state(self.specs(), self.read, backend=self.backend, **sizes)

    def weights_are_finite(self) -> bool:
        """Return whether no float weight is NaN or infinite."""
        floats = [i for i, spec in enumerate(self.specs()["weights"]) if "float" in spec.dtype]
        return all(np.isfinite(self.read("weights", index)).all() for index in floats)

    def weights_digest(self) -> str:
        """Return the sha256 of the weights as float32, flattened, in order, in hexadecimal."""
        digest = hashlib.sha256()
        for index in range(len(self.specs()["weights"])):
            digest.update(np.ascontiguousarray(self.read("weights", index), np.float32).data)
        return digest.hexdigest()


class ReadArrays(Readable):
    """A training state in arrays: that of a member of a fused model, as it was when `FusedModel.members` was called.

    Parameters
    ----------
    backend : str
    specs : mapping of str to list of TensorSpec
        Shape and dtype of each variable, by group.
    values : mapping of str to list of numpy.ndarray
        The variables; not copied.
    """

    def __init__(self, backend: str, specs: Mapping[str, list[TensorSpec]], values: Mapping[str, list[np.ndarray]]):
        self.backend = backend
        self._specs = specs
        self._values = values

    def specs(self) -> Mapping[str, list[TensorSpec]]:
        return self._specs

    def read(self, group: str, index: int) -> np.ndarray:
        return self._values[group][index]
