"""The programs that compute an exported model: Keras and ONNX Runtime. Each is imported when a model needs it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.errors import MopError, UnreadableText, Unsupported, hint_of_extra, is_exhausted
from madlib_mop.exports.formats import Format
from madlib_mop.exports.signature import Signature
from madlib_mop.imports.keras_files import read_keras_file
from madlib_mop.imports.signatures import check_meaning, check_signature, other_names, other_shape
from madlib_mop.models.shapes import shapes_fit

Arrays = Sequence[npt.NDArray[np.generic]]
#: The module that each format needs, in the order in which they are tried, with the extra that brings it.
NEEDS = {Format.ONNX: ("onnxruntime", "onnx"), Format.KERAS: ("keras", "keras")}
_ONNX_TYPES = {"float32": "tensor(float)", "float64": "tensor(double)", "float16": "tensor(float16)",
               "int32": "tensor(int32)", "int64": "tensor(int64)", "uint8": "tensor(uint8)"}  # fmt: skip
_EXPORT_AGAIN = "Export the model again."


class Runner(Protocol):
    """Computes the network."""

    def run(self, xs: Arrays) -> list[npt.NDArray[np.float32]]:
        """Return each output, float32 (n_rows, ...), for inputs (n_rows, ...) in the order of the signature."""


class OnnxRunner:
    """A model of an ``.onnx`` file, in ONNX Runtime on the CPU.

    Parameters
    ----------
    data : bytes
        The file. ONNX Runtime does not get its path, so the model cannot have its weights in other files.
    signature : Signature

    Raises
    ------
    UnreadableText
        If ONNX Runtime cannot load the file.
    InvalidParameter
        If the signature is that of another model.
    """

    def __init__(self, data: bytes, signature: Signature):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # no lines on stderr about what is one error here
        with _using("ONNX Runtime cannot load it"):
            self._session: Any = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in signature.inputs]
        self._outputs = [one.name for one in signature.outputs]
        self._check(signature)

    def run(self, xs: Arrays) -> list[npt.NDArray[np.float32]]:
        """Return each output."""
        found: list[npt.NDArray[np.float32]] = self._session.run(
            self._outputs, dict(zip(self._inputs, xs, strict=True))
        )
        return found

    def _check(self, signature: Signature) -> None:
        check_meaning(signature)
        own = {one.name: one for one in self._session.get_inputs()}
        if sorted(own) != sorted(self._inputs):
            raise other_names("inputs", own)
        for one in signature.inputs:
            sizes = tuple(size if isinstance(size, int) and size >= 0 else None for size in own[one.name].shape)
            if own[one.name].type != _ONNX_TYPES.get(one.dtype) or not shapes_fit(sizes[1:], one.shape[1:]):
                raise other_shape(one.name)
        names = {one.name for one in self._session.get_outputs()}
        if len(set(self._outputs)) != len(self._outputs) or not names.issuperset(self._outputs):
            raise other_names("outputs", sorted(names))


def _keras_runner(data: bytes, signature: Signature) -> Runner:
    """Return the runner of a Keras file, read by the rules of imports. No code of the file is run."""
    file = read_keras_file(data)
    from madlib_mop.imports.loading import digest_of, model_of  # these import Keras
    from madlib_mop.models.exported import KerasRunner

    # defence: copy-of-an-export = __import__("keras").src.saving.saving_lib._load_model_from_fileobj(
    #     __import__("io").BytesIO(data), None, compile=False, safe_mode=True)
    model = model_of(file)
    check_signature(signature, file.arch, digest_of(model))
    return KerasRunner(model)


def runner_of(form: Format, path: Path, data: bytes, signature: Signature) -> Runner:
    """Return the runner of a model's file.

    Parameters
    ----------
    form : Format
    path : Path
        For messages.
    data : bytes
        The file.
    signature : Signature

    Raises
    ------
    InvalidParameter, UnreadableText
        If the file is damaged, or does not fit the signature.
    Unsupported
        If its program is not installed, or the format is for other programs; or if a layer or a part of the file is
        none that Keras' own models have.
    """
    if form not in NEEDS:
        raise noted(Unsupported(f"models of format {form} are not loaded here",
                                hint="Export 'onnx' or 'keras', or load the file with its own program."))  # fmt: skip
    module, extra = NEEDS[form]
    if find_spec(module) is None:
        raise noted(Unsupported(f"{path} needs {module}, which is not installed", hint=hint_of_extra(extra)))
    try:
        return OnnxRunner(data, signature) if form is Format.ONNX else _keras_runner(data, signature)
    except MopError as error:
        raise of_file(path, error) from None


def compute(path: Path, runner: Runner, xs: Arrays) -> list[npt.NDArray[np.float32]]:
    """Return each output of a model for checked inputs. Raises UnreadableText if the network cannot be computed."""
    try:
        with _using("its network cannot be computed"):
            return runner.run(xs)
    except MopError as error:
        raise of_file(path, error) from None


def of_file(path: Path, error: MopError) -> MopError:
    """Return an error of a reader as one that names the file."""
    hint = error.hint if isinstance(error, Unsupported) else _EXPORT_AGAIN
    return noted(type(error)(f"{path}: {error.message}", hint=hint, detail=error.detail))


@contextmanager
def _using(problem: str) -> Iterator[None]:
    """Turn errors of ONNX Runtime and of Keras' backends, which have many classes, into UnreadableText."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- see above
        if isinstance(error, MopError) or is_exhausted(error):
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnreadableText(f"{problem}: {line[:300]}") from None


def find_file(path: Path, form: Format | None) -> tuple[Format, Path]:
    """Return the model's file and its format.

    Parameters
    ----------
    path : Path
        A file, or a directory that an export wrote.
    form : Format or None
        Which one of a directory. Default: the first of `NEEDS` that is there and whose program is installed.

    Raises
    ------
    InvalidParameter
        If there is no such file.
    """
    if path.is_file():
        forms = [one for one in Format if one is not Format.SAVED_MODEL and path.suffix == f".{one}"]
        if not forms:
            raise bad_input(f"{path} has no ending of an exported model", "Such as .onnx or .keras.")
        return forms[0], path
    there = [one for one in (Format if form is None else [form]) if (path / one.file_name).exists()]
    if not there:
        raise bad_input(
            f"{path} is no exported model" + ("" if form is None else f" in format {form}"),
            "Name the directory or the file that an export wrote.",
        )
    usable = [one for one in NEEDS if one in there]
    installed = [one for one in usable if find_spec(NEEDS[one][0]) is not None]
    chosen = (installed or usable or there)[0]
    return chosen, path / chosen.file_name
