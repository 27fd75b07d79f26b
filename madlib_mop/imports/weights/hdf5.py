"""Opens an HDF5 file of weights, and takes nothing but plain numbers in the file itself; for trainers and the client.

HDF5 can do much more: links to other files, data in other files, objects that are pickled or compressed, filters that
are programs. Keras writes none of these, so a file with one is refused before any number is read.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import h5py
import numpy as np
import numpy.typing as npt

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import Data

MAX_OBJECTS = 200_000
MAX_DEPTH = 64
_NUMBERS = "fiub"
_MAX_ATTRIBUTE_BYTES = 1 << 20
_MAX_NAME = 1000
_LAYOUTS = (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED)
_OLD_LAYERS = "_layer_checkpoint_dependencies"  # Keras 2.12 and 2.13
_HINT = "Save the weights again with Keras' model.save_weights('model.weights.h5')."


class WeightsFile:
    """The groups and arrays of a file, by path; use it as a context manager.

    Attributes
    ----------
    datasets : dict of str to h5py.Dataset
    groups : dict of str to h5py.Group
        With the file itself as ``""``.

    Raises
    ------
    UnreadableText
        If it is damaged, or no HDF5 file.
    Unsupported
        If it has something that Keras does not write.
    """

    def __init__(self, data: Data):
        self.datasets: dict[str, h5py.Dataset] = {}
        self.groups: dict[str, h5py.Group] = {}
        self._seen: set[tuple[int, int]] = set()
        with _reading():
            self._file = h5py.File(io.BytesIO(data), "r")
            self._walk(self._file["/"], "", 0)

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def entry(self, place: str) -> dict[str, str]:
        """Return the paths of the arrays that Keras saved for an object, by their names; {} if there are none."""
        group = f"{place}/vars" if place else "vars"
        if group not in self.groups and _OLD_LAYERS in self.groups:
            group = group.replace("layers", _OLD_LAYERS)
        if group not in self.groups:
            return {}
        return {name: f"{group}/{name}" for name in self.groups[group] if f"{group}/{name}" in self.datasets}

    def shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        shape: tuple[int, ...] = self.datasets[path].shape
        return shape

    def read(self, path: str) -> npt.NDArray[np.generic]:
        """Read an array. Raises UnreadableText if it is damaged."""
        dataset = self.datasets[path]
        with _reading():
            array: npt.NDArray[np.generic] = dataset[()] if dataset.shape else np.asarray(dataset[()])
        if dataset.dtype.kind == "V":
            import ml_dtypes

            return array.view(ml_dtypes.bfloat16)
        return array

    def texts(self, group: str, name: str, is_list: bool = True) -> list[str] | None:
        """Return an attribute of a group that is a text, or a list of texts; None if there is none of this name."""
        with _reading():
            attributes = self.groups[group].attrs
            return _texts_of(attributes, name, group or "the file", is_list) if name in attributes else None

    def _walk(self, group: h5py.Group, path: str, depth: int) -> None:
        self._add(group, path)
        self.groups[path] = group
        if depth > MAX_DEPTH:
            raise _refused(f"{path[:100]!r} is nested more than {MAX_DEPTH} levels deep")
        for name in group:
            place = f"{path}/{name}" if path else name
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):  # defence: hdf5-links
                raise _refused(f"{place[:100]!r} is a link to another place or file ({type(link).__name__})")
            child = group[name]
            if isinstance(child, h5py.Group):
                self._walk(child, place, depth + 1)
            elif isinstance(child, h5py.Dataset):
                self._add(child, place)
                _check_dataset(child, place)
                self.datasets[place] = child
            else:
                raise _refused(f"{place[:100]!r} is neither a group nor an array")

    def _add(self, item: h5py.Group | h5py.Dataset, path: str) -> None:
        """Count an object; each may have one name, so that there are no circles."""
        information = h5py.h5o.get_info(item.id)
        identity = (information.fileno, information.addr)
        if identity in self._seen:  # defence: hdf5-circles
            raise _refused(f"{path[:100]!r} is another name of something else")
        self._seen.add(identity)
        if len(self._seen) > MAX_OBJECTS:
            raise _refused(f"it has more than {MAX_OBJECTS:,} groups and arrays")


@contextmanager
def _reading() -> Iterator[None]:
    """Turn an error of h5py, which has many classes for damaged files, into UnreadableText."""
    try:
        yield
    except (MopError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 -- see above
        raise _damaged(error) from None


def _check_dataset(dataset: h5py.Dataset, path: str) -> None:
    shown = repr(path[:100])
    form = dataset.id.get_create_plist()
    if form.get_layout() not in _LAYOUTS:  # defence: hdf5-layouts
        raise _refused(f"array {shown} is put together from other arrays or files (a virtual dataset)")
    if form.get_external_count():  # defence: hdf5-external-files
        raise _refused(f"array {shown} is in another file")
    if form.get_nfilters():  # defence: hdf5-filters
        raise _refused(f"array {shown} has a filter, such as compression")
    dtype, shape = dataset.dtype, dataset.shape
    is_number = dtype.kind in _NUMBERS and dtype.itemsize <= 8 and dtype.subdtype is None
    if not is_number and not _is_bfloat16(dataset, path):  # defence: hdf5-numbers
        raise _refused(f"array {shown} does not consist of plain numbers. Received: type {str(dtype)[:60]}")
    if shape is None:
        raise _refused(f"array {shown} has no shape")
    n_bytes, n_stored = prod(shape) * dtype.itemsize, dataset.id.get_storage_size()
    if n_stored < n_bytes:  # defence: hdf5-bytes
        raise _refused(f"array {shown} should have {n_bytes:,} bytes, and the file has {n_stored:,} of them")


def _is_bfloat16(dataset: h5py.Dataset, path: str) -> bool:
    dtype = dataset.dtype
    if dtype.kind != "V" or dtype.itemsize != 2 or dtype.fields is not None or dtype.subdtype is not None:
        return False
    return "dtype" in dataset.attrs and _texts_of(dataset.attrs, "dtype", path, False) == ["bfloat16"]


def _texts_of(attributes: h5py.AttributeManager, name: str, place: str, is_list: bool) -> list[str]:
    """Return an attribute that is a text, or a list of texts.

    A text alone can be the same bytes of the file in very many places, so it has the length of a name.
    """
    identity = attributes.get_id(name)
    if 0 in identity.shape:  # Keras writes an empty list as one of numbers
        return []
    # defence: hdf5-type = h5py.check_string_dtype(identity.dtype) is not None
    is_text = h5py.check_string_dtype(identity.dtype) is not None and (is_list or not identity.shape)
    if not is_text or identity.get_storage_size() > _MAX_ATTRIBUTE_BYTES:
        raise _refused(f"attribute {name!r} of {place[:100]!r} is not a {'list of names' if is_list else 'name'}")
    value = np.asarray(attributes[name], dtype=object).ravel().tolist()
    texts = [one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in value]
    if not identity.shape and len(texts[0]) > _MAX_NAME:  # defence: hdf5-names
        raise _refused(f"attribute {name!r} of {place[:100]!r} has more than {_MAX_NAME:,} characters")
    return texts


def _damaged(error: Exception) -> MopError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UnreadableText(f"the HDF5 file is damaged: {lines[0][:200]}", hint=_HINT)


def _refused(reason: str) -> MopError:
    return Unsupported(f"the HDF5 file is none that Keras writes: {reason}", hint=_HINT)
