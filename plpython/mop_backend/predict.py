"""The scalar function madlib_mop.predict: one trainer a session, started at the first call, that keeps loaded models.

A call asks the model's table, in the caller's own session and with the caller's rights, which version of the model
there is, and hands the numbers to the trainer. Only for a model that was not used before, or was changed, a driver is
started once, to find and check it. Nothing is written anywhere, so all this works on a standby. The trainer ends with
the session, after an idle time, and when a call is cancelled.
"""

import collections
import struct

import plpy

from mop_backend import call
from mop_backend.interrupts import Interrupts
from mop_backend.process import ChildDied, start_trainer

_FUNCTION = "predict"
_MAX_MODELS = 100
#: Types of an array's elements, by oid, as NumPy names them.
_TYPES = {21: "i2", 23: "i4", 20: "i8", 700: "f4", 701: "f8"}
_SIZES = {"i2": 2, "i4": 4, "i8": 8, "f4": 4, "f8": 8}
_HEADER = struct.Struct("=iII")
_VARLENA_BYTES = 4  # of an array's memory, but not of a bytea
# The pinned search_path is put back before anything else is looked up; arguments are evaluated from left to right.
_LOOK_UP = (
    "select case when pg_catalog.set_config('search_path', $1, true) is not null then pg_catalog.concat("
    "pg_catalog.to_regclass($2)::pg_catalog.oid,"
    " pg_catalog.left(pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), 0)) end as oid"
)

_session = None
_last_error = None


def predict(model_table, mst_key, inputs, caller_path, version):
    """Predict one row, or many.

    Parameters
    ----------
    model_table : str
    mst_key : int or None
    inputs : list of bytes
        The memory of one array for each input of the model (``madlib_mop.array_bytes``).
    caller_path : str
        The caller's search_path.
    version : str
        The extension's.

    Returns
    -------
    list or None
        The outputs, side by side, of one row, or such a list for each of many; None after an error, which
        `last_error` gives: raised here, it would show a traceback.
    """
    global _session, _last_error
    _last_error = None
    try:
        if _session is None:
            call.check_version(version)
            _session = _Session()
        return _session.predict((model_table, mst_key, caller_path), [_array(value) for value in inputs])
    except Exception as error:
        _last_error = call.error_fields(_FUNCTION, error)
        return None


def last_error():
    """Give the fields of the error of the last call."""
    return _last_error


class _Model:
    """A model that was found: how to ask for it, and the version that it was found with."""

    def __init__(self, found, caller_path):
        self.found = found
        self.version = None
        self._caller_path = caller_path
        self._version_plan = plpy.prepare(found["version_query"], found["types"])
        self._look_up = found["name"] and plpy.prepare(_LOOK_UP, ["text", "text"])

    def current_version(self):
        """Ask which version there is now; None when the model is gone, or its name means another table."""
        if self._look_up is not None:
            row = plpy.execute(self._look_up, [self._caller_path, self.found["name"]])[0]
            if row["oid"] != str(self.found["oid"]):
                return None
        rows = plpy.execute(self._version_plan, self.found["params"])
        return rows[0]["version"] if rows.nrows() == 1 else None

    def weights(self):
        """Read the weights."""
        plan = plpy.prepare(self.found["weights_query"], self.found["types"])
        return plpy.execute(plan, self.found["params"])[0]["weights"]


class _Session:
    def __init__(self):
        self._models = collections.OrderedDict()
        self._child = None
        self._loaded = ()
        self._busy = False

    def predict(self, name, arrays):
        if self._busy:
            raise call.CallError(f"{_FUNCTION}: what a model is read from may not itself predict", "0A000")
        self._busy = True
        try:
            return self._predict(name, arrays)
        except ChildDied as death:
            self._forget_trainer()
            raise call.CallError(
                f"{_FUNCTION}: the trainer process ended with status {death.returncode}",
                "53000",
                detail=death.last_words,
                hint="The next call starts another. It may have lacked memory: see madlib_mop.predict_memory_mb.",
            ) from None
        finally:
            self._busy = False

    def _predict(self, name, arrays):
        model = self._model(name)
        header = {
            "op": "predict_values",
            "key": model.version,
            "dtypes": [array.dtype for array in arrays],
            "shapes": [array.shape for array in arrays],
        }
        blobs = [array.data for array in arrays]
        for is_last in (False, True):
            try:
                if self._child is None or model.version not in self._loaded:
                    self._load(model)
                answer, (values,) = self._ask(header, blobs)
                break
            except ChildDied as death:
                if death.returncode != 0 or is_last:
                    raise
                self._forget_trainer()  # it had been idle for too long
        floats = memoryview(values).cast("f").tolist()
        if answer["single"]:
            return floats
        n_rows, width = answer["shape"]
        return [floats[i * width : (i + 1) * width] for i in range(n_rows)]

    def _model(self, name):
        """Give the model of a name in its present version, found anew by a driver where it must be."""
        model = self._models.get(name)
        if model is not None:
            try:
                version = model.current_version()
            except plpy.SPIError as error:
                if error.sqlstate not in _GONE:
                    raise
                version = None
            if version is not None and version == model.version:
                return model
            del self._models[name]
        model_table, mst_key, caller_path = name
        arguments = {"model_table": model_table, "mst_key": mst_key}
        model = _Model(call.ask_driver(_FUNCTION, arguments, caller_path), caller_path)
        model.version = model.current_version()
        if model.version is None:
            raise call.CallError(f"{_FUNCTION}: the model was changed while it was read", "55000", hint="Call again.")
        self._models[name] = model
        while len(self._models) > _MAX_MODELS:
            self._models.popitem(last=False)
        return model

    def _load(self, model):
        if self._child is None:
            self._child = start_trainer(Interrupts())
            try:
                self._ask({"op": "start", **model.found["start"]})
            except call.CallError:
                self._forget_trainer()
                raise
        request = {
            "op": "predict_load",
            "key": model.version,
            "model": model.found["model"],
            "normalizing_const": model.found["normalizing_const"],
            "has_weights": True,
        }
        answer, _ = self._ask(request, [model.weights()])
        self._loaded = frozenset(answer["loaded"])

    def _ask(self, header, blobs=()):
        """Ask the trainer; raise what it refuses."""
        try:
            answer, out = self._child.ask(header, blobs)
        except ChildDied:
            raise
        except BaseException:  # cancelled: the trainer is at work, and its answer would be taken for another's
            self._forget_trainer()
            raise
        if "error" in answer:
            if answer.get("ending"):
                self._forget_trainer()
            error = answer["error"]
            hint = error.get("hint") if answer.get("kind") == "input" else None  # others are for those who train
            raise call.CallError(f"{_FUNCTION}: {error['message']}", error["sqlstate"], error.get("detail"), hint)
        return answer, out

    def _forget_trainer(self):
        if self._child is not None:
            self._child.stop()
            self._child = None
        self._loaded = ()


_GONE = ("42P01", "42703", "3F000")  # undefined table, column, schema


class _Array:
    """The numbers of one SQL array: shape, type and bytes."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, shape, dtype, data):
        self.shape = shape
        self.dtype = dtype
        self.data = data


def _array(value):
    """Read the memory of one array (see madlib_mop/packing/arrays.py for its layout)."""
    if value is None:
        raise _refused("an input is NULL", "Leave such rows out.")
    n_bytes = len(value)
    n_dims, bitmap_end, element_type = _HEADER.unpack_from(value) if n_bytes >= _HEADER.size else (-1, 0, 0)
    start = _HEADER.size + 8 * n_dims
    dtype = _TYPES.get(element_type)
    if not 0 <= n_dims <= 6 or start > n_bytes or dtype is None:
        raise _refused("an input is no array of numbers", "Make it with madlib_mop.array_bytes(<array>::real[]).")
    shape = struct.unpack_from(f"={n_dims}i", value, _HEADER.size)
    n_elements = 1
    for size in shape:
        n_elements *= size
    if not n_dims:
        raise _refused("x is an empty array", "Leave such rows out.")
    if bitmap_end:
        bits = int.from_bytes(value[start : start + (n_elements + 7) // 8], "little")
        if bits & ((1 << n_elements) - 1) != (1 << n_elements) - 1:
            raise _refused("x holds a NULL element", "Replace it, or leave the row out.")
        start = bitmap_end - _VARLENA_BYTES
    data = memoryview(value)[start:]
    if n_elements < 0 or len(data) != n_elements * _SIZES[dtype]:
        raise _refused("an input is no array of numbers", "Make it with madlib_mop.array_bytes(<array>::real[]).")
    return _Array(shape, dtype, data)


def _refused(message, hint):
    return call.CallError(f"{_FUNCTION}: {message}", "22023", hint=hint)
