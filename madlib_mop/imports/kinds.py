"""What kind of file some bytes are, by their beginning: a Keras archive, HDF5, safetensors, or nothing that is read."""

from enum import StrEnum

from madlib_mop.errors import InvalidParameter, MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import Data
from madlib_mop.exports.formats import MAX_BYTES


class FileKind(StrEnum):
    """A kind of file that is imported."""

    KERAS = "a Keras archive (.keras)"  # a zip archive of config.json, metadata.json and model.weights.h5
    HDF5 = "an HDF5 file (.weights.h5 or .h5)"
    SAFETENSORS = "a safetensors file"


_HINT = "Save the model with model.save('model.keras'), or its weights with model.save_weights('model.weights.h5')."
_ZIP, _HDF5 = b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
#: Files of other programs, by their beginning, with what they are.
_OTHERS = (
    (b"\x1f\x8b", "compressed by gzip"),
    (b"BZh", "compressed by bzip2"),
    (b"\xfd7zXZ", "compressed by xz"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\x93NUMPY", "an array of NumPy"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
)
_LONGEST_SHOWN = 12


def kind_of(data: Data) -> FileKind:
    """Return the kind of a file.

    Raises
    ------
    UnreadableText
        If it is empty, or of no known kind.
    Unsupported
        If it is a pickle, another kind of file, or too large.
    """
    if len(data) > MAX_BYTES:
        raise too_large(len(data))
    start = bytes(data[:16])
    if not start:
        raise UnreadableText("the file is empty", hint=_HINT)
    if start.startswith(_ZIP):
        return FileKind.KERAS
    if start.startswith(_HDF5):
        return FileKind.HDF5
    # before the others: it begins with the length of its header, whose bytes can be those of a pickle or a program
    if len(start) > 8 and start[8:9] == b"{" and 8 + int.from_bytes(start[:8], "little") <= len(data):
        return FileKind.SAFETENSORS
    if start.startswith(_PICKLES):  # defence: named-pickles
        raise Unsupported("the file is a pickle, which can run any code; it was not opened", hint=_HINT)
    for beginning, what in _OTHERS:
        if start.startswith(beginning):
            raise Unsupported(f"the file is {what}, and no file of Keras", hint=_HINT)
    if start[4:8] == b"TFL3":
        raise Unsupported("the file is a TFLite model, which cannot be trained or changed", hint=_HINT)
    raise UnreadableText(
        f"the file is neither {FileKind.KERAS}, nor {FileKind.HDF5}, nor {FileKind.SAFETENSORS}."
        f" It begins with {start[:_LONGEST_SHOWN]!r}",
        hint=_HINT,
    )


def too_large(n_bytes: int, what: str = "the file has") -> MopError:
    """Return the error for what does not fit into a value of PostgreSQL."""
    return InvalidParameter(
        f"{what} {n_bytes:,} bytes, and a value of PostgreSQL at most {MAX_BYTES:,}",
        hint="A file without the optimizer's variables is smaller: model.save('model.keras', include_optimizer=False).",
    )
