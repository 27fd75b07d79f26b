"""The commands explain_prediction, which draws the background for mop_backend/explain.py, importance and
partial_dependence."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from mop_backend.frames import Header
from mop_backend.registered_names import with_newest
from mop_backend.weights import ModelWeights

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Predictions, Targets
from madlib_mop.columns.families import FAMILIES, text_of
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn, ImageFit, TermsFit, TextFit, VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.raw import Levels, Moments, Numbers, RawColumn
from madlib_mop.columns.transforms.categories import CategoryFit
from madlib_mop.driver.columns.recorded import batch_rows_of, needed_fields
from madlib_mop.driver.columns.rows import names_of, naming_rows, read_batches
from madlib_mop.driver.columns.source import read_source
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.drift.readers import OrdinaryTable
from madlib_mop.driver.inference.fits import check_fit
from madlib_mop.driver.inference.labelled_rows import LabelledRows, find_labelled, is_packed
from madlib_mop.driver.inference.measured import check_codes
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.packed_rows import array_of, ragged
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.rows import check_unpacked
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.outputs.tables import QUALIFIED
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.driver.session.relations import is_own
from madlib_mop.errors import InvalidParameter, Unsupported, no_such_class, shown
from madlib_mop.explaining.columns import ColumnElements, Inputs
from madlib_mop.explaining.dependence import ColumnValue, chosen_rows
from madlib_mop.explaining.dependence import Dependence as MeanPredictions
from madlib_mop.explaining.dependence import partial_dependence as dependence_of
from madlib_mop.explaining.drawing import DrawnRows
from madlib_mop.explaining.importance import Floats, importances

_LEAST = 1e-15
_CHUNK_ROWS = 8192
_CHUNK_BYTES = 32 << 20
#: Of the rows that are drawn, as the network gets them, and of what is computed for them. A background is in the
#: memory of the caller's session too.
_MOST_BYTES = 512 << 20
_MOST_BACKGROUND_BYTES = 64 << 20
#: Of the texts of their values in the column of partial_dependence.
_MOST_TEXT_BYTES = 256 << 20
#: Of a row, for each unit of an output: a float32, a float64 of the same, and one of what is chosen of them.
_UNIT_BYTES = 4 + 8 + 8
#: Of a row, for each output: four losses or sums of losses.
_OUTPUT_BYTES = 4 * 8
#: Of a row, for its value in a column without the text: the tuple, the number, and references to them.
_VALUE_BYTES = 128
#: Of a normal distribution: 95 % lie within so many standard deviations.
_WITHIN = 1.959963984540054
_OF_CLASSES, _OF_NUMBERS = ("log_loss", "error_rate"), ("squared_error", "absolute_error")


def explain_prediction(call: Call) -> Header:
    """Return encoded rows of a table: the background of an explanation.

    Returns
    -------
    dict
        ``shapes``, ``index_inputs`` and ``tensors``: as in a request to predict them. ``oids``: of the relations that
        were read.

    Raises
    ------
    MopError
        If there is no such model or table, or the table does not fit the model.
    """
    a, session = call.arguments, call.session
    model, preprocessor = model_of_rows(call)
    name = a["background"]
    if name is None:
        name = _training_table(session, model)
    n_rows = _most_rows(preprocessor, a["n_background"], _MOST_BACKGROUND_BYTES)
    drawn: DrawnRows[None] = DrawnRows(n_rows, a["seed"])
    relation = session.relation(name, "background", any_type=True)
    packed = is_packed({column.name for column in session.columns(relation)})
    summary = session.existing(relation.with_suffix("_summary").sql, "background") if packed else None
    for rows in _inputs(session, model, preprocessor, name, packed):
        drawn.add(rows)
    if not drawn.n_rows:
        raise InvalidParameter(f"background: the table has no rows that can be predicted. Received: {name!r}")
    return {
        "oids": [read.oid for read in (relation, summary) if read is not None],
        "shapes": [list(values.shape) for values in drawn.rows],
        "index_inputs": list(preprocessor.index_inputs),
        "tensors": [np.ascontiguousarray(values).tobytes() for values in drawn.rows],
    }


def model_of_rows(call: Call) -> tuple[TrainedModel, Preprocessor]:
    a = call.arguments
    name = with_newest(a["model_table"], a["mst_key"])
    model = find_model(call.session, call.function, name, a["mst_key"])
    return model, preprocessor_of(model, a["model_table"])


def preprocessor_of(model: TrainedModel, received: str) -> Preprocessor:
    """Return the preprocessor of a model. Raises Unsupported if it has none, MopError if it does not fit."""
    if model.preprocessor is None:
        raise Unsupported(
            f"model_table: {model.label} was not trained on a table of pack_columns, so its inputs have no columns."
            f" Received: {received!r}",
            hint="Pack ordinary columns with madlib_mop.pack_columns, and train on them.",
        )
    preprocessor = Preprocessor.from_json(model.preprocessor)
    check_fit(model, preprocessor)
    return preprocessor


def _training_table(session: CallerSession, model: TrainedModel) -> str:
    """Return the packed table on which a model was trained, if the caller owns all that is read to find and use it.

    To read a table runs the code of its owner, if it is a view for example, and the caller has not named these.
    """
    summary = _own(session, model.place.relation.with_suffix("_summary").sql)
    types = {} if summary is None else {column.name: column.type_sql for column in session.columns(summary)}
    if summary is not None and types.get(QUALIFIED[0]) == QUALIFIED[1]:  # tables of older versions lack the column
        query = statement("SELECT qualified_names ->> 'source_table' AS name FROM {t}", t=summary)
        name = session.only_row(query, summary)["name"]
        source = _own(session, name) if name else None
        if source is not None and _own(session, source.with_suffix("_summary").sql) is not None:
            return str(name)
    raise InvalidParameter(
        f"background is missing: the packed table on which {model.label} was trained is not known, not your own, or in"
        " a schema of another role. Received: NULL",
        hint="Name a table of rows like those of training, packed or not: background => 'my_table'.",
    )


def _own(session: CallerSession, name: str) -> Relation | None:
    """Return a table by its name with its schema, if it exists and only the caller can change what the name means."""
    found = session.existing(name, "background")
    if found is None:
        return None
    return found if is_own(session, found) else None  # defence: own-background = found


def _inputs(
    session: CallerSession, model: TrainedModel, preprocessor: Preprocessor, name: str, packed: bool
) -> Iterator[Inputs]:
    """Yield the rows of a table as the network gets them, in batches."""
    if packed:
        (rows,) = find_labelled(session, name, "background").rows_of([model])
        n_inputs = len(rows.independent)
        for columns in _columns(rows, preprocessor, "background"):
            yield columns[:n_inputs]
        return
    for batch in OrdinaryTable(session, name, "background", model, None):
        yield batch.inputs


def _columns(rows: LabelledRows, preprocessor: Preprocessor, what: str) -> Iterator[Inputs]:
    """Yield inputs and targets, buffer by buffer; the owner of a packed table can write any bytes into it."""
    targets = Targets(preprocessor)
    forms = [(tensor.shape, tensor.dtype) for tensor in preprocessor.tensors]
    forms += [(targets.shape(name), targets.dtype(name)) for name in targets.names]
    if len(forms) != len(rows.columns):
        raise ragged(f"{rows.relation} has {len(rows.columns)} columns, and the model {len(forms)}", what)
    for part in rows.parts:
        for shapes, blobs in rows.buffers(part):
            if shapes[0] and shapes[0][0] == 0:
                continue
            first = array_of(rows, 0, shapes, blobs, what)
            others = range(1, len(rows.columns))
            found = [first, *(array_of(rows, number, shapes, blobs, what, len(first)) for number in others)]
            for name, values, form in zip(rows.columns, found, forms, strict=True):
                if (values.shape[1:], values.dtype.name) != form:
                    shape, dtype = form
                    raise ragged(
                        f"column {name!r} of {rows.relation} has rows of {values.dtype.name} {list(values.shape[1:])},"
                        f" and the model takes {dtype} {list(shape)}",
                        what,
                    )
            yield found


def importance(call: Call) -> list[dict[str, Any]]:
    """Return a row for each output and column: how much the loss grows if the column is exchanged between rows."""
    a = call.arguments
    model, preprocessor = model_of_rows(call)
    sample = RowSample(a["source_table"], "source_table", a["max_rows"], a["seed"])
    return importance_rows(call.session, model, preprocessor, sample, a["metric"], a["n_repeats"])


@dataclass(frozen=True)
class RowSample:
    """Rows that are drawn from a table.

    Attributes
    ----------
    table : str
        As written by the caller.
    what : str
        The argument that named it, for messages.
    max_rows, seed : int
    """

    table: str
    what: str
    max_rows: int
    seed: int


def importance_rows(
    session: CallerSession,
    model: TrainedModel,
    preprocessor: Preprocessor,
    sample: RowSample,
    metric: str | None,
    n_repeats: int,
) -> list[dict[str, Any]]:
    """Return the rows of `importance`: of each output the most important column first. Raises MopError."""
    metrics, what = _metrics(preprocessor, metric), sample.what
    (rows,) = find_labelled(session, sample.table, what).rows_of([model])
    row_bytes = _row_bytes(model, preprocessor) + _target_bytes(preprocessor)
    drawn: DrawnRows[None] = DrawnRows(
        _most_rows(preprocessor, sample.max_rows, more_bytes=row_bytes), sample.seed
    )
    for columns_of_buffer in _columns(rows, preprocessor, what):
        drawn.add(columns_of_buffer)
    if drawn.n_rows < 2:
        raise InvalidParameter(
            f"{what} has {'one row' if drawn.n_rows else 'no rows'}, and values are exchanged between two or"
            f" more. Received: {sample.table!r}"
        )
    n_inputs = len(rows.independent)
    inputs, targets = drawn.rows[:n_inputs], drawn.rows[n_inputs:]
    columns = ColumnElements(preprocessor)
    losses = _Losses(preprocessor, targets, metrics, what)
    with LocalTrainer(session) as trainer:
        network = _Network(trainer, model, read_weights(session, model), preprocessor)
        found = importances(
            lambda rows: losses.of(network.outputs(rows)), columns, inputs, n_repeats, sample.seed
        )
    answer = []
    for number, (output, metric) in enumerate(metrics.items()):
        for column in np.argsort(-found.increases[:, number], kind="stable"):
            increase, error = found.increases[column, number], found.standard_errors[column, number]
            answer.append(
                {
                    "output": output,
                    "feature": columns.names[column],
                    "metric": metric,
                    "loss": as_json(found.losses[number]),
                    "importance": as_json(increase),
                    "lower": as_json(increase - _WITHIN * error),
                    "upper": as_json(increase + _WITHIN * error),
                    "n_rows": len(inputs[0]),
                }
            )
    return answer


def _most_rows(
    preprocessor: Preprocessor, wanted: int, most_bytes: int = _MOST_BYTES, more_bytes: int = 0
) -> int:
    """Return how many rows are drawn: as many as are wanted, if they do not take more bytes.

    ``more_bytes`` is what is kept of a row beside its inputs.
    """
    n_bytes = sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in preprocessor.tensors)
    return min(wanted, max(2, most_bytes // max(n_bytes + more_bytes, 1)))


def _row_bytes(model: TrainedModel, preprocessor: Preprocessor) -> int:
    """Return how many bytes are kept of a row's outputs and losses."""
    return _n_units(model, preprocessor) * _UNIT_BYTES + len(preprocessor.targets) * _OUTPUT_BYTES


def _target_bytes(preprocessor: Preprocessor) -> int:
    """Return how many bytes the tensors of a row's targets have."""
    targets = Targets(preprocessor)
    return sum(math.prod(targets.shape(name)) * np.dtype(targets.dtype(name)).itemsize for name in targets.names)


def _n_units(model: TrainedModel, preprocessor: Preprocessor) -> int:
    """Return how many numbers the outputs for a row have; of the table's classes and the architecture the larger."""
    known = [len(column.fit.classes) if isinstance(column.fit, ClassFit) else 1 for column in preprocessor.targets]
    return sum(max(a, b or 0) for a, b in zip_longest(known, model.shape.output_units, fillvalue=0))


def _text_bytes(values: tuple[ColumnValue, ...]) -> int:
    return sum(0 if value.text is None else sys.getsizeof(value.text) for value in values)


def as_json(value: float) -> float | str:
    """Return a number for JSON, which has no NaN and no infinity: SQL reads these from texts."""
    return float(value) if math.isfinite(value) else str(float(value))


def partial_dependence(call: Call) -> list[dict[str, Any]]:
    """Return a row for each output, class and value: the mean prediction if all rows had the value in a column."""
    a, session = call.arguments, call.session
    model, preprocessor = model_of_rows(call)
    columns = ColumnElements(preprocessor)
    if a["feature"] not in columns.names:
        raise InvalidParameter(
            f"feature: {model.label} has no such input. Received: {shown(a['feature'])}",
            hint=f"Its inputs are {', '.join(columns.names)}.",
        )
    fitted = preprocessor.inputs[columns.names.index(a["feature"])]
    if isinstance(fitted.fit, VectorFit | ImageFit):
        raise Unsupported(
            f"feature: column {fitted.name!r} has no single values: it is {fitted.spec.sql_type}. Received:"
            f" {a['feature']!r}",
            hint="Choose a column of numbers, dates or categories.",
        )
    sample = RowSample(a["source_table"], "source_table", a["max_rows"], a["seed"])
    (rows,) = dependence_rows(session, model, preprocessor, sample, [fitted], a["n_values"], a["of_class"])
    return rows


def dependence_rows(
    session: CallerSession,
    model: TrainedModel,
    preprocessor: Preprocessor,
    sample: RowSample,
    features: Sequence[FittedColumn],
    n_values: int,
    of_class: str | None = None,
) -> list[list[dict[str, Any]]]:
    """Return the rows of `partial_dependence` for each of some inputs with single values.

    The table is read once. Raises MopError.
    """
    outputs = _Outputs(preprocessor, of_class)
    value_bytes = _VALUE_BYTES * len(features)
    most = _most_rows(preprocessor, sample.max_rows, more_bytes=_row_bytes(model, preprocessor) + value_bytes)
    drawn: DrawnRows[tuple[ColumnValue, ...]] = DrawnRows(most, sample.seed, _text_bytes, _MOST_TEXT_BYTES)
    names = [fitted.name for fitted in features]
    for rows, values in _rows_with_values(session, preprocessor, sample, names):
        drawn.add(rows, values)
    if not drawn.n_rows:
        raise no_rows(sample.table, sample.what)
    columns, answers = ColumnElements(preprocessor), []
    with LocalTrainer(session) as trainer:
        network = _Network(trainer, model, read_weights(session, model), preprocessor)
        for place, fitted in enumerate(features):
            labels = [label[place] for label in drawn.labels]
            sources = chosen_rows(labels, n_values, isinstance(fitted.fit, CategoryFit | TextFit | TermsFit))
            number = columns.names.index(fitted.name)
            found = dependence_of(lambda rows: outputs.of(network.outputs(rows)), columns, drawn.rows, number, sources)
            answers.append(_as_rows(found, outputs, [labels[source].text for source in sources], len(labels)))
    return answers


def _as_rows(
    found: MeanPredictions, outputs: "_Outputs", texts: Sequence[str | None], n_rows: int
) -> list[dict[str, Any]]:
    answer = []
    for place, (output, of_class) in enumerate(outputs.names):
        for value, text in enumerate(texts):
            mean, error = float(found.means[value, place]), float(found.standard_errors[value, place])
            answer.append(
                {
                    "output": output,
                    "class": of_class,
                    "value": text,
                    "prediction": as_json(mean),
                    "lower": None if math.isnan(error) else as_json(mean - _WITHIN * error),
                    "upper": None if math.isnan(error) else as_json(mean + _WITHIN * error),
                    "n_rows": n_rows,
                }
            )
    return answer


def _rows_with_values(
    session: CallerSession, preprocessor: Preprocessor, sample: RowSample, features: Sequence[str]
) -> Iterator[tuple[Inputs, list[tuple[ColumnValue, ...]]]]:
    """Yield the encoded rows of a table, in batches, with their values in some columns."""
    source = read_source(session, sample.table, sample.what)
    known = {column.name: column for column in session.columns(source.relation)}
    check_unpacked(known, preprocessor.tensors[0].name, source.relation, sample.table, sample.what)
    fields = needed_fields(preprocessor.inputs, source, sample.what)
    names, n_before = [field.name for field in fields], 0
    with FileDecoder() as decode:
        encoder = Encoder(preprocessor, decode)
        batches = read_batches(session, source, fields, batch_rows=batch_rows_of(preprocessor))
        with closing(batches):
            for batch, columns in batches:
                raw = dict(zip(names, columns, strict=True))
                with naming_rows(names_of(batch, n_before)):
                    tensors = encoder.encode(raw)
                n_before += batch.n_rows
                yield list(tensors.arrays.values()), list(
                    zip(*(values_of(raw[feature]) for feature in features), strict=True)
                )


def values_of(column: RawColumn) -> list[ColumnValue]:
    """Return the value of each row, as SQL shows it."""
    if isinstance(column, Levels):
        return [ColumnValue(0.0, text) for text in column.texts()]
    assert isinstance(column, Numbers | Moments), "other columns have no single values"
    places = column.values.tolist()
    if isinstance(column, Numbers) and FAMILIES[column.family].text is None:
        texts = column.sql_texts()
    else:
        absent = column.missing.tolist()
        texts = [None if absent[i] else text_of(place, column.family) for i, place in enumerate(places)]
    return [ColumnValue(float(place), text) for place, text in zip(places, texts, strict=True)]


class _Outputs:
    """What is predicted: of each target the number, or the probability of a class, or of each.

    Attributes
    ----------
    names : list of (str, str or None)
        Target and class.
    """

    def __init__(self, preprocessor: Preprocessor, of_class: str | None):
        self._decoder = Targets(preprocessor)
        self.names: list[tuple[str, str | None]] = []
        known: list[str] = []
        for column in preprocessor.targets:
            if isinstance(column.fit, ClassFit):
                known += column.fit.classes
                chosen = [one for one in column.fit.classes if of_class in (None, one)]
                self.names += [(column.name, one) for one in chosen]
            elif of_class is None:
                self.names.append((column.name, None))
        if not self.names:
            raise no_such_class(known, of_class)

    def of(self, outputs: list[np.ndarray]) -> Floats:
        """Return all that is predicted for each row, float64 (n_rows, n)."""
        decoded = self._decoder.decode(dict(zip(self._decoder.names, outputs, strict=True)))
        return np.stack([_of_class(decoded[name], of_class) for name, of_class in self.names], axis=1)


def _of_class(predicted: Predictions, of_class: str | None) -> Floats:
    if predicted.probabilities is None or of_class is None:
        assert predicted.numbers is not None, "it is a number"
        return predicted.numbers
    found: Floats = predicted.probabilities[:, predicted.classes.index(of_class)]
    return found


def _metrics(preprocessor: Preprocessor, wanted: str | None) -> dict[str, str]:
    """Return the loss of each target for which there is one."""
    found = {}
    for column in preprocessor.targets:
        possible = _OF_CLASSES if isinstance(column.fit, ClassFit) else _OF_NUMBERS
        if wanted is None or wanted in possible:
            found[column.name] = wanted or possible[0]
    if not found:
        kind, possible = ("numbers", _OF_NUMBERS) if wanted in _OF_CLASSES else ("classes", _OF_CLASSES)
        raise InvalidParameter(
            f"metric: the model predicts {kind}. Received: {wanted!r}", hint=f"Use {' or '.join(map(repr, possible))}."
        )
    return found


class _Network:
    """A model, loaded into a trainer."""

    def __init__(self, trainer: LocalTrainer, model: TrainedModel, weights: ModelWeights, preprocessor: Preprocessor):
        self._trainer = trainer
        self._index_inputs = list(preprocessor.index_inputs)
        self._targets = Targets(preprocessor)
        self._output_bytes = 4 * _n_units(model, preprocessor)
        request = {"op": "predict_load", "model": model.request(compiled=False), "has_weights": True}
        trainer.ask({**request, "normalizing_const": model.normalizing_const}, weights)

    def outputs(self, rows: Inputs) -> list[np.ndarray]:
        """Return each output for some rows, float32 (n_rows, n_units)."""
        row_bytes = sum(values[:1].nbytes for values in rows) + self._output_bytes
        n_rows = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(row_bytes, 1)))
        parts = []
        for start in range(0, len(rows[0]), n_rows):
            part = [np.ascontiguousarray(values[start : start + n_rows]) for values in rows]
            shapes = [list(values.shape) for values in part]
            request = {"op": "predict", "shapes": shapes, "index_inputs": self._index_inputs}
            header, blobs = self._trainer.ask(request, [values.data for values in part])
            parts.append(
                [
                    np.frombuffer(blob, np.float32).reshape(shape)
                    for shape, blob in zip(header["shapes"], blobs, strict=True)
                ]
            )
            if start == 0:  # outputs of another shape are an error before those of all rows are kept
                self._targets.decode(dict(zip(self._targets.names, parts[0], strict=True)))
        return [np.concatenate(output) for output in zip(*parts, strict=True)]


class _Losses:
    """The losses of rows whose true values are known."""

    def __init__(
        self, preprocessor: Preprocessor, targets: Inputs, metrics: dict[str, str], what: str = "source_table"
    ):
        self._decoder = Targets(preprocessor)
        self._metrics = metrics
        self._true: dict[str, np.ndarray] = {}
        for column, values in zip(preprocessor.targets, targets, strict=True):
            if not isinstance(column.fit, ClassFit):
                numbers = self._decoder.decode_one(column.name, values).numbers
                assert numbers is not None, "it is a number"
                self._true[column.name] = numbers
            else:
                is_index = column.fit.encode == "index"
                codes = values[:, 0].astype(np.int64) if is_index else values.argmax(axis=1)
                check_codes(codes, len(column.fit.classes), column.name, what)
                self._true[column.name] = codes

    def of(self, outputs: list[np.ndarray]) -> Floats:
        """Return the loss of each row for each output that has a metric, float64 (n_rows, n_outputs)."""
        decoded = self._decoder.decode(dict(zip(self._decoder.names, outputs, strict=True)))
        return np.stack([self._loss(name, metric, decoded[name]) for name, metric in self._metrics.items()], axis=1)

    def _loss(self, name: str, metric: str, predicted: Predictions) -> Floats:
        true = self._true[name]
        loss: Floats
        if predicted.probabilities is not None and predicted.codes is not None:
            if metric == "log_loss":
                loss = -np.log(np.clip(predicted.probabilities[np.arange(len(true)), true], _LEAST, 1.0))
            else:
                loss = np.not_equal(predicted.codes, true).astype(np.float64)
            return loss
        assert predicted.numbers is not None, "it is a number"
        loss = np.abs(predicted.numbers - true)
        return loss if metric == "absolute_error" else loss**2
