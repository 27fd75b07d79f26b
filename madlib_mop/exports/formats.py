"""The file formats of exported models, and where each keeps what we add: signature, preprocessor and card.

The additions are in the model's file itself, so one file is enough: as members of a zip archive (Keras, SavedModel) or
as metadata (ONNX, safetensors).
"""

import io
import zipfile
from collections.abc import Iterator, Mapping
from enum import StrEnum

from madlib_mop.errors import MopError, UnreadableText
from madlib_mop.exports.archives import Archive, Data
from madlib_mop.exports.tensors import read_header

#: Where the additions are in an archive, and the beginning of their keys in metadata.
FOLDER = "madlib_mop/"
SIGNATURE, PREPROCESSOR, CARD = "signature.json", "preprocessor.json", "README.md"
ADDITIONS = (SIGNATURE, PREPROCESSOR, CARD)
#: Bytes that PostgreSQL can hold in one value, less its header.
MAX_BYTES = (1 << 30) - 64
#: Largest size of one addition that a reader accepts. That of 1,600 columns with 1,000 levels each has 32 MB.
MAX_ADDITION_BYTES = 64 << 20
_DATE = (1980, 1, 1, 0, 0, 0)  # of all members: the same model gives the same bytes
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto: ModelProto.metadata_props, StringStringEntryProto.key, value
_METADATA_PROPS, _KEY, _VALUE = 14, 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_SHIFT = 63  # of a number of Protobuf
_HINT = "Export the model again."


class Format(StrEnum):
    """A file format. The value is the argument ``format`` of ``madlib_mop.export_model``."""

    KERAS = "keras"  # Keras' own archive; keras.saving.load_model reads it
    SAVED_MODEL = "saved_model"  # a zip archive of a TensorFlow SavedModel
    ONNX = "onnx"  # ONNX
    SAFETENSORS = "safetensors"  # the weights by name; the architecture is in the metadata

    @property
    def file_name(self) -> str:
        """The name of the file in a directory; of a SavedModel the directory."""
        return "saved_model" if self is Format.SAVED_MODEL else f"model.{self.value}"


def archive(members: Mapping[str, bytes | memoryview], additions: Mapping[str, str]) -> bytes:
    """Return a zip archive, not compressed, with the additions in `FOLDER`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", allowZip64=True) as target:
        for name, data in {**members, **_members(additions)}.items():
            info = zipfile.ZipInfo(name, _DATE)
            info.external_attr = 0o644 << 16
            target.writestr(info, bytes(data))
    return file.getvalue()


def onnx_with(model: bytes, additions: Mapping[str, str]) -> bytes:
    """Return an ONNX file with the additions as metadata. Fields of a Protobuf message may be appended to it."""
    entries = [_field(_KEY, name.encode()) + _field(_VALUE, data) for name, data in _members(additions).items()]
    return b"".join([model, *(_field(_METADATA_PROPS, entry) for entry in entries)])


def metadata_of(additions: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    return {FOLDER + name: text for name, text in additions.items()}


def read_additions(name: str, data: Data) -> dict[str, str]:
    """Return the additions of a model's file by name.

    Parameters
    ----------
    name : str
        Of the file; its end says the format.
    data : bytes-like

    Raises
    ------
    UnreadableText
        If the file is damaged, or has no additions.
    Unsupported
        If it is an archive that expands too much, or has members that no export writes.
    """
    try:
        if name.endswith(".onnx"):
            texts = {key: str(value, "utf-8") for key, value in _onnx_metadata(memoryview(data))}
        elif name.endswith(".safetensors"):
            texts = dict(read_header(data).metadata)
        else:
            file = open_archive(data)
            texts = {key: str(file.read(key), "utf-8") for key in map(FOLDER.__add__, ADDITIONS) if key in file}
    except MopError as error:
        raise type(error)(f"{name} is damaged, or no file of a model: {error.message}", hint=_HINT) from None
    except (ValueError, IndexError, KeyError):
        raise UnreadableText(f"{name} is damaged, or no file of a model", hint=_HINT) from None
    additions = {item: texts[FOLDER + item] for item in ADDITIONS if FOLDER + item in texts}
    check_signed(name, additions)
    return additions


def check_signed(name: str, additions: Mapping[str, str]) -> None:
    """Raise UnreadableText if a file, which the additions are of, has no signature."""
    if SIGNATURE not in additions:
        raise UnreadableText(
            f"{name} has no signature: it was not exported by madlib_mop",
            hint="Load it with Keras or ONNX Runtime itself.",
        )


def open_archive(data: Data) -> Archive:
    """Return an archive that an export wrote, of a Keras file or a SavedModel. Raises as `Archive`."""
    return Archive(data, {FOLDER + name: MAX_ADDITION_BYTES for name in ADDITIONS}, others=MAX_BYTES)


def _members(additions: Mapping[str, str]) -> dict[str, bytes]:
    return {FOLDER + name: text.encode() for name, text in additions.items()}


def _field(number: int, data: bytes) -> bytes:
    """Return a field of a Protobuf message: its tag, its length and its bytes."""
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _onnx_metadata(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    for number, value in _fields(data):
        if number == _METADATA_PROPS:
            entry = dict(_fields(value))
            text = entry.get(_VALUE, memoryview(b""))
            if len(text) > MAX_ADDITION_BYTES:
                raise ValueError(f"a text has {len(text):,} bytes")
            yield str(entry[_KEY], "utf-8"), text


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields of a Protobuf message that have bytes; skip numbers."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind == _BYTES:
            n_bytes, at = _read_varint(data, at)
            if at + n_bytes > len(data):
                raise ValueError("a field ends behind its message")
            yield tag >> 3, data[at : at + n_bytes]
            at += n_bytes
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("a field has an unknown type")


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:  # defence: end-of-a-varint
            raise ValueError("a number is too long")
