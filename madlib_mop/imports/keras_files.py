"""Reads a ``.keras`` file: its architecture, checked as every architecture is, its weights as HDF5, and our additions.

Nothing of the file is run, and Keras sees nothing of it here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mop_backend.bounded_json import read_json

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import Archive, Data
from madlib_mop.exports.formats import ADDITIONS, FOLDER, MAX_ADDITION_BYTES, MAX_BYTES
from madlib_mop.imports.kinds import FileKind, kind_of
from madlib_mop.models.architecture import MAX_JSON_LENGTH, check_architecture
from madlib_mop.models.keras_layers import Node

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_MOST_BYTES: Mapping[str, int] = {
    CONFIG: MAX_JSON_LENGTH,
    METADATA: 1 << 20,
    WEIGHTS: MAX_BYTES,
    **{FOLDER + name: MAX_ADDITION_BYTES for name in ADDITIONS},
}
_HINT = "Save the model again with Keras' model.save('model.keras')."


@dataclass(frozen=True)
class KerasFile:
    """The content of a ``.keras`` file.

    Attributes
    ----------
    arch : dict
        Checked (`check_architecture`); without compile parameters.
    weights : memoryview
        An HDF5 file, not looked at yet.
    additions : dict of str to str
        The texts that an export of ours adds, by name; {} for a file of others.
    """

    arch: Node
    weights: memoryview
    additions: dict[str, str]


def read_keras_file(data: Data) -> KerasFile:
    """Read a ``.keras`` file.

    Raises
    ------
    UnreadableText
        If it is damaged, or no file of a Keras model.
    Unsupported
        If it is another kind of file, or its model has anything except Keras' own layers.
    """
    archive = Archive(data, _MOST_BYTES)
    for name in (CONFIG, WEIGHTS):
        if name not in archive:
            raise UnreadableText(f"the zip archive is no Keras model: it has no {name}", hint=_HINT)
    config = _text(archive, CONFIG)
    return KerasFile(
        _checked(config, _version(archive)),
        _weights(archive),
        {name: _text(archive, FOLDER + name) for name in ADDITIONS if FOLDER + name in archive},
    )


def read_weights(data: Data) -> memoryview:
    """Return the weights of a ``.keras`` file as HDF5, whatever its architecture. Raises as `read_keras_file`."""
    archive = Archive(data, _MOST_BYTES)
    if WEIGHTS not in archive:
        raise UnreadableText(f"the zip archive is no Keras model: it has no {WEIGHTS}", hint=_HINT)
    return _weights(archive)


def _weights(archive: Archive) -> memoryview:
    weights = archive.read(WEIGHTS)
    try:
        is_hdf5 = kind_of(weights) is FileKind.HDF5
    except MopError as error:
        raise type(error)(f"{WEIGHTS}: {error.message}", hint=error.hint) from None
    if not is_hdf5:  # defence: hdf5-weights
        raise UnreadableText(f"{WEIGHTS} is not an HDF5 file", hint=_HINT)
    return weights


def _text(archive: Archive, name: str) -> str:
    try:
        return str(archive.read(name), "utf-8")
    except UnicodeDecodeError:
        raise UnreadableText(f"{name} of the zip archive is not text in UTF-8", hint=_HINT) from None


def _version(archive: Archive) -> str:
    """Return the version of Keras that wrote the file, such as 3.15.1; '' if it does not say so."""
    if METADATA not in archive:
        return ""
    try:
        metadata: Any = json.loads(_text(archive, METADATA))
        version = metadata.get("keras_version")
    except (ValueError, AttributeError, RecursionError):
        raise UnreadableText(f"{METADATA} of the zip archive is not a JSON object", hint=_HINT) from None
    return version if isinstance(version, str) else ""


def _checked(config: str, version: str) -> Node:
    """Return the checked architecture; errors name the member, not an argument of a function."""
    try:
        if version.startswith(("1.", "2.")):
            document = read_json(config)
            if isinstance(document, dict):
                config = json.dumps({**document, "keras_version": version})
        # defence: architecture-of-an-import = json.loads(config)
        # defence: architecture-of-an-export = json.loads(config)
        return check_architecture(config)
    except MopError as error:
        is_code = isinstance(error, Unsupported) and "is not allowed" in error.message
        hint = "Nothing of the file was run. Use Keras' own layers in its place, and save the model again."
        message = error.message.replace("model_arch", CONFIG, 1)
        raise type(error)(message, hint=hint if is_code else error.hint, detail=error.detail) from None
    except (ValueError, RecursionError):
        raise UnreadableText(f"{CONFIG} of the zip archive is not JSON", hint=_HINT) from None
