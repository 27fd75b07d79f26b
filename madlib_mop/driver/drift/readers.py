"""Reads a table once for drift: each batch is counted column by column, and encoded if it is to be predicted."""

from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.columns.drift.observed import special_rows
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.families import FAMILIES
from madlib_mop.columns.preprocessors.fits import ClassFit, DateFit, FittedColumn, VectorFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import ARRAY, CATEGORY, ColumnSpec
from madlib_mop.columns.raw import RawColumn, Vectors
from madlib_mop.columns.records import Field, family_of
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.columns.recorded import batch_rows_of, needed_fields
from madlib_mop.driver.columns.rows import names_of, naming_rows, read_batches
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.drift.outputs import Counter
from madlib_mop.driver.inference.fits import check_fit
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.rows import RowBatch, array_rows, check_unpacked, find_inputs
from madlib_mop.driver.session.caller import Batch, CallerSession
from madlib_mop.errors import InvalidParameter

Make = Callable[[FittedColumn], Counter]


class OrdinaryTable:
    """The rows of an ordinary table, for a model with a preprocessor.

    Parameters
    ----------
    session : CallerSession
    name : str or None
        The table, as written by the caller.
    what : str
        The argument that named it, for messages.
    model : TrainedModel
    max_rows : int or None
        About so many rows are drawn at random; None: all.

    Attributes
    ----------
    counters : dict of str to Counter
        By column: inputs, and those targets that the table has.
    n_rows : int
        Rows that were read.
    n_rejected : int
        Rows that predict would reject: NULL where it is an error, NaN, infinities. They are counted, not predicted.
    index_inputs : list of int
        Which inputs of the network are indices.

    Raises
    ------
    MopError
        Before any row is read: if the table or a column is missing, or a column has another type than in training.
    """

    def __init__(
        self,
        session: CallerSession,
        name: str | None,
        what: str,
        model: TrainedModel,
        max_rows: int | None,
    ):
        assert model.preprocessor is not None, "the caller looked"
        self._session = session
        self._preprocessor = Preprocessor.from_json(model.preprocessor)
        check_fit(model, self._preprocessor)
        self._source = read_source(session, name, what)
        known = {column.name: column for column in session.columns(self._source.relation)}
        check_unpacked(known, self._preprocessor.tensors[0].name, self._source.relation, name, what)
        inputs = list(self._preprocessor.inputs)
        for column, field in zip(inputs, needed_fields(inputs, self._source, what), strict=True):
            _check_type(column, field, self._source, what)
        self.columns = [*inputs, *(c for c in self._preprocessor.targets if _has_target(c, self._source))]
        self._fields = needed_fields(self.columns, self._source, what)
        self._share = share_of(session, self._source.relation, max_rows)
        self.counters: dict[str, Counter] = {}
        self.n_rows = self.n_rejected = 0
        self.index_inputs = list(self._preprocessor.index_inputs)
        self.relation, self.what = self._source.relation, what

    def begin(self, make: Make) -> None:
        """Make the counter of each column; before the rows are read."""
        self.counters = {column.name: make(column) for column in self.columns}

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield the encoded rows, those that can be predicted; all are counted.

        Raises
        ------
        InvalidParameter
            For a value that cannot be read, and for an image that cannot be decoded.
        """
        with FileDecoder() as decode:
            encoder = Encoder(self._preprocessor, decode)
            for n_before, batch, raw in self._batches():
                usable = self._usable(raw)
                places = np.flatnonzero(usable)
                self.n_rejected += len(usable) - len(places)
                if not len(places):
                    continue
                if len(places) < len(usable):
                    raw = {name: column.take(places) for name, column in raw.items()}
                with naming_rows(_names(names_of(batch, n_before), places)):
                    tensors = encoder.encode(raw)
                yield RowBatch([None] * len(places), list(tensors.arrays.values()))

    def count(self) -> None:
        """Count all rows, without encoding them."""
        for _ in self._batches():
            pass

    def _batches(self) -> Iterator[tuple[int, Batch, dict[str, RawColumn]]]:
        names = [field.name for field in self._fields]
        batch_rows = batch_rows_of(self._preprocessor)
        read = read_batches(
            self._session, self._source, self._fields, unchecked=names, batch_rows=batch_rows, share=self._share
        )
        with closing(read) as batches:
            for batch, columns in batches:
                raw = dict(zip(names, columns, strict=True))
                for name, counter in self.counters.items():
                    counter.add(raw[name])
                n_before = self.n_rows
                self.n_rows += batch.n_rows
                yield n_before, batch, raw

    def _usable(self, raw: dict[str, RawColumn]) -> np.ndarray:
        """Return which rows predict accepts: bool (n_rows,)."""
        usable: np.ndarray | None = None
        for column in self._preprocessor.inputs:
            values = raw[column.name]
            if usable is None:
                usable = np.ones(values.n_rows, np.bool_)
            usable &= ~special_rows(values)
            if not _accepts_null(column):
                usable &= ~values.missing
        assert usable is not None, "a preprocessor has an input"
        return usable


class ArrayTable:
    """The rows of a table with columns of arrays, for a model without a preprocessor; as `OrdinaryTable`.

    What is counted are the numbers that the network gets: after division by the normalizing constant.

    Parameters
    ----------
    independent_varname : str or None
        The input columns, as written by the caller.
    """

    def __init__(
        self,
        session: CallerSession,
        name: str | None,
        what: str,
        model: TrainedModel,
        max_rows: int | None,
        independent_varname: str | None,
    ):
        self.relation = session.relation(name, what, any_type=True)
        known = {column.name: column for column in session.columns(self.relation)}
        inputs = find_inputs(self.relation, known, independent_varname, model)
        check_unpacked(known, inputs[0].sources[0].name, self.relation, name, what)
        self._names = [one.name for one in inputs]
        self._reader = array_rows(
            session, self.relation, inputs, model, share=share_of(session, self.relation, max_rows)
        )
        self._make: Make | None = None
        self.what = what
        self.counters: dict[str, Counter] = {}
        self.n_rows = self.n_rejected = 0
        self.index_inputs = self._reader.index_inputs

    def begin(self, make: Make) -> None:
        """Set what makes the counter of an input, when its first row shows how many elements it has."""
        self._make = make

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield the rows as the network gets them. Raises InvalidParameter for a row that cannot be used."""
        assert self._make is not None, "begin was called"
        with self._reader:
            for rows in self._reader:
                self.n_rows += len(rows.ids)
                for name, values in zip(self._names, rows.inputs, strict=True):
                    flat = values.reshape(len(rows.ids), -1).astype(np.float32)
                    if name not in self.counters:
                        fit = VectorFit(flat.shape[1], True, False, 0.0, 1.0)
                        spec = ColumnSpec(name, "real[]", kind=ARRAY)
                        self.counters[name] = self._make(FittedColumn(spec, fit))
                    self.counters[name].add(Vectors(flat, np.zeros(len(flat), np.bool_), name))
                yield rows

    def count(self) -> None:
        """Count all rows, without predicting them."""
        for _ in self:
            pass


def _names(name_of: Callable[[int], str], places: np.ndarray) -> Callable[[int], str]:
    """Return what names the rows that are left, by their place among them."""
    return lambda row: name_of(int(places[row]))


def share_of(session: CallerSession, relation: Relation, max_rows: int | None) -> float | None:
    """Return the share of a table's rows that makes about ``max_rows`` of them; None: all rows."""
    if max_rows is None:
        return None
    (row,) = session.execute(statement("SELECT pg_catalog.count(*) AS n FROM {t}", t=relation))
    n_rows: int = row["n"]
    return max_rows / n_rows if n_rows > max_rows else None


def _accepts_null(column: FittedColumn) -> bool:
    fit = column.fit
    if isinstance(fit, DateFit):
        fit = fit.age
    if isinstance(fit, NumberFit):
        return fit.fill is not None
    return isinstance(fit, ClassFit) or fit.accepts_null


def _has_target(column: FittedColumn, source: SourceTable) -> bool:
    found = source.column(column.name)
    return found is not None and found.field is not None and _is_alike(column, found.field)


def _check_type(column: FittedColumn, field: Field, source: SourceTable, what: str) -> None:
    """Raise InvalidParameter if a column has a type now whose values are not those that were encoded."""
    if not _is_alike(column, field):
        raise InvalidParameter(
            f"{what}: column {column.name!r} of {source.relation} is {field.type_name} now. When it was packed it was"
            f" {column.spec.sql_type}. Received: {source.text!r}",
            hint=f"Cast it in a view: CAST({column.name} AS {column.spec.sql_type}). Or train on the new type.",
        )


def _is_alike(column: FittedColumn, field: Field) -> bool:
    kind = CATEGORY if isinstance(column.fit, ClassFit) else column.spec.kind
    family = FAMILIES[family_of(field.reader)]
    return kind in family.kinds and family.name in column.families
