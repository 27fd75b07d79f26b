"""The rows to predict: the test table's id and raw columns, streamed in batches and converted to the model's inputs."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.driver.data.copied import CopiedColumn, check_copied
from madlib_mop.driver.data.decoders import image_decoders
from madlib_mop.driver.inference.fits import check_input_shape
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind, as_float4, as_input, find_column, split_columns
from madlib_mop.driver.session.caller import Batch, BytesColumn, CallerSession, batch_limits
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.literals import shorten
from madlib_mop.packing.arrays import BadRow, read_header
from madlib_mop.packing.encoders import ArrayEncoder, ColumnEncoder
from madlib_mop.packing.images import ImageEncoder

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 10_000
_UNKNOWN_ROW_BYTES = 8 << 10
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class InputColumns:
    """The columns of one input of the model: a column, or several columns of numbers side by side."""

    columns: tuple[ColumnToPack, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return ", ".join(column.name for column in self.columns)

    @property
    def kind(self) -> PackingKind:
        """How the columns are read; several are all numbers."""
        return self.columns[0].kind

    def raw(self, values: Sequence[str]) -> str:
        """Return the SQL expression that converts the columns' values, passed as expressions, to bytes."""
        if len(values) == 1:
            return self.columns[0].raw(values[0])
        numbers = [as_float4(value, one.column) for value, one in zip(values, self.columns, strict=True)]
        return f"madlib_mop.array_bytes(ARRAY[{', '.join(numbers)}])"


@dataclass(frozen=True)
class TestTable:
    """The table to predict from.

    Attributes
    ----------
    relation : Relation
    id_column : Column
    inputs : tuple of InputColumns
        One for each input of the model.
    """

    __test__ = False  # the class name begins with "Test", but pytest must not collect it

    relation: Relation
    id_column: Column
    inputs: tuple[InputColumns, ...]


@dataclass(frozen=True)
class RowBatch:
    """A batch.

    Attributes
    ----------
    ids : list of (str or None)
        As text.
    inputs : list of numpy.ndarray
        (n_rows, ...) each, normalized float32, or uint8 that is not normalized.
    """

    ids: list[str | None]
    inputs: list[np.ndarray]


def read_test_table(
    session: CallerSession, name: str | None, id_col: str | None, independent_varname: str | None, model: TrainedModel
) -> TestTable:
    """Find the table and the columns.

    Raises
    ------
    MopError
        For a table or column that does not exist, or of a type that a model cannot use.
    """
    relation = session.relation(name, "test_table", any_type=True)
    known = {column.name: column for column in session.columns(relation)}
    inputs = find_inputs(relation, known, independent_varname, model)
    check_unpacked(known, inputs[0].columns[0].name, relation, name)
    return TestTable(relation, find_id_column(known, id_col, relation), inputs)


def find_inputs(
    relation: Relation, known: dict[str, Column], independent_varname: str | None, model: TrainedModel
) -> tuple[InputColumns, ...]:
    """Find the columns of a table that are the inputs of a model. Raises MopError, as `read_test_table`.

    Parameters
    ----------
    relation : Relation
    known : dict of str to Column
        The columns of the table.
    independent_varname : str or None
        As written by the caller.
    model : TrainedModel
    """
    x_names = split_columns(independent_varname, "independent_varname")
    n_inputs = model.shape.n_inputs
    is_one_row = len(x_names) > 1 and model.shape.input_shapes == ((len(x_names),),)
    if len(x_names) != n_inputs and not is_one_row:
        raise InvalidParameter(
            f"independent_varname has {len(x_names)} columns, but {model.label} has {n_inputs} inputs."
            f" Received: {shorten(independent_varname)}",
            hint="Name one column for each input, in the order used for training; for a single input, name one column"
            " of numbers for each of its values.",
        )
    columns = tuple(as_input(find_column(known, x_name, "independent_varname", relation)) for x_name in x_names)
    if not is_one_row:
        return tuple(InputColumns((column,)) for column in columns)
    for column in columns:
        if column.kind is not PackingKind.NUMBER:
            raise InvalidParameter(
                f"independent_varname: several columns for one input must all be numbers; {column.name!r} is"
                f" {column.column.type_sql}. Received: {independent_varname!r}"
            )
    return (InputColumns(columns),)


def check_unpacked(
    known: dict[str, Column], first: str, relation: Relation, name: str | None, what: str = "test_table"
) -> None:
    """Raise InvalidParameter if the test table is a packed table; ``first`` is the name of an input there."""
    if "buffer_id" in known and f"{first}_shape" in known:
        raise InvalidParameter(
            f"{what}: {relation} is a packed table. Received: {name!r}",
            hint="Pass the table of rows before packing; madlib_keras_evaluate takes packed tables.",
        )


def find_id_column(known: dict[str, Column], id_col: str | None, relation: Relation) -> Column:
    """Return the column that identifies rows.

    Raises
    ------
    UndefinedColumn, InvalidParameter
        If there is no such column, or it cannot be copied.
    """
    names = split_columns(id_col, "id_col")
    if len(names) != 1:
        raise InvalidParameter(f"id_col must name one column. Received: {id_col!r}")
    return check_copied(find_column(known, names[0], "id_col", relation), "id_col", id_col).column


class RowReader:
    """Streams the test table's rows as batches of `RowBatch`; use it as a context manager.

    Parameters
    ----------
    session : CallerSession
    table : TestTable
    model : TrainedModel
        Defines the shapes and the normalizing constant.

    Attributes
    ----------
    table : TestTable
    index_inputs : list of int
        Which inputs, by number, hold int32 indices: none.
    """

    def __init__(self, session: CallerSession, table: TestTable, model: TrainedModel):
        self._session = session
        self.table = table
        self.index_inputs: list[int] = []
        self._model = model
        self._pool = image_decoders()
        self._encoders: list[ColumnEncoder] = []

    def __enter__(self) -> "RowReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield all rows, in the order of a scan.

        Raises
        ------
        InvalidParameter
            For a row that cannot be used; the message has its id.
        """
        names: dict[str, Identifier] = {}
        items: list[str] = []
        for i, one in enumerate(self.table.inputs):
            slots = {f"x{i}_{k}": Identifier(column.name) for k, column in enumerate(one.columns)}
            items.append(f"{one.raw([f's.{{{slot}}}' for slot in slots])} AS x{i}")
            names |= slots
        condition, params = self._condition()
        query = statement(
            f"SELECT {self._id_sql()} AS id, {', '.join(items)} FROM {{t}} s{condition}",
            t=self.table.relation,
            id=Identifier(self.table.id_column.name),
            **names,
        )
        types = ["double precision"] * len(params)
        limits = batch_limits(self._batch_rows(), any(one.kind is PackingKind.IMAGE for one in self.table.inputs))
        with closing(self._session.stream(query, params, types, *limits)) as batches:
            for batch in batches:
                ids = batch.values_of("id")
                yield RowBatch(ids, [self._encode(batch, number, ids) for number in range(len(self.table.inputs))])

    def _id_sql(self) -> str:
        """Return the expression of a row's id, as text."""
        return CopiedColumn(self.table.id_column).text("s.{id}")

    def _condition(self) -> tuple[str, list[float]]:
        """Return the condition of the query, and its parameters."""
        return "", []

    def _row_name(self, row_id: str | None) -> str:
        """Return the name of a row in an error."""
        return f"row with {self.table.id_column.name} = {'NULL' if row_id is None else row_id}"

    def in_units(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the model's outputs for one dependent column: they are in the units of the table."""
        return values

    def _encode(self, batch: Batch, number: int, ids: Sequence[str | None]) -> np.ndarray:
        column = batch.columns[f"x{number}"]
        try:
            if isinstance(column, list):  # NULL in all rows
                raise BadRow(0, "is NULL")
            if number == len(self._encoders):
                self._encoders.append(self._make_encoder(number, column))
            return self._encoders[number].encode(column.data, np.asarray(column.lengths, np.int64))
        except BadRow as problem:
            source, row_id = self.table.inputs[number], ids[problem.row]
            if source.kind is PackingKind.NUMBER and problem.element is not None:
                source = InputColumns((source.columns[problem.element],))
                problem.problem = "is NULL" if problem.is_null else problem.problem
            message = f"column {source.name!r} {problem.problem} ({self._row_name(row_id)})"
            raise InvalidParameter(message, hint=problem.hint) from None

    def _make_encoder(self, number: int, column: BytesColumn) -> ColumnEncoder:
        """Create the encoder of a column; its shape is that of the first row, which the model must accept."""
        source = self.table.inputs[number]
        if column.lengths[0] < 0:
            raise BadRow(0, "is NULL")
        first = memoryview(column.data)[: column.lengths[0]]
        if source.kind is PackingKind.IMAGE:
            wanted = self._image_shape(number)
            shape = self._pool.decode([first], wanted).shape[1:]
            encoder: ColumnEncoder = ImageEncoder(source.name, shape, wanted, self._pool)
        else:
            header = read_header(first)
            if not header.n_elements:
                raise BadRow(0, "is an empty array")
            constant, dtype = self._model.normalizing_const, np.dtype(np.float32)
            narrowed = any(one.is_narrowed for one in source.columns)
            encoder = ArrayEncoder(source.name, header.shape, header.element_type, dtype, constant, narrowed)
        check_input_shape(self._model, number, source.name, tuple(encoder.shape))
        return encoder

    def _image_shape(self, number: int) -> tuple[int, ...] | None:
        """Return the size to resize encoded images to: the model's, if it has one."""
        shape = self._input_shape(number)
        fixed = tuple(size for size in shape if size is not None)
        return fixed if len(fixed) == len(shape) == 3 and fixed[2] in _CHANNELS else None

    def _input_shape(self, number: int) -> tuple[int | None, ...]:
        shapes = self._model.shape.input_shapes
        return (shapes[number] if number < len(shapes) else None) or (None,)

    def _batch_rows(self) -> int:
        row_bytes = 0
        for number in range(len(self.table.inputs)):
            shape = self._input_shape(number)
            fixed = [size for size in shape if size is not None]
            row_bytes += 4 * math.prod(fixed) if len(fixed) == len(shape) else _UNKNOWN_ROW_BYTES
        return max(1, min(_BATCH_BYTES // max(1, row_bytes), _MAX_BATCH_ROWS))
