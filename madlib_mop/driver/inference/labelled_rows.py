"""Rows with their targets as models take them; used by evaluate, deploy, make_ensemble and register's baseline.

They come from a packed table, or from a table of rows as they are. Of the latter, each model gets the rows as its own
preprocessor encodes them, so models that were trained on different packings can be compared on the same rows.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.arrays import encoded_like
from madlib_mop.driver.columns.recorded import batch_rows_of, needed_fields, together
from madlib_mop.driver.columns.rows import SourceRows, read_rows, temp_file_limit
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.columns.spool import beyond_limit
from madlib_mop.driver.columns.writing import Encode, by_columns, check_kept, encode_rows
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.data.packed import PackedShard, PackedTable, read_packed_table
from madlib_mop.driver.inference.fits import EncodedRows, check_fit, check_preprocessor, check_test_table
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.rows import image_shape_of
from madlib_mop.driver.packing.tables import Classes
from madlib_mop.driver.packing.training import PackedColumn, TrainingTable
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady

#: The shapes and the bytes of a buffer's columns.
Buffer = tuple[list[list[int]], list[Blob]]

_IN_MEMORY_BYTES = 64 << 20
_PART_BYTES = 256 << 20
_SEED = 0  # the order depends on the content alone


@dataclass(frozen=True)
class RowsPart:
    """Rows that a trainer holds at once: a shard of a packed table, or some buffers of encoded rows.

    Attributes
    ----------
    number : int
    n_rows, n_bytes : int
    """

    number: int
    n_rows: int
    n_bytes: int


class LabelledRows(EncodedRows, Protocol):
    """The rows as one model takes them; the attributes mean the same as those of `PackedTable`."""

    @property
    def index_inputs(self) -> tuple[int, ...]: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def parts(self) -> list[RowsPart]: ...
    def buffers(self, part: RowsPart) -> Iterator[Buffer]:
        """Yield the shapes and the bytes of the columns of each buffer of a part, in order."""


class LabelledTable(Protocol):
    """A table whose rows have their targets."""

    @property
    def relation(self) -> Relation: ...
    def rows_of(self, models: Sequence[TrainedModel]) -> list[LabelledRows]:
        """Return the rows as each model takes them. Raises MopError if they do not fit a model."""


def find_labelled(session: CallerSession, name: str | None, what: str) -> LabelledTable:
    """Find a table that is packed, or whose rows models encode; no row of the latter is read yet.

    Parameters
    ----------
    session : CallerSession
    name : str or None
        As written by the caller.
    what : str
        The argument that named it, for messages.

    Raises
    ------
    MopError
        If there is no such table, or it is packed and cannot be read.
    """
    relation = session.relation(name, what, any_type=True)
    if is_packed({column.name for column in session.columns(relation)}):
        return _OfPackedTable(session, read_packed_table(session, name, what), what)
    assert name is not None, "a relation was found"
    return _OfSource(session, relation, name, what)


def packed_rows(session: CallerSession, name: str | None, what: str) -> LabelledRows:
    """Return the rows of a packed table, of no model. Raises MopError if it cannot be read."""
    return _PackedRows(session, read_packed_table(session, name, what), what)


def is_packed(columns: set[str]) -> bool:
    """Return whether a table with these columns is a packed one."""
    return "buffer_id" in columns and any(f"{column}_shape" in columns for column in columns)


@dataclass(frozen=True)
class _OfPackedTable:
    session: CallerSession
    packed: PackedTable
    what: str

    @property
    def relation(self) -> Relation:
        return self.packed.relation

    def rows_of(self, models: Sequence[TrainedModel]) -> list[LabelledRows]:
        for model in models:
            check_preprocessor(self.session, model, self.packed, self.what)
            check_test_table(model, self.packed, self.what)
        return [_PackedRows(self.session, self.packed, self.what)] * len(models)


class _PackedRows:
    """The rows of a packed table, which are the same for all models."""

    def __init__(self, session: CallerSession, packed: PackedTable, what: str):
        self._session, self._packed, self._what = session, packed, what
        self.relation = packed.relation
        self.independent, self.dependent = packed.independent, packed.dependent
        self.class_values = packed.class_values
        self.normalizing_const = packed.normalizing_const
        self.shapes = packed.shapes
        self.index_inputs = packed.index_inputs
        self.columns = packed.columns
        self.n_rows = packed.n_rows
        shards = [shard for shard in packed.shards if shard.n_rows]
        self.parts = [RowsPart(shard.segment_id, shard.n_rows, shard.n_bytes) for shard in shards]

    def buffers(self, part: RowsPart) -> Iterator[Buffer]:
        (shard,) = [shard for shard in self._packed.shards if shard.segment_id == part.number]
        n_columns, n_rows = len(self.columns), 0
        query = self._packed.query
        with closing(self._session.stream(query, [shard.key_there], ["integer"], batch_rows=1)) as buffers:
            for buffer in buffers:
                shapes = [buffer.values_of(f"s{i}")[0] for i in range(n_columns)]
                if shapes[0] and isinstance(shapes[0][0], int):  # the trainer reports others
                    n_rows += shapes[0][0]
                yield shapes, [buffer.bytes_of(f"b{i}").data for i in range(n_columns)]
        self._check(shard, n_rows)

    def _check(self, shard: PackedShard, n_rows: int) -> None:
        if n_rows != shard.n_rows:  # this transaction's snapshot at a host is older than the rows
            raise NotReady(
                f"{self._what}: segment {shard.segment_id} of {self.relation} has {shard.n_rows} rows, but this"
                f" transaction can see {n_rows}",
                hint="COMMIT first: this transaction's snapshot at that host is older than the packed table.",
            )


class _Kept:
    """Buffers in memory while they are few, then in a temporary file without a name; they are read any number of
    times."""

    def __init__(self, limit_bytes: int | None):
        self._limit_bytes = limit_bytes
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)
        self._buffers: list[tuple[list[list[int]], list[int], int]] = []  # shapes, bytes of each column, offset
        self._n_bytes = 0
        self.parts: list[RowsPart] = []

    def add(self, shapes: list[list[int]], blobs: Sequence[Blob]) -> None:
        """Append a buffer. Raises OutOfResources beyond the limit."""
        sizes = [memoryview(blob).nbytes for blob in blobs]
        last = self.parts[-1] if self.parts else None
        if last is None or last.n_bytes + sum(sizes) > _PART_BYTES:
            self.parts.append(RowsPart(len(self._buffers), shapes[0][0], sum(sizes)))
        else:
            self.parts[-1] = RowsPart(last.number, last.n_rows + shapes[0][0], last.n_bytes + sum(sizes))
        self._buffers.append((shapes, sizes, self._n_bytes))
        self._n_bytes += sum(sizes)
        if self._limit_bytes is not None and self._n_bytes > max(self._limit_bytes, _IN_MEMORY_BYTES):
            raise beyond_limit(self._limit_bytes)
        for blob in blobs:
            self._file.write(blob)

    def buffers(self, part: RowsPart) -> Iterator[Buffer]:
        """Yield the buffers of a part; its number is that of its first buffer."""
        n_rows = 0
        for shapes, sizes, offset in self._buffers[part.number :]:
            if n_rows == part.n_rows:
                break
            n_rows += shapes[0][0]
            self._file.seek(offset)
            yield shapes, [self._file.read(size) for size in sizes]


@dataclass(frozen=True)
class _EncodedRows:
    """Rows as the encoder of a model encoded them."""

    relation: Relation
    independent: list[str]
    dependent: list[str]
    class_values: list[tuple[str, str | None]]
    normalizing_const: float
    shapes: list[list[int]]
    kept: _Kept = field(repr=False)
    index_inputs: tuple[int, ...] = ()

    @property
    def columns(self) -> list[str]:
        return [*self.independent, *self.dependent]

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self.parts)

    @property
    def parts(self) -> list[RowsPart]:
        return self.kept.parts

    def buffers(self, part: RowsPart) -> Iterator[Buffer]:
        return self.kept.buffers(part)


@dataclass(frozen=True)
class _OfSource:
    """A table of rows as they are."""

    session: CallerSession
    relation: Relation
    name: str
    what: str

    def rows_of(self, models: Sequence[TrainedModel]) -> list[LabelledRows]:
        """Rows of ordinary columns are read once for all models; those of arrays once for each encoding."""
        documents = {model.preprocessor for model in models if model.preprocessor is not None}
        by_document = self._by_columns({d: Preprocessor.from_json(d) for d in documents}, models) if documents else {}
        by_arrays: dict[object, _EncodedRows] = {}
        found: list[LabelledRows] = []
        for model in models:
            if model.preprocessor is not None:
                found.append(by_document[model.preprocessor])
                continue
            training = self._training_table(model)
            key = replace(training, table=""), _image_shapes(model)  # the table is for messages only
            if key not in by_arrays:
                by_arrays[key] = self._by_arrays(model, training)
            check_test_table(model, by_arrays[key], self.what)
            found.append(by_arrays[key])
        if len({rows.n_rows for rows in found}) > 1:
            raise NotReady(
                f"{self.what}: {self.relation} was changed while it was being read. Received: {self.name!r}",
                hint="Call again, or call in a REPEATABLE READ transaction.",
            )
        return found

    def _by_columns(
        self, preprocessors: dict[str, Preprocessor], models: Sequence[TrainedModel]
    ) -> dict[str, _EncodedRows]:
        """Read the columns that any of the preprocessors needs, and encode them by each."""
        for model in models:
            if model.preprocessor is not None:
                check_fit(model, preprocessors[model.preprocessor])
        source = read_source(self.session, self.name, self.what)
        needed = together(f for one in preprocessors.values() for f in needed_fields(one.columns, source, self.what))
        rows = read_rows(self.session, source, needed, _SEED)
        check_kept(rows, [field.name for field in needed], "Pass fewer rows, or shorten it in a view.")
        order = rows.order()
        found = {}
        for document, preprocessor in preprocessors.items():
            with FileDecoder() as decode:
                encoder, targets = Encoder(preprocessor, decode), Targets(preprocessor)
                kept = self._kept(rows, order, by_columns(encoder, targets), batch_rows_of(preprocessor))
            found[document] = self._encoded(source, preprocessor, targets, kept)
        return found

    def _kept(self, rows: SourceRows, order: npt.NDArray[np.int64], encode: Encode, batch_rows: int) -> _Kept:
        """Encode the rows in this order."""
        kept = _Kept(temp_file_limit(self.session))
        for start in range(0, len(order), batch_rows):
            tensors = encode_rows(rows, order[start : start + batch_rows], encode)
            blobs = [np.ascontiguousarray(tensor).data.cast("B") for tensor in tensors]
            kept.add([list(tensor.shape) for tensor in tensors], blobs)
        return kept

    def _encoded(
        self, source: SourceTable, preprocessor: Preprocessor, targets: Targets, kept: _Kept
    ) -> _EncodedRows:
        tensors = preprocessor.tensors
        return _EncodedRows(
            source.relation,
            [tensor.name for tensor in tensors],
            list(targets.names),
            [("text[]", None)] * len(targets.names),
            1.0,
            [*(list(tensor.shape) for tensor in tensors), *(list(targets.shape(name)) for name in targets.names)],
            kept,
            preprocessor.index_inputs,
        )

    def _training_table(self, model: TrainedModel) -> TrainingTable:
        """Return what a model of arrays knows of its training table. Raises InvalidParameter if that is too little."""
        if len(model.inputs) != model.n_inputs:
            raise InvalidParameter(
                f"{self.what}: {self.relation} is not packed, and {model.label} has no names of its inputs. Received:"
                f" {self.name!r}",
                hint="Register it again, or pack the rows by validation_preprocessor_dl with its training table.",
            )
        units = [*model.shape.output_units, *[None] * len(model.outputs)]
        classes: list[Classes | None] = []
        for output, n_units in zip(model.outputs, units, strict=False):
            if output.values is None or output.values_text is None:
                classes.append(None)
                continue
            n_values = len(output.values)
            is_sparse = "sparse" in (output.loss or "").lower()
            as_index = n_values > 1 and (is_sparse or n_units not in (None, n_values))
            has_null = output.values[0] is None
            classes.append(
                Classes(output.values_text, n_values, n_values, has_null, output.vartype, None, "", as_index=as_index)
            )
        return TrainingTable(
            model.label,
            model.normalizing_const,
            tuple(PackedColumn(name, (), None) for name in model.inputs),
            tuple(PackedColumn(output.name, (), None) for output in model.outputs),
            tuple(output.vartype for output in model.outputs),
            tuple(classes),
        )

    def _by_arrays(self, model: TrainedModel, training: TrainingTable) -> _EncodedRows:
        like = encoded_like(self.session, self.name, self.what, training, _image_shapes(model))
        with like as (encoding, rows, order):
            kept = self._kept(rows, order, encoding.encode, encoding.batch_rows)
        return _EncodedRows(
            self.relation,
            list(model.inputs),
            [output.name for output in model.outputs],
            [("text[]", output.values_text) for output in model.outputs],
            model.normalizing_const,
            [list(shape) for _, shape in encoding.tensors.values()],
            kept,
        )


def _image_shapes(model: TrainedModel) -> tuple[tuple[int, ...] | None, ...]:
    """Return for each input the size of encoded images: that of the model's input, if it has one."""
    return tuple(image_shape_of(model, number) for number in range(len(model.inputs)))
