"""An exported model: rows of a data frame to predictions, without a database."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mop_backend.held_out import HeldOut, HeldOutError, check_coverage, covered, interval, threshold
from mop_backend.held_out import calibrated as calibrate

from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.exported.runners import NEEDS, Arrays, compute, find_file, of_file, runner_of
from madlib_mop.client.frames.classes import class_of, classes_of
from madlib_mop.client.frames.columns import read_frame
from madlib_mop.client.frames.raw import raw_columns
from madlib_mop.client.frames.results import like, pandas_of, series_like
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.errors import MopError, UnreadableText, Unsupported, cannot_be_read
from madlib_mop.exports.formats import (
    CARD,
    MAX_ADDITION_BYTES,
    MAX_BYTES,
    PREPROCESSOR,
    SIGNATURE,
    Format,
    read_additions,
)
from madlib_mop.exports.signature import ModelOutput
from madlib_mop.imports.signatures import contradiction, read_preprocessor, read_signature

Floats = npt.NDArray[np.float32]


class ExportedModel:
    """A model of a file or a directory that an export wrote.

    Attributes
    ----------
    path : Path
        The model's file.
    format : Format
    signature : Signature
        Its inputs and outputs.
    preprocessor : Preprocessor or None
        None for a model of arrays.
    """

    def __init__(self, path: Path, form: Format, data: bytes, additions: dict[str, str]):
        self.path, self.format = path, form
        try:
            self.signature = read_signature(additions[SIGNATURE])
            self.preprocessor = read_preprocessor(self.signature, additions.get(PREPROCESSOR))
            for one in self.signature.outputs:
                self._classes(one)
        except MopError as error:
            raise of_file(path, error) from None
        self.card = additions.get(CARD, "")
        self._runner = runner_of(form, path, data, self.signature)

    def __repr__(self) -> str:
        return f"ExportedModel({str(self.path)!r})"

    def predict(self, data: Any) -> Any:
        """Predict rows: the class of each, or the number in the units of the table.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or numpy.ndarray
            Rows with the input columns of training, in any order; further columns are ignored. For a model that was
            trained on arrays: an array (n_rows, *shape of a row), or a list of such, one for each input.

        Returns
        -------
        Series or DataFrame
            As of `Model.predict`: of the library of the frame, of pandas for arrays. A model with several outputs
            returns a frame with a column for each.

        Raises
        ------
        MopError
            If a column is missing or has another kind of type, or a value is NaN or infinite.
        """
        values = self.outputs(data)
        columns = {one.target: self._answers(one, values[one.target]) for one in self.signature.outputs}
        if len(columns) > 1:
            return _frame(data, columns)
        ((name, column),) = columns.items()
        return _series(data, name, column)

    def predict_proba(self, data: Any, calibrated: bool = False) -> Any:
        """Predict the probability of each class: a frame with a column of float32 for each class.

        Parameters
        ----------
        data
            As for `predict`.
        calibrated : bool
            Whether probabilities are calibrated by the held-out rows of the version that was exported; float64.

        Raises
        ------
        Unsupported
            If the model predicts numbers, or has several outputs; for ``calibrated``, if it has no held-out rows.
        """
        one = self._one_output("predict_proba", of_classes=True)
        values: npt.NDArray[np.floating[Any]]
        if calibrated:
            held_out = self._held_out(one)
            try:
                values = np.array([calibrate(row, held_out) for row in self._probabilities(one, data).tolist()])
            except HeldOutError as error:
                raise bad_input(str(error), error.hint) from None
        else:
            values = _by_class(one, self.outputs(data)[one.target])
        classes = self._classes(one)[: len(classes_of(one.classes or ()))]
        return _frame(data, {name: values[:, i] for i, name in enumerate(classes) if i < values.shape[1]})

    def predict_set(self, data: Any, coverage: float = 0.9) -> Any:
        """Predict the classes of each row that are likely enough, as ``madlib_mop.predict_set`` does.

        Parameters
        ----------
        data
            As for `predict`.
        coverage : float
            The share of rows whose true class is in the set, if rows are like the held-out ones.

        Returns
        -------
        Series
            A list of classes for each row, the most probable one first.

        Raises
        ------
        Unsupported
            If the model predicts numbers, has several outputs or no held-out rows.
        InvalidParameter
            If the held-out rows are too few for the coverage.
        """
        one = self._one_output("predict_set", of_classes=True)
        limit, classes = self._threshold(one, coverage), self._classes(one)
        rows = self._probabilities(one, data).tolist()
        return _series(data, one.target, [[classes[number] for number in covered(row, limit)] for row in rows])

    def predict_interval(self, data: Any, coverage: float = 0.9) -> Any:
        """Predict the number of each row and an interval around it, as ``madlib_mop.predict_interval`` does.

        Parameters
        ----------
        data
            As for `predict`.
        coverage : float
            The share of rows whose true number is in the interval, if rows are like the held-out ones.

        Returns
        -------
        DataFrame
            The columns ``prediction``, ``lower`` and ``upper``, float64, in the units of the table.

        Raises
        ------
        Unsupported, InvalidParameter
            As `predict_set`.
        """
        one = self._one_output("predict_interval", of_classes=False)
        limit, held_out = self._threshold(one, coverage), self._held_out(one)
        values = self.outputs(data)[one.target].astype(np.float64)[:, 0].tolist()
        bounds = [interval(value, held_out, limit) for value in values]
        columns = {"prediction": values, "lower": [low for low, _ in bounds], "upper": [high for _, high in bounds]}
        return _frame(data, {name: np.array(column, np.float64) for name, column in columns.items()})

    def outputs(self, data: Any) -> dict[str, npt.NDArray[np.generic]]:
        """Return the values of each output by target, (n_rows, n_values): float32, as ``madlib_mop.predict`` returns.

        Numbers of a model with a preprocessor are in the units of the table, float64 (n_rows, 1).
        """
        tensors = self.encode(data)
        found = {
            one.target: np.asarray(values, np.float32).reshape(len(values), -1)
            for one, values in zip(self.signature.outputs, self.run(tensors), strict=True)
        }
        if self._targets is None:
            return dict(found)
        decoded = self._targets.decode({name: values for name, values in found.items()})
        numbers = {name: one.numbers for name, one in decoded.items() if one.numbers is not None}
        return {name: numbers[name][:, np.newaxis] if name in numbers else values for name, values in found.items()}

    def encode(self, data: Any) -> list[npt.NDArray[np.generic]]:
        """Return the inputs of the network, (n_rows, ...) each: the bits of packing. Parameters as `predict`."""
        if self.preprocessor is None:
            return self._arrays(data)
        frame = read_frame(data, only=[column.name for column in self.preprocessor.inputs])
        assert self._encoder is not None, "it has a preprocessor"
        types = {column.name: column.spec.sql_type for column in self.preprocessor.inputs}
        padded = {column.name: column.padded_to for column in self.preprocessor.inputs}
        try:
            tensors = self._encoder.encode(raw_columns(frame, types, padded)).arrays
        except MopError as error:
            raise noted(error) from None
        named = zip(self.signature.inputs, tensors.values(), strict=True)
        return [_converted(x, one.divide_by, one.dtype) for one, x in named]

    def run(self, tensors: Arrays) -> list[Floats]:
        """Return the outputs of the network, float32 (n_rows, ...) each, for its inputs in their order."""
        return compute(self.path, self._runner, tensors)

    def _arrays(self, data: Any) -> list[npt.NDArray[np.generic]]:
        inputs = self.signature.inputs
        columns = list(data) if isinstance(data, list | tuple) and len(inputs) > 1 else [data]
        if len(columns) != len(inputs):
            raise bad_input(f"the model has {len(inputs)} inputs of arrays. Received: {len(columns)}")
        found: list[npt.NDArray[np.generic]] = []
        for one, column in zip(inputs, columns, strict=True):
            try:
                x = np.asarray(column, np.float32)
            except (ValueError, TypeError):
                raise bad_input(f"input {one.name!r} must be an array of numbers") from None
            if not x.size or x.ndim != len(one.shape) or any(
                wanted not in (None, size) for wanted, size in zip(one.shape[1:], x.shape[1:], strict=True)
            ):
                wanted = ["any" if size is None else size for size in one.shape[1:]]
                raise bad_input(f"input {one.name!r} takes rows of the shape {wanted}. Received: shape {x.shape}")
            divided = _converted(x, one.divide_by, "float32")
            if not np.isfinite(divided.astype(np.float32)).all():
                raise bad_input(f"input {one.name!r} has values that are NaN or infinite")
            found.append(divided.astype(one.dtype))
        if len({len(x) for x in found}) != 1:
            raise bad_input(f"the inputs have {[len(x) for x in found]} rows")
        return found

    def _one_output(self, method: str, of_classes: bool) -> ModelOutput:
        """Return the only output. Raises Unsupported unless it is one of classes, or of a number."""
        outputs = self.signature.outputs
        if len(outputs) != 1 or (outputs[0].classes is not None) != of_classes:
            what = "classes" if of_classes else "one number"
            raise noted(Unsupported(f"{method} is for a model with one output of {what}",
                                    hint="outputs() returns the values of each output."))  # fmt: skip
        return outputs[0]

    def _held_out(self, one: ModelOutput) -> HeldOut:
        if one.held_out is None:
            raise noted(
                Unsupported(
                    f"{self.path} has no held-out rows",
                    hint="Register the model with held_out => 'a table of rows that neither trained nor chose it', and"
                    " export this version.",
                )
            )
        return one.held_out

    def _threshold(self, one: ModelOutput, coverage: float) -> float:
        try:
            return threshold(self._held_out(one), check_coverage(coverage))
        except HeldOutError as error:
            raise bad_input(str(error), error.hint) from None

    def _probabilities(self, one: ModelOutput, data: Any) -> npt.NDArray[np.float64]:
        """Return one probability for each class, as the server computes it."""
        values = self.outputs(data)[one.target].astype(np.float64)
        return np.hstack([1.0 - values, values]) if values.shape[1] == 1 else _by_class(one, values).astype(np.float64)

    def _answers(self, one: ModelOutput, values: npt.NDArray[np.generic]) -> Sequence[Any]:
        """Return the class of each row, or the number; a list of numbers where a row has several."""
        if one.classes is None:
            rows = values.astype(np.float64)
            return list(rows[:, 0].tolist() if rows.shape[1] == 1 else rows.tolist())
        scores = _by_class(one, values)
        classes = [*self._classes(one), None]
        best = np.argmax(np.where(np.isnan(scores), -np.inf, scores), axis=1)
        best[np.isnan(scores).all(axis=1)] = -1
        return [classes[i] for i in best.tolist()]

    def _classes(self, one: ModelOutput) -> list[Any]:
        try:
            return [class_of(text, one.sql_type) for text in one.classes or ()]
        except (ArithmeticError, ValueError):
            raise contradiction(f"its signature has classes of {one.target!r} that are no {one.sql_type!r}") from None

    @cached_property
    def _encoder(self) -> Encoder | None:
        return None if self.preprocessor is None else Encoder(self.preprocessor)

    @cached_property
    def _targets(self) -> Targets | None:
        return None if self.preprocessor is None else Targets(self.preprocessor)


def load_exported(path: str | Path, format: str | None = None) -> ExportedModel:
    """Load a model that an export wrote; no database is needed.

    Parameters
    ----------
    path : str or Path
        The directory, or the model's file.
    format : str, optional
        ``onnx`` (needs ONNX Runtime) or ``keras`` (needs Keras and TensorFlow), where a directory has both. Default:
        the first one whose program is installed.

    Raises
    ------
    InvalidParameter, UnreadableText
        If there is no exported model, or it is damaged.
    Unsupported
        If its program is not installed, or it has another format.
    """
    try:
        form = None if format is None else Format(format)
    except ValueError:
        raise bad_input(f"format must be one of {', '.join(Format)}. Received: {format!r}") from None
    found, file = find_file(Path(path), form)
    data = _read(file, MAX_BYTES) if found in NEEDS else b""
    return ExportedModel(file, found, data, _additions(Path(path), file, found, data))


def _check_same(signature: str, file: Path, data: bytes) -> None:
    """Raise InvalidParameter if a directory's signature is that of another model than its file: of a later export."""
    try:
        own = read_signature(read_additions(file.name, data)[SIGNATURE])
    except MopError:
        return  # what cannot be read is told when it is loaded
    if own.weights_digest != read_signature(signature).weights_digest:
        raise bad_input(
            f"{file} is not of the model that {SIGNATURE} beside it describes",
            f"Another model was exported into this directory later. load_exported('{file}') loads this file.",
        )


def _additions(path: Path, file: Path, form: Format, data: bytes) -> dict[str, str]:
    """Return signature, preprocessor and card: the files of a directory, or what the model's file has in it."""
    try:
        if path.is_dir() and (path / SIGNATURE).exists():
            names = [name for name in (SIGNATURE, PREPROCESSOR, CARD) if (path / name).exists()]
            found = {name: str(_read(path / name, MAX_ADDITION_BYTES), "utf-8") for name in names}
            if form in NEEDS:
                _check_same(found[SIGNATURE], file, data)
            return found
        return read_additions(str(file), data or _read(file, MAX_BYTES))
    except UnicodeDecodeError:
        raise noted(UnreadableText(f"the texts beside {file} are damaged", hint="Export the model again.")) from None
    except MopError as error:
        raise noted(error) from None


def _read(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Raises InvalidParameter if it cannot be read, or is larger than an export's."""
    try:
        n_bytes = path.stat().st_size
        if n_bytes > most_bytes:  # defence: size-of-a-text
            raise bad_input(f"{path} has {n_bytes:,} bytes, and an exported file has at most {most_bytes:,}")
        return path.read_bytes()
    except OSError as error:
        raise noted(cannot_be_read(error.filename, error.strerror)) from None


def _converted(x: npt.NDArray[np.generic], divide_by: float, dtype: str) -> npt.NDArray[np.generic]:
    """Return an input as the network takes it: as float32 divided by a float32 number, then of its type."""
    if divide_by != 1.0:
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32) / np.float32(divide_by)
    return np.ascontiguousarray(x.astype(dtype, copy=False))


def _by_class(one: ModelOutput, values: npt.NDArray[np.generic]) -> Floats:
    """Return one score for each class: a single value for two classes is that of the second."""
    scores, n_classes = values.astype(np.float32), len(one.classes or ())
    if scores.shape[1] == 1 and n_classes == 2:
        return np.hstack([1 - scores, scores])
    if scores.shape[1] != n_classes:
        raise noted(Unsupported(
            f"output {one.name!r} has {scores.shape[1]} values a row, and {n_classes} classes",
            hint="outputs() returns the values of each output.",
        ))  # fmt: skip
    return scores


def _is_frame(data: Any) -> bool:
    return not isinstance(data, np.ndarray | list | tuple)


def _series(data: Any, name: str, values: Sequence[Any]) -> Any:
    if _is_frame(data):
        return series_like(data, name, values)
    import pandas as pd

    return pd.Series(list(values), name=name)


def _frame(data: Any, columns: dict[Any, Any]) -> Any:
    if _is_frame(data):
        return like(data, columns)
    return pandas_of(columns)
