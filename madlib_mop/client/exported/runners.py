"""The programs that compute an exported model: Keras and ONNX Runtime. Each is imported when a model needs it."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.errors import MopError, UnreadableText, Unsupported, hint_of_extra
from madlib_mop.exports.formats import Format
from madlib_mop.exports.signature import Signature

Arrays = Sequence[npt.NDArray[np.generic]]
#: The module that each format needs, in the order in which they are tried, with the extra that brings it.
NEEDS = {Format.ONNX: ("onnxruntime", "onnx"), Format.KERAS: ("keras", "keras")}


class Runner(Protocol):
    """Computes the network."""

    def run(self, xs: Arrays) -> list[npt.NDArray[np.float32]]:
        """Return each output, float32 (n_rows, ...), for inputs (n_rows, ...) in the order of the signature."""


class OnnxRunner:
    """A model of an ``.onnx`` file, in ONNX Runtime on the CPU.

    Parameters
    ----------
    path : Path
    signature : Signature

    Raises
    ------
    UnreadableText
        If ONNX Runtime cannot load the file.
    """

    def __init__(self, path: Path, signature: Signature):
        import onnxruntime

        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 -- ONNX Runtime has many classes of errors
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise noted(UnreadableText(f"ONNX Runtime cannot load {path}: {line}")) from None
        self._inputs = [one.name for one in signature.inputs]
        self._outputs = [one.name for one in signature.outputs]

    def run(self, xs: Arrays) -> list[npt.NDArray[np.float32]]:
        """Return each output."""
        found: list[npt.NDArray[np.float32]] = self._session.run(
            self._outputs, dict(zip(self._inputs, xs, strict=True))
        )
        return found


def runner_of(form: Format, path: Path, signature: Signature) -> Runner:
    """Return the runner of a model's file.

    Raises
    ------
    Unsupported
        If its program is not installed, or the format is for other programs.
    """
    if form not in NEEDS:
        raise noted(Unsupported(f"models of format {form} are not loaded here",
                                hint="Export 'onnx' or 'keras', or load the file with its own program."))  # fmt: skip
    module, extra = NEEDS[form]
    if find_spec(module) is None:
        raise noted(Unsupported(f"{path} needs {module}, which is not installed", hint=hint_of_extra(extra)))
    if form is Format.ONNX:
        return OnnxRunner(path, signature)
    from madlib_mop.models.exported import KerasRunner  # imports Keras

    try:
        return KerasRunner(path)
    except MopError as error:
        raise noted(error) from None


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
