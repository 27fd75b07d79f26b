"""The rows to predict: a table's id and its input columns, streamed in batches, and encoded as in training.

Columns of models of `pack_columns` are encoded by the recorded preprocessor; arrays, numbers side by side and images of
models of `training_preprocessor_dl`, and of models from elsewhere, by a fixed one. All else is the same for both.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.fixed import FixedEncoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.records import Field
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.columns.arrays import array_source, field_of, fixed_input
from madlib_mop.driver.columns.recorded import batch_rows_of, check_names, needed_fields, rows_in_batch
from madlib_mop.driver.columns.rows import names_of, naming_rows, read_batches
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.data.copied import CopiedColumn, check_copied
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.inference.fits import check_fit, check_input_shape
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind, as_input, find_column, joined, split_columns
from madlib_mop.driver.session.caller import Batch, CallerSession
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.literals import shorten

_UNKNOWN_ROW_BYTES = 8 << 10
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class RowBatch:
    """A batch.

    Attributes
    ----------
    ids : list of (str or None)
        As text; None without an id column.
    inputs : list of numpy.ndarray
        (n_rows, ...) each: float32 that is normalized, int32 indices, or uint8 that is not normalized.
    kept : list of list of (str or None)
        Of each column that is kept, its values as text.
    """

    ids: list[str | None]
    inputs: list[np.ndarray]
    kept: Sequence[list[str | None]] = ()


@dataclass(frozen=True)
class RowReader:
    """Streams a table's rows as batches of `RowBatch`; use it as a context manager.

    Attributes
    ----------
    session : CallerSession
    source : SourceTable
    fields : list of Field
        The input columns.
    encoder : Encoder or FixedEncoder
    decode : FileDecoder
        Of the encoder.
    batch_rows : int
        Most rows in a batch.
    id_column : Column or None
        What identifies a row, in the result and in errors.
    index_inputs : tuple of int
        Which inputs, by number, hold int32 indices.
    numbers : Targets or None
        The targets, if outputs of some of them are scaled numbers.
    share : float or None
        Share of the rows to read, drawn at random; None: all.
    kept : tuple of CopiedColumn
        Columns that are read as text too.
    """

    session: CallerSession
    source: SourceTable
    fields: list[Field]
    encoder: Encoder | FixedEncoder
    decode: FileDecoder
    batch_rows: int
    id_column: Column | None = None
    index_inputs: tuple[int, ...] = ()
    numbers: Targets | None = None
    share: float | None = None
    kept: tuple[CopiedColumn, ...] = ()

    @property
    def relation(self) -> Relation:
        """The table."""
        return self.source.relation

    def __enter__(self) -> "RowReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.decode.__exit__()

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield all rows, in the order of a scan.

        Raises
        ------
        InvalidParameter
            For a value that cannot be used; the message has the id of its row.
        """
        ids = [CopiedColumn(self.id_column)] if self.id_column is not None else []
        n_ids, copied = len(ids), [*ids, *self.kept]
        names = [field.name for field in self.fields]
        n_before = 0
        naming = self._names if self.id_column is not None else None
        batches = read_batches(
            self.session, self.source, self.fields, (), copied, self.batch_rows, self.share, naming=naming
        )
        with closing(batches):
            for batch, raw in batches:
                with naming_rows((naming or names_of)(batch, n_before)):
                    tensors = self.encoder.encode(dict(zip(names, raw, strict=True)))
                n_before += batch.n_rows
                values = [batch.values_of(f"k{i}") for i in range(len(copied))]
                one_each = values[0] if n_ids else [None] * batch.n_rows
                yield RowBatch(one_each, list(tensors.arrays.values()), values[n_ids:])

    def _names(self, batch: Batch, n_before: int) -> Callable[[int], str]:
        """Return what names the rows of a batch in an error."""
        return partial(self._row_name, batch)

    def _row_name(self, batch: Batch, row: int) -> str:
        assert self.id_column is not None, "it names the row"
        found = batch.values_of("k0")[row]
        return f"row with {self.id_column.name} = {'NULL' if found is None else found}"

    def in_units(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the outputs for a target in the units of the table: float64 (n_rows, 1) of a scaled number."""
        if self.numbers is None:
            return values
        numbers = self.numbers.decode({name: values})[name].numbers
        return values if numbers is None else numbers[:, np.newaxis]


def read_rows_to_predict(
    session: CallerSession,
    name: str | None,
    id_col: str | None,
    independent_varname: str | None,
    model: TrainedModel,
    kept: tuple[CopiedColumn, ...] | None = None,
    what: str = "test_table",
) -> RowReader:
    """Find the table to predict and its columns; no row is read yet.

    Parameters
    ----------
    session : CallerSession
    name, id_col, independent_varname : str or None
        As written by the caller.
    model : TrainedModel
    kept : tuple of CopiedColumn, optional
        Columns that are read in place of an id.
    what : str
        The argument that named the table, for messages.

    Raises
    ------
    MopError
        For a table or column that does not exist, or is of a type that the model cannot use.
    """
    if model.preprocessor is not None:
        return _of_columns(session, name, id_col, independent_varname, model, kept, what)
    relation = session.relation(name, what, any_type=True)
    known = {column.name: column for column in session.columns(relation)}
    inputs = find_inputs(relation, known, independent_varname, model)
    check_unpacked(known, inputs[0].sources[0].name, relation, name, what)
    id_column = find_id_column(known, id_col, relation) if kept is None else None
    return replace(array_rows(session, relation, inputs, model, id_column), kept=kept or ())


def _of_columns(
    session: CallerSession,
    name: str | None,
    id_col: str | None,
    independent_varname: str | None,
    model: TrainedModel,
    kept: tuple[CopiedColumn, ...] | None,
    what: str,
) -> RowReader:
    """Return the rows of an ordinary table, for a model with a preprocessor."""
    assert model.preprocessor is not None, "the caller looked"
    preprocessor = Preprocessor.from_json(model.preprocessor)
    check_fit(model, preprocessor)
    source = read_source(session, name, what)
    known = {column.name: column for column in session.columns(source.relation)}
    check_unpacked(known, preprocessor.tensors[0].name, source.relation, name, what)
    id_column = find_id_column(known, id_col, source.relation) if kept is None else None
    check_names(independent_varname, preprocessor.inputs, "independent_varname")
    fields = needed_fields(preprocessor.inputs, source, what)
    has_numbers = any(isinstance(column.fit, NumberFit) for column in preprocessor.targets)
    decode = FileDecoder()
    return RowReader(
        session,
        source,
        fields,
        Encoder(preprocessor, decode),
        decode,
        batch_rows_of(preprocessor),
        id_column,
        preprocessor.index_inputs,
        Targets(preprocessor) if has_numbers else None,
        kept=kept or (),
    )


def array_rows(
    session: CallerSession,
    relation: Relation,
    inputs: Sequence[ColumnToPack],
    model: TrainedModel,
    id_column: Column | None = None,
    share: float | None = None,
) -> RowReader:
    """Return the rows of a table of arrays, for a model without a preprocessor."""
    decode, source = FileDecoder(), array_source(relation, str(relation), inputs)

    def check(number: int, shape: tuple[int, ...]) -> None:
        check_input_shape(model, number, inputs[number].name, shape)

    fixed = [fixed_input(one, image_shape_of(model, number)) for number, one in enumerate(inputs)]
    encoder = FixedEncoder(fixed, model.normalizing_const, decode.scaled, check)
    fields = [field_of(one, model.normalizing_const) for one in source.packed]
    batch_rows = _batch_rows(model, len(inputs))
    return RowReader(session, source, fields, encoder, decode, batch_rows, id_column, share=share)


def find_inputs(
    relation: Relation, known: dict[str, Column], independent_varname: str | None, model: TrainedModel
) -> tuple[ColumnToPack, ...]:
    """Find the columns of a table of arrays that are the inputs of a model; columns of numbers may be one input.

    Parameters
    ----------
    relation : Relation
    known : dict of str to Column
        The columns of the table.
    independent_varname : str or None
        As written by the caller.
    model : TrainedModel

    Raises
    ------
    MopError
        For a column that does not exist, or of a type that a model cannot use.
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
        return columns
    for column in columns:
        if column.kind is not PackingKind.NUMBER:
            raise InvalidParameter(
                f"independent_varname: several columns for one input must all be numbers; {column.name!r} is"
                f" {column.column.type_sql}. Received: {independent_varname!r}"
            )
    return (joined(columns, ", ".join(column.name for column in columns)),)


def check_unpacked(
    known: dict[str, Column], first: str, relation: Relation, name: str | None, what: str = "test_table"
) -> None:
    """Raise InvalidParameter if the test table is a packed table; ``first`` is the name of an input there."""
    if "buffer_id" in known and f"{first}_shape" in known:
        raise InvalidParameter(
            f"{what}: {relation} is a packed table. Received: {name!r}",
            hint="Pass the table of rows before packing.",
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


def image_shape_of(model: TrainedModel, number: int) -> tuple[int, ...] | None:
    """Return the size to resize encoded images to: that of the model's input, if it has one."""
    shape = _input_shape(model, number)
    fixed = tuple(size for size in shape if size is not None)
    return fixed if len(fixed) == len(shape) == 3 and fixed[2] in _CHANNELS else None


def _input_shape(model: TrainedModel, number: int) -> tuple[int | None, ...]:
    shapes = model.shape.input_shapes
    return (shapes[number] if number < len(shapes) else None) or (None,)


def _batch_rows(model: TrainedModel, n_inputs: int) -> int:
    row_bytes = 0
    for number in range(n_inputs):
        shape = _input_shape(model, number)
        fixed = [size for size in shape if size is not None]
        row_bytes += 4 * math.prod(fixed) if len(fixed) == len(shape) else _UNKNOWN_ROW_BYTES
    return rows_in_batch(row_bytes)
