"""The rows of ordinary tables to predict: read by the columns of training, encoded by the model's own preprocessor."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.driver.columns.recorded import batch_rows_of, check_names, needed_fields
from madlib_mop.driver.columns.rows import naming_rows, read_batches
from madlib_mop.driver.columns.source import read_source
from madlib_mop.driver.data.copied import CopiedColumn
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.inference.fits import check_fit
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.rows import RowBatch, TestTable, check_unpacked, find_id_column
from madlib_mop.driver.session.caller import CallerSession


class OrdinaryRows:
    """Streams a table's rows as batches of `RowBatch`; use it as a context manager.

    Parameters
    ----------
    session : CallerSession
    name, id_col, independent_varname : str or None
        As written by the caller. ``independent_varname`` is NULL, ``*`` or the columns of training.
    model : TrainedModel
        With a preprocessor.

    Raises
    ------
    MopError
        For a table or column that does not exist, or is of another type than in training, and for a model that does not
        fit its preprocessor.
    """

    def __init__(
        self,
        session: CallerSession,
        name: str | None,
        id_col: str | None,
        independent_varname: str | None,
        model: TrainedModel,
    ):
        assert model.preprocessor is not None, "the caller looked"
        self._session = session
        preprocessor = Preprocessor.from_json(model.preprocessor)
        check_fit(model, preprocessor)
        self._decode = FileDecoder()
        self._encoder, self._targets = Encoder(preprocessor, self._decode), Targets(preprocessor)
        self._source = read_source(session, name, "test_table")
        known = {column.name: column for column in session.columns(self._source.relation)}
        check_unpacked(known, preprocessor.tensors[0].name, self._source.relation, name)
        id_column = find_id_column(known, id_col, self._source.relation)
        check_names(independent_varname, preprocessor.inputs, "independent_varname")
        self._fields = needed_fields(preprocessor.inputs, self._source, "test_table")
        self._numbers = {column.name for column in preprocessor.targets if isinstance(column.fit, NumberFit)}
        self.table = TestTable(self._source.relation, id_column, ())
        self.index_inputs = [i for i, tensor in enumerate(preprocessor.tensors) if tensor.kind == "index"]

    def __enter__(self) -> "OrdinaryRows":
        return self

    def __exit__(self, *_: object) -> None:
        self._decode.__exit__()

    def __iter__(self) -> Iterator[RowBatch]:
        """Yield all rows, in the order of a scan.

        Raises
        ------
        InvalidParameter
            For a value that cannot be encoded.
        """
        copied = [CopiedColumn(self.table.id_column)]
        names = [field.name for field in self._fields]
        batch_rows = batch_rows_of(self._encoder.preprocessor)
        batches = read_batches(self._session, self._source, self._fields, copied=copied, batch_rows=batch_rows)
        with closing(batches):
            for batch, raw in batches:
                ids = batch.values_of("k0")
                with naming_rows(partial(self._row_name, ids)):
                    tensors = self._encoder.encode(dict(zip(names, raw, strict=True)))
                yield RowBatch(ids, list(tensors.arrays.values()))

    def _row_name(self, ids: Sequence[str | None], row: int) -> str:
        return f"row with {self.table.id_column.name} = {'NULL' if ids[row] is None else ids[row]}"

    def in_units(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the outputs for a target in the units of the table: float64 (n_rows, 1) of a number."""
        if name not in self._numbers:
            return values
        numbers = self._targets.decode({name: values})[name].numbers
        assert numbers is not None, "it is a regression"
        return numbers[:, np.newaxis]
