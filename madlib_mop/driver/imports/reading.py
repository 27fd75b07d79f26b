"""Lets a trainer read a file of a model or of weights; called by the commands of this folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.driver.inference.described import DescribedModel, described_of
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.imports.kinds import kind_of
from madlib_mop.models.keras_layers import Node

_N_SHOWN = 20


@dataclass(frozen=True)
class ImportedFile:
    """What a trainer read.

    Attributes
    ----------
    model : DescribedModel
        Keras' description of the architecture.
    weights : bytes
        Float32, flattened, in ``get_weights()`` order.
    taken, kept : tuple of str
        Layers with weights of the file, and layers that keep those that they had.
    unused : tuple of str
        Layers, or weights, that only the file has.
    additions : mapping of str to str
        What an export of ours added to the file: texts by name, not checked.
    """

    model: DescribedModel
    weights: bytes
    taken: tuple[str, ...]
    kept: tuple[str, ...]
    unused: tuple[str, ...]
    additions: Mapping[str, str]


@dataclass(frozen=True)
class WeightsTarget:
    """An architecture that gets weights.

    Attributes
    ----------
    arch : dict
        Checked (`check_architecture`).
    weights : bytes or None
        Those that it has; None: layers that the file lacks get new ones.
    by_name, skip_mismatch : bool
        How weights are matched with layers (madlib_mop/imports/weights/matching.py).
    """

    arch: Node
    weights: bytes | None
    by_name: bool
    skip_mismatch: bool


def read_file(session: CallerSession, file: bytes | None, target: WeightsTarget | None = None) -> ImportedFile:
    """Read a file of a model, or of weights for a target.

    Raises
    ------
    MopError
        If there is no file, it is damaged, has something that is refused, or does not fit the target.
    """
    if file is None:
        raise InvalidParameter("file is missing. Received: NULL", hint="Pass the bytes of the file.")
    kind_of(file)  # what is no file of a model needs no trainer
    request = {
        "op": "import_file",
        "arch": None if target is None else target.arch,
        "by_name": target is not None and target.by_name,
        "skip_mismatch": target is not None and target.skip_mismatch,
    }
    weights = [] if target is None or target.weights is None else [target.weights]
    with LocalTrainer(session, is_new=True) as trainer:
        answer, blobs = trainer.ask(request, [file, *weights])
    model = described_of(answer)
    imported = bytes(blobs[0])
    model.check_weights(len(imported), "the imported weights")
    taken, kept, unused = (tuple(answer[name]) for name in ("taken", "kept", "unused"))
    return ImportedFile(model, imported, taken, kept, unused, answer["additions"])


def shown(names: Sequence[str]) -> str:
    """Return names for a message, not too many."""
    more = f", ... ({len(names)} in all)" if len(names) > _N_SHOWN else ""
    return ", ".join(names[:_N_SHOWN]) + more
