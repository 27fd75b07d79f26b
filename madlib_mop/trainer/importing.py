"""Reads a file of a model or of weights, in the sandbox; called by ``server.py``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import keras
import numpy as np
from mop_backend.frames import Blob, Header

from madlib_mop.errors import Unsupported
from madlib_mop.imports.keras_files import read_keras_file, read_weights
from madlib_mop.imports.kinds import FileKind, kind_of
from madlib_mop.imports.loading import build_for, load_hdf5
from madlib_mop.imports.weights.matching import Match, NamedTensors
from madlib_mop.models.described import as_answer, describe_architecture
from madlib_mop.models.keras_layers import Node
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.failures import INPUT, blaming
from madlib_mop.trainer.requests import malformed

#: Seed of layers without weights of the file: equal calls store equal weights.
_SEED = 0


@dataclass(frozen=True)
class Import:
    """What to read.

    Attributes
    ----------
    file : bytes-like
    arch : dict or None
        The architecture that gets the weights; None: that of the file, which must be a ``.keras`` file.
    weights : bytes-like or None
        The weights that its layers have now: float32, flattened, in ``get_weights()`` order. None: drawn.
    by_name, skip_mismatch : bool
        How weights are matched with layers (`madlib_mop.imports.weights.matching`).
    """

    file: Blob
    arch: Node | None = None
    weights: Blob | None = None
    by_name: bool = False
    skip_mismatch: bool = False


@dataclass(frozen=True)
class _Opened:
    """A file whose kind is known: its architecture, and its weights as HDF5; of safetensors neither."""

    arch: Node | None = None
    hdf5: Blob | None = None
    additions: Mapping[str, str] = field(default_factory=dict)


def read_request(header: Header, blobs: Sequence[Blob]) -> Import:
    """Read what to import. Raises RequestFailure (internal) for a request that is none."""
    if len(blobs) not in (1, 2):
        raise malformed(f"import_file has {len(blobs)} blobs, expected 1 or 2")
    weights = blobs[1] if len(blobs) == 2 else None
    return Import(blobs[0], header["arch"], weights, bool(header["by_name"]), bool(header["skip_mismatch"]))


def run(request: Import) -> tuple[Header, list[Blob]]:
    """Import a file.

    Returns
    -------
    dict
        ``arch`` and ``weights``, as of the request describe_model; ``taken``, ``kept`` and ``unused``, the layers; and
        ``additions``, the texts that an export added to the file, not checked yet.
    list of bytes
        The weights: float32, flattened, in ``get_weights()`` order.

    Raises
    ------
    RequestFailure
        input: the file is damaged, not what it says, or does not fit. memory: it ran out of it.
    """
    with blaming(INPUT):
        opened = _open(request)
        arch = request.arch if request.arch is not None else opened.arch
        assert arch is not None, "a file without an architecture was refused"
        may_keep = request.by_name or request.skip_mismatch
        model = build_for(arch, None if may_keep else len(request.file if opened.hdf5 is None else opened.hdf5), _SEED)
        if request.weights is not None:
            ModelVariables(model, with_optimizer=False).load_weights([request.weights])
        match = _load(model, request, opened)
        left_out = _keep_statistics(model)
        text = model.to_json()
        arrays = [weight.numpy() for weight in model.weights if id(weight) not in left_out]
        weights = b"".join(np.ascontiguousarray(array, np.float32).tobytes() for array in arrays)
        answer = {"taken": match.taken, "kept": match.kept, "unused": match.unused, "additions": opened.additions}
        return {**as_answer(describe_architecture(text)), **answer}, [weights]


def _open(request: Import) -> _Opened:
    kind, wants_model = kind_of(request.file), request.arch is None
    if kind is FileKind.KERAS and wants_model:
        file = read_keras_file(request.file)
        return _Opened(file.arch, file.weights, file.additions)
    if wants_model:
        raise Unsupported(
            f"the file is {kind}, which is imported onto an architecture",
            hint="Load the architecture with load_keras_model, and the weights with import_weights.",
        )
    if kind is FileKind.KERAS:
        return _Opened(hdf5=read_weights(request.file))
    return _Opened(hdf5=request.file) if kind is FileKind.HDF5 else _Opened()


def _load(model: keras.Model, request: Import, opened: _Opened) -> Match:
    how = (request.by_name, request.skip_mismatch)
    if opened.hdf5 is None:
        return NamedTensors(request.file).load(model, *how)
    return load_hdf5(model, opened.hdf5, *how)


def _keep_statistics(model: keras.Model) -> set[int]:
    """Write the results of ``adapt()`` into the configuration of Normalization layers, where weights were their place.

    An architecture with statistics has no such weights. Return the identities of these variables.
    """
    left_out: set[int] = set()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            layer.input_mean, layer.input_variance = layer.adapt_mean.numpy(), layer.adapt_variance.numpy()
            left_out |= {id(weight) for weight in layer.weights}
    return left_out
