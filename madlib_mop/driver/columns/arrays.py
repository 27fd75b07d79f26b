"""Tables of arrays, of numbers side by side and of images: what `training_preprocessor_dl` packs, and
`validation_preprocessor_dl` with such a training table.

They are read, ordered, encoded and written as the columns of `pack_columns` are, by an encoding that is fixed before
any row is read. Checks come first; then everything is made in the caller's transaction, so an error leaves nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Identifier, Relation, Slot
from madlib_mop.columns.encoding.fixed import FixedEncoder, FixedInput, FixedTarget, FixedTargets
from madlib_mop.columns.joined import JoinedForm
from madlib_mop.columns.layout import ArrayLayout
from madlib_mop.columns.preprocessors.checks import MAX_CLASS_BYTES, MAX_CLASSES
from madlib_mop.columns.raw import Numbers
from madlib_mop.columns.records import Field, RecordReader
from madlib_mop.driver.columns.recorded import rows_in_batch
from madlib_mop.driver.columns.rows import SourceRows, naming_rows, read_rows
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.columns.writing import (
    Encode,
    Packing,
    check_sizes,
    plan_packing,
    prepare,
    value_bytes,
    write_packed,
)
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind, PackingSource, read_source, split_columns
from madlib_mop.driver.packing.labels import classes_notice, in_form, not_classes, read_labels
from madlib_mop.driver.packing.tables import (
    Classes,
    DistinctValues,
    SourceQueries,
    SummaryRow,
    class_params,
    class_position,
    create_summary,
    draw_seed,
)
from madlib_mop.driver.packing.training import TrainingTable, read_training_table
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.models.parameters.literals import shorten
from madlib_mop.packing.buffers import BufferPlan

_BYTEA, _INT4 = 17, 23
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_FLOATS = ("float4", "float8", "numeric")
_SEED = 0  # of the hashes where rows keep their order, and of the order of rows that have none
ByName = Mapping[str, Classes]


@dataclass(frozen=True)
class ArraySource(SourceTable):
    """A table whose columns are read as `ColumnToPack.sent` has them, and classes as positions among their values.

    Attributes
    ----------
    packed : tuple of ColumnToPack
    classes : mapping of str to Classes
        By column.
    """

    packed: tuple[ColumnToPack, ...] = ()
    classes: ByName = field(default_factory=dict)

    def _row(self, fields: Sequence[Field]) -> tuple[str, dict[str, Slot]]:
        by_name = {one.name: one for one in self.packed}
        given = [one.name for one in self.packed if one.name in self.classes and not self.classes[one.name].holder]
        slots: dict[str, Slot] = {}
        values = []
        for i, read in enumerate(fields):
            one = by_name[read.name]
            if one.kind is PackingKind.CLASS:
                number = given.index(one.name) + 1 if one.name in given else 0
                value, names = class_position(one, self.classes[one.name], f"c{i}", number)
            else:
                names = {f"c{i}_{k}": Identifier(part.name) for k, part in enumerate(one.sources)}
                value = one.sent([f"s.{{{slot}}}" for slot in names])
            values.append(value)
            slots |= names
        return f"pg_catalog.record_send(ROW({', '.join(values)}))", slots

    def joined(self, fields: Sequence[Field]) -> dict[int, JoinedForm]:
        """Return {}: the fields are expressions, not columns."""
        return {}


def array_source(relation: Relation, text: str, packed: Sequence[ColumnToPack]) -> ArraySource:
    """Return a table with these columns of arrays, numbers and images, none of them classes."""
    return ArraySource(relation, text, (), (), packed=tuple({one.name: one for one in packed}.values()))


def field_of(one: ColumnToPack, divisor: float) -> Field:
    """Return how a column is read; ``divisor`` is that of its encoder."""
    if one.kind is PackingKind.IMAGE:
        return Field(one.name, "bytea", _BYTEA, "bytea")
    if one.kind is PackingKind.CLASS:
        return Field(one.name, "integer", _INT4, "int4")
    parts = tuple(part.name for part in one.sources) if one.parts or one.kind is PackingKind.NUMBER else ()
    return Field(one.name, "bytea", _BYTEA, "_float4", layout=ArrayLayout(parts, divisor, one.is_narrowed))


def fixed_input(one: ColumnToPack, wanted: tuple[int, ...] | None = None) -> FixedInput:
    """Return how an input is encoded; ``wanted`` is the size of its images."""
    return FixedInput(one.name, wanted if one.kind is PackingKind.IMAGE else None)


class FixedEncoding:
    """How the rows of a table of arrays are read and encoded.

    Parameters
    ----------
    session : CallerSession
    table : PackingSource
    classes : mapping of str to Classes
        Of the dependent columns that have classes.
    constant : float
    image_shapes : sequence of (tuple of int or None)
        For each input the size of its images; None keeps theirs.
    decode : FileDecoder

    Attributes
    ----------
    tensors : dict of str to (numpy.dtype, tuple of int)
        Type and shape of a row of each input, then of each target: those of an arbitrary row.

    Raises
    ------
    InvalidParameter
        If this row cannot be encoded.
    """

    def __init__(
        self,
        session: CallerSession,
        table: PackingSource,
        classes: ByName,
        constant: float,
        image_shapes: Sequence[tuple[int, ...] | None],
        decode: FileDecoder,
    ):
        self._session = session
        self._table = table
        params, types = class_params(session, classes, table.columns)
        self._source = ArraySource(
            table.relation, table.text, (), table.naming, False, tuple(params), tuple(types), table.columns, classes
        )
        self._fields = [field_of(one, constant) for one in table.independent]
        self._fields += [field_of(one, 1.0) for one in table.dependent]
        inputs = [fixed_input(one, wanted) for one, wanted in zip(table.independent, image_shapes, strict=True)]
        self._encoder = FixedEncoder(inputs, constant, decode.scaled)
        queries = SourceQueries(session, table)
        self._targets = FixedTargets([_target(one, classes.get(one.name), queries) for one in table.dependent])
        self._classes = classes
        self.tensors = self._of_first_row()

    @property
    def row_bytes(self) -> int:
        """The packed bytes of a row."""
        return sum(value_bytes(*tensor) for tensor in self.tensors.values())

    @property
    def batch_rows(self) -> int:
        """Rows that are read or encoded at once."""
        return rows_in_batch(self.row_bytes)

    @property
    def encode(self) -> Encode:
        """What encodes rows."""
        return lambda raw: [*self._encoder.encode(raw).arrays.values(), *self._targets.encode(raw).values()]

    def read(self, n_rows: int, seed: int | None) -> SourceRows:
        """Read all rows; ``n_rows`` were counted before. Raises NotReady if there are others now."""
        rows = read_rows(self._session, self._source, self._fields, _SEED if seed is None else seed, self.batch_rows)
        if rows.n_rows != n_rows:
            raise NotReady(
                f"{self._table.text} was changed while it was being packed: {n_rows} rows were counted, {rows.n_rows}"
                " read",
                hint="Call again, or call in a REPEATABLE READ transaction.",
            )
        return rows

    def order(self, rows: SourceRows, seed: int | None) -> npt.NDArray[np.int64]:
        """Return the rows' numbers in the order of their hashes; without a seed in that of a scan, if it has one."""
        if seed is None and engine_of_table(self._session, self._table.relation).keeps_order:
            return np.arange(rows.n_rows)
        return rows.order()

    def counts(self, rows: SourceRows, name: str) -> tuple[int, ...]:
        """Return the rows of each class of a column."""
        column = rows.columns[name]
        assert isinstance(column, Numbers), "positions are numbers"
        found = np.bincount(column.values.astype(np.int64), minlength=self._classes[name].width + 1)
        return tuple(found[1:].tolist())

    def refuse_unseen(self, rows: SourceRows, training: TrainingTable) -> None:
        """Raise InvalidParameter, which names them, if there are values that are no classes of the training table."""
        for one in self._table.dependent:
            known = self._classes.get(one.name)
            if known is None or not rows.columns[one.name].missing.any():
                continue
            unseen = SourceQueries(self._session, self._table).unseen_classes(one, known)
            names = ", ".join("NULL" if value is None else repr(value) for value in unseen)
            where = f"in column {known.column!r} of {known.holder.written}" if known.holder else shorten(known.values)
            raise InvalidParameter(
                f"column {one.name!r} has values that are not among the classes of {training.table}: {names}",
                hint=f"The classes are {where}.",
            )

    def _of_first_row(self) -> dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]:
        query = self._source.rows_query(self._fields) + " LIMIT 1"
        found = self._session.execute(query, list(self._source.params), list(self._source.types))
        if not found:
            raise NotReady(f"{self._table.relation} had rows, and now has none", hint="Call again.")
        record = found[0]["r"]
        with naming_rows(lambda row: "the first row"):
            columns = RecordReader(self._fields).read(record, [len(record)])
            raw = {one.name: column for one, column in zip(self._fields, columns, strict=True)}
            arrays = dict(self._encoder.encode(raw).arrays)
            for one in self._table.dependent:
                if one.name not in self._classes:
                    arrays[one.name] = self._targets.encode_one(one.name, raw[one.name])
        tensors = {name: (values.dtype, values.shape[1:]) for name, values in arrays.items()}
        tensors |= {name: (np.dtype(np.int16), (1,) if c.as_index else (c.width,)) for name, c in self._classes.items()}
        return {one.name: tensors[one.name] for one in self._table.columns}


def _target(one: ColumnToPack, classes: Classes | None, queries: SourceQueries) -> FixedTarget:
    if classes is not None:
        return FixedTarget(one.name, classes.width, classes.as_index)
    return FixedTarget(one.name, is_int16=one.is_integer_array and queries.fits_smallint(one))


def training_preprocessor_dl(call: Call) -> None:
    """Pack a table for training: rows in an order drawn from the seed, labels one-hot."""
    session, arguments = call.session, call.arguments
    seed = draw_seed() if arguments["seed"] is None else arguments["seed"]
    y_names = split_columns(arguments["dependent_varname"], "dependent_varname")
    widths = _read_num_classes(arguments.get("num_classes"), y_names)
    as_index = read_labels(arguments.get("labels"), y_names)
    table, packing, image_shapes, n_rows = _prepare(call, y_names, [widths == []] * len(y_names), seed)
    queries = SourceQueries(session, table)
    classes = {}
    for number, column in enumerate(table.dependent):
        if column.kind is PackingKind.CLASS:
            found = queries.distinct_values(column)
            known = _classes(column, found, widths[number] if widths else None)
            classes[column.name] = in_form(known, as_index[number], column)
            session.notice(f"{call.function}: {classes_notice(column, found)}")
        elif as_index[number]:
            raise not_classes(column)
    with FileDecoder() as decode:
        encoding = FixedEncoding(session, table, classes, arguments["normalizing_const"], image_shapes, decode)
        for column, width in zip(table.dependent, widths or [], strict=False):
            _, shape = encoding.tensors[column.name]
            if column.name not in classes and width is not None and shape != (width,):
                raise InvalidParameter(
                    f"num_classes has {width} for column {column.name!r}, which has arrays of the shape"
                    f" {list(shape)}. Received: {arguments['num_classes']}",
                    hint="Use NULL for a column that is a numeric array.",
                )
        _pack(call, packing, table, encoding, classes, arguments["normalizing_const"], n_rows)


def pack_like_training(call: Call) -> None:
    """Pack a table for validation with the constant and classes of a packed training table of arrays."""
    session, arguments = call.session, call.arguments
    training = read_training_table(session, arguments["training_preprocessor_table"])
    y_names = split_columns(arguments["dependent_varname"], "dependent_varname")
    x_names = split_columns(arguments["independent_varname"], "independent_varname")
    training.check_counts(x_names, y_names, side_by_side=True)
    as_numbers = [known is None for known in training.classes]
    separate = len(x_names) == len(training.independent)
    table, packing, image_shapes, n_rows = _prepare(call, y_names, as_numbers, None, separate)
    if len(table.independent) != len(training.independent):  # numeric columns are concatenated into one input
        training.check_counts(x_names, y_names)
    training.check_columns(table)
    classes = _of_training(table, training)
    with FileDecoder() as decode:
        encoding = FixedEncoding(session, table, classes, training.constant, image_shapes, decode)
        training.check_shapes([(name, shape) for name, (_, shape) in encoding.tensors.items()])
        _pack(call, packing, table, encoding, classes, training.constant, n_rows, training)


@contextmanager
def encoded_like(
    session: CallerSession,
    name: str,
    what: str,
    training: TrainingTable,
    image_shapes: Sequence[tuple[int, ...] | None],
) -> Iterator[tuple[FixedEncoding, SourceRows, npt.NDArray[np.int64]]]:
    """Read a table's rows, to be encoded as the rows of a training table of arrays were, in the order of a scan.

    Parameters
    ----------
    session : CallerSession
    name : str
        The table, as written by the caller.
    what : str
        The argument that named it, for messages.
    training : TrainingTable
        Its columns are found by their names; their shapes are not checked.
    image_shapes : sequence of (tuple of int or None)
        As `FixedEncoding` takes them.

    Yields
    ------
    tuple of (FixedEncoding, SourceRows, numpy.ndarray)
        The last are the numbers of the rows in order.

    Raises
    ------
    MopError
        If a column is missing or of another kind than in training, or a row cannot be read.
    """
    x_names, y_names = ([column.name for column in columns] for columns in (training.independent, training.dependent))
    as_numbers = [known is None for known in training.classes]
    table = read_source(session, name, y_names, x_names, as_numbers, separate=True, arguments=(what, what, what))
    training.check_columns(table)
    n_rows = _count_rows(session, table, what)
    with FileDecoder() as decode:
        classes = _of_training(table, training)
        encoding = FixedEncoding(session, table, classes, training.constant, image_shapes, decode)
        rows = encoding.read(n_rows, None)
        encoding.refuse_unseen(rows, training)
        yield encoding, rows, encoding.order(rows, None)


def _of_training(table: PackingSource, training: TrainingTable) -> dict[str, Classes]:
    pairs = zip(table.dependent, training.classes, strict=True)
    return {column.name: known for column, known in pairs if known is not None}


def _prepare(
    call: Call, y_names: list[str], as_numbers: list[bool], seed: int | None, separate: bool = False
) -> tuple[PackingSource, Packing, list[tuple[int, ...] | None], int]:
    """Check the common arguments of both commands, then the source table; the last result is its number of rows."""
    arguments, session = call.arguments, call.session
    x_names = split_columns(arguments["independent_varname"], "independent_varname")
    table = read_source(session, arguments["source_table"], y_names, x_names, as_numbers, separate)
    image_shape = _read_image_shape(arguments.get("image_shape"), table)
    packing = prepare(call, array_source(table.relation, table.text, table.columns), seed)
    return table, packing, [image_shape] * len(table.independent), _count_rows(session, table)


def _count_rows(session: CallerSession, table: PackingSource, what: str = "source_table") -> int:
    """Return the number of rows. Raises InvalidParameter if there is none, or a value is missing."""
    n_rows, counts = SourceQueries(session, table).count_rows()
    if not n_rows:
        raise no_rows(table.text, what)
    for name, has_classes, n_present in counts:
        if n_present < n_rows and not has_classes:
            raise InvalidParameter(
                f"column {name!r} is NULL in {n_rows - n_present} of {n_rows} rows of {table.text}",
                hint="Exclude such rows with a view.",
            )
    return n_rows


def _read_num_classes(widths: list[int | None] | None, y_names: list[str]) -> list[int | None] | None:
    """Check num_classes: None, [] for regression, or one number or None for each dependent column."""
    if widths is None or widths == []:
        return widths
    if len(widths) != len(y_names):
        raise InvalidParameter(
            f"num_classes has {len(widths)} elements for {len(y_names)} dependent columns. Received: {widths}",
            hint="Pass one number for each dependent column; NULL takes it from the data.",
        )
    for width in widths:
        if width is not None and (not isinstance(width, int) or not 1 <= width <= MAX_CLASSES):
            raise InvalidParameter(f"num_classes must be from 1 to {MAX_CLASSES}. Received: {widths}")
    return widths


def _read_image_shape(shape: list[int] | None, table: PackingSource) -> tuple[int, ...] | None:
    if shape is None:
        return None
    if not any(column.kind is PackingKind.IMAGE for column in table.independent):
        raise InvalidParameter(
            f"image_shape applies to columns of encoded images, but there is none. Received: {shape}",
            hint="An encoded image is a bytea value that contains a JPEG or PNG file.",
        )
    good = len(shape) in (2, 3) and all(isinstance(size, int) and 1 <= size <= 1 << 13 for size in shape)
    if not good or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise InvalidParameter(
            f"image_shape must be {{height,width}} or {{height,width,channels}}. Received: {shape}",
            hint="Sizes are from 1 to 8192; channels are 1 (gray), 3 (RGB) or 4 (RGBA).",
        )
    return tuple(shape)


def _classes(column: ColumnToPack, found: DistinctValues, wanted: int | None) -> Classes:
    """Return the classes of a dependent column's distinct values."""
    special = [text for text in found.texts if text in _NOT_FINITE]
    if column.column.type_name in _FLOATS and special:
        raise InvalidParameter(
            f"column {column.name!r} contains {special[0]}, which cannot be a class",
            hint="Replace it, or exclude the row.",
        )
    n_values = found.n_values
    if n_values > MAX_CLASSES:
        raise InvalidParameter(
            f"column {column.name!r} has {n_values} distinct values; at most {MAX_CLASSES} classes are supported",
            hint="For regression, use num_classes => '{}'.",
        )
    if wanted is not None and wanted < n_values:
        raise InvalidParameter(
            f"num_classes has {wanted} for column {column.name!r}, which has {n_values} distinct values",
            hint="Use at least that number; NULL counts as a value.",
        )
    if found.n_bytes > MAX_CLASS_BYTES:
        raise InvalidParameter(
            f"column {column.name!r} has {n_values} distinct values of {found.n_bytes} bytes in all; the classes of a"
            f" column can have at most {MAX_CLASS_BYTES} bytes",
            hint="Replace them by short names or numbers in a view.",
        )
    has_null, counts = found.texts[0] is None, tuple(found.counts)
    return Classes(
        found.literal, n_values, wanted or n_values, has_null, column.column.type_sql, None, "", counts=counts
    )


def _pack(
    call: Call,
    packing: Packing,
    table: PackingSource,
    encoding: FixedEncoding,
    classes: ByName,
    constant: float,
    n_rows: int,
    training: TrainingTable | None = None,
) -> None:
    """Read the rows, create both tables, and fill them."""
    plan = plan_packing(packing, n_rows, encoding.row_bytes)
    sizes = {name: value_bytes(*tensor) for name, tensor in encoding.tensors.items()}
    check_sizes(plan, sizes, packing.buffer_size)
    rows = encoding.read(n_rows, packing.seed)
    if training is not None:
        encoding.refuse_unseen(rows, training)
        classes = {name: replace(known, counts=encoding.counts(rows, name)) for name, known in classes.items()}
    order = encoding.order(rows, packing.seed)
    _summarize(call.session, packing, table, plan, classes, constant)
    output, text = packing.output, packing.output_text
    with ThreadPoolExecutor(1) as thread:
        write_packed(call, packing, output, text, rows, order, plan, list(encoding.tensors), encoding.encode, thread)


def _summarize(
    session: CallerSession,
    packing: Packing,
    table: PackingSource,
    plan: BufferPlan,
    classes: ByName,
    constant: float,
) -> None:
    """Make the ``_summary`` of a packed table."""
    widths = [classes[one.name].width if one.name in classes else None for one in table.dependent]
    summary = SummaryRow(
        table.text,
        packing.output_text,
        [column.name for column in table.dependent],
        [column.name for column in table.independent],
        [column.vartype for column in table.dependent],
        plan.rows_per_buffer,
        constant,
        widths if any(widths) else [],
        packing.distribution.rules,
        packing.distribution.gpu_config,
        [one.name for column in table.independent for one in column.sources],
    )
    known = [(one, classes.get(one.name)) for one in table.dependent]
    kept = [(one.name, found.type_sql if found else one.column.type_sql, found) for one, found in known]
    create_summary(session, packing.output.with_suffix("_summary"), summary, kept)
