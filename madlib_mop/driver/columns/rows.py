"""One pass over a source table: typed columns of all rows, and a hash of each row's content, which orders them."""

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from madlib_mop.columns.hashing import RowHasher
from madlib_mop.columns.raw import RawColumn
from madlib_mop.columns.records import Field, RecordReader
from madlib_mop.columns.sketch import Hashes
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.columns.spool import Spool
from madlib_mop.driver.data.copied import CopiedColumn
from madlib_mop.driver.packing.tables import row_label
from madlib_mop.driver.session.caller import Batch, BytesColumn, CallerSession
from madlib_mop.errors import InvalidParameter

_BATCH_ROWS = 10_000
_TEMP_FILE_LIMIT = "SELECT setting::pg_catalog.int8 AS kb FROM pg_catalog.pg_settings WHERE name = 'temp_file_limit'"


@dataclass(frozen=True)
class Rows:
    """All rows of a source table.

    Attributes
    ----------
    columns : dict of str to RawColumn
        The columns that were read, by name.
    hashes : numpy.ndarray
        uint64 (n_rows, 2): what `RowHasher` returns for the seed and each row's bytes. Equal rows have equal hashes.
    overflowed : dict of str to ColumnStatistics
        The columns with more distinct texts than can be kept, with the statistics of their first rows.
    """

    columns: dict[str, RawColumn]
    hashes: Hashes
    overflowed: dict[str, ColumnStatistics] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.hashes)

    def order(self, of: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows, or of those where ``of`` is true, in the order of their hashes.

        Rows with equal hashes are equal, so the order of the content does not depend on the order of reading.
        """
        rows = np.arange(self.n_rows) if of is None else np.flatnonzero(of)
        first = self.hashes[rows, 0]
        order = np.argsort(first)  # of one key and unstable, which is several times as fast as np.lexsort
        first = first[order]
        same = first[1:] == first[:-1]
        if same.any():
            tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
            among = order[tied]
            order[tied] = among[np.lexsort((among, self.hashes[rows[among], 1], first[tied]))]
        return rows[order]


def read_rows(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    seed: int,
    unchecked: Collection[str] = (),
    batch_rows: int = _BATCH_ROWS,
) -> Rows:
    """Read every row of a table once.

    Parameters
    ----------
    session : CallerSession
    source : SourceTable
    fields : sequence of Field
        The columns to read.
    seed : int
        Of the hashes.
    unchecked : collection of str
        Columns in which NaN and infinite values are no error.

    Raises
    ------
    InvalidParameter
        If a value is NaN, infinite, or cannot be read; the message names the column and the row.
    """
    limit_kb = session.execute(_TEMP_FILE_LIMIT)[0]["kb"]
    spool = Spool(limit_kb << 10 if limit_kb >= 0 else None)
    hashes = [np.zeros((0, 2), np.uint64)]
    hasher = RowHasher(seed)
    with closing(read_batches(session, source, fields, unchecked, batch_rows=batch_rows)) as batches:
        for batch, columns in batches:
            sent = batch.bytes_of("r")
            hashes.append(hasher.of(sent.data, np.asarray(sent.lengths, np.int64)))
            spool.add(columns)
    if not spool.n_rows:
        raise InvalidParameter(f"source_table has no rows. Received: {source.text!r}")
    named = {f.name: column for f, column in zip(fields, spool.columns(), strict=True)}
    kept = {name: column for name, column in named.items() if column is not None}
    overflowed = {fields[i].name: statistics for i, statistics in spool.overflowed.items()}
    return Rows(kept, np.concatenate(hashes), overflowed)


def read_batches(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    unchecked: Collection[str] = (),
    copied: Sequence[CopiedColumn] = (),
    batch_rows: int = _BATCH_ROWS,
) -> Generator[tuple[Batch, list[RawColumn]], None, None]:
    """Yield a table's rows in batches, in the order of a scan: as they came, and as typed columns.

    Parameters
    ----------
    session : CallerSession
    source : SourceTable
    fields : sequence of Field
        The columns to read.
    unchecked : collection of str
        Columns in which NaN and infinite values are no error.
    copied : sequence of CopiedColumn
        Columns that are read as text too, as `SourceTable.rows_query` names them.
    batch_rows : int
        Rows in a batch.

    Raises
    ------
    InvalidParameter
        If a value is NaN, infinite, or cannot be read; the message names the column and the row.
    """
    reader, n_before = RecordReader(source.sent(fields)), 0
    with closing(session.stream(source.rows_query(fields, copied), [], [], batch_rows)) as batches:
        for batch in batches:
            rows = batch.bytes_of("r")
            columns = reader.read(bytes(rows.data), np.asarray(rows.lengths, np.int64))
            _check(fields, columns, unchecked, batch, n_before)
            n_before += batch.n_rows
            yield batch, columns


def _check(
    fields: Sequence[Field], columns: Sequence[RawColumn], unchecked: Collection[str], batch: Batch, n_before: int
) -> None:
    for field_, column in zip(fields, columns, strict=True):
        special = column.first_special() if field_.name not in unchecked else None
        if special is not None:
            naming: dict[str, BytesColumn | list[object]] = {n: c for n, c in batch.columns.items() if n != "r"}
            raise InvalidParameter(
                f"column {field_.name!r} holds {special.text} ({row_label(naming, special.row, n_before)})",
                hint="Replace it (NULL is imputed), leave the row out by a view, or exclude the column.",
            )
