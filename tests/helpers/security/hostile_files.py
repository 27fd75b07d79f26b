"""HDF5 files that Keras does not write: links, data in other files, filters, pickles, and sizes that lie."""

import io

import h5py
import numpy as np

#: Where the weights of the first Dense layer of a model are.
KERNEL, BIAS = "layers/dense/vars/0", "layers/dense/vars/1"


def _file(write) -> bytes:
    """Return a file that a function wrote into."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        write(file)
    return out.getvalue()


def _weights(file) -> None:
    file[KERNEL], file[BIAS] = np.ones((4, 3), np.float32), np.ones(3, np.float32)


def _with(write):
    def both(file):
        _weights(file)
        write(file)

    return _file(both)


def _virtual(file):
    layout = h5py.VirtualLayout((4, 3), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (4, 3))
    file.create_virtual_dataset(KERNEL, layout)


def _external(file):
    file.create_dataset(KERNEL, (4, 3), "f4", external=[("/etc/passwd", 0, 48)])


def _fill(file):
    form = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    form.set_layout(h5py.h5d.CONTIGUOUS)
    form.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space = h5py.h5s.create_simple((1 << 40,))
    group = file.create_group("layers/dense/vars")
    h5py.h5d.create(group.id, b"0", h5py.h5t.IEEE_F32LE, space, form)


def _circle(file):
    file["layers/again"] = file["layers"]


def _objects(file):
    texts = np.array([b"cposix\nsystem\n"], dtype=h5py.special_dtype(vlen=bytes))
    file.create_dataset("layers/dense/vars/2", data=texts)


def _deep(file):
    group = file
    for _ in range(70):
        group = group.create_group("x")


def _array(data):
    return _with(lambda file: file.create_dataset("layers/x", data=data))


_LINK, _NO_NUMBERS = "is a link to another place or file", "does not consist of plain numbers"
#: The files, with a part of the error.
HOSTILE = {
    "soft link": (_with(lambda file: file.__setitem__("layers/x", h5py.SoftLink("/layers"))), _LINK),
    "external link": (_with(lambda file: file.__setitem__("layers/x", h5py.ExternalLink("/etc/passwd", "/"))), _LINK),
    "virtual dataset": (_file(_virtual), "a virtual dataset"),
    "external storage": (_file(_external), "is in another file"),
    "gzip": (_file(lambda f: f.create_dataset(KERNEL, data=np.zeros((400, 300)), compression="gzip")), "has a filter"),
    "gigabytes that are not there": (_file(_fill), "should have 4,398,046,511,104 bytes, and the file has 0 of them"),
    "circle": (_with(_circle), "is another name of something else"),
    "objects": (_with(_objects), _NO_NUMBERS),
    "compound": (_array(np.zeros(2, [("a", "f4"), ("b", "i4")])), _NO_NUMBERS),
    "texts": (_array(np.array([b"abc"])), _NO_NUMBERS),
    "complex": (_array(np.zeros(2, "c8")), _NO_NUMBERS),
    "references": (_with(lambda file: file.create_dataset("layers/x", (1,), h5py.ref_dtype)), _NO_NUMBERS),
    "no shape": (_array(h5py.Empty("f4")), "has no shape"),
    "named type": (_with(lambda file: file.__setitem__("layers/x", np.dtype("f4"))), "is neither a group nor an array"),
    "deep": (_file(_deep), "is nested more than 64 levels deep"),
}
