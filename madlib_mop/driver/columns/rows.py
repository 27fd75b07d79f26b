"""A source table is read: typed columns of all rows, and a hash of each row's values, which orders them."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from mop_backend.frames import Blob
from mop_backend.machine import processors

from madlib_mop.columns.blobs import BLOB
from madlib_mop.columns.cells import UnreadableValue
from madlib_mop.columns.hashing import Hashes, RowHasher
from madlib_mop.columns.joined import JoinedForm, n_rows_of, read_array, read_lengths, read_values, value_at
from madlib_mop.columns.numbers import is_finite_numeric
from madlib_mop.columns.raw import Levels, RawColumn, rows_at_once
from madlib_mop.columns.records import Field, RecordReader, family_of, value_of
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.columns.spool import Spool
from madlib_mop.driver.columns.threads import in_background
from madlib_mop.driver.data.copied import CopiedColumn
from madlib_mop.driver.data.engine import engine_of
from madlib_mop.driver.packing.tables import row_label
from madlib_mop.driver.session.caller import Batch, BytesColumn, CallerSession, batch_limits
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.errors import InvalidParameter

_BATCH_ROWS = 10_000
_MOST_THREADS = 4  # each has a copy of one column
_HINT = "Replace it (NULL is imputed), leave the row out by a view, or exclude the column."
_SPLIT_HINT = "The rows are split by this column: leave the row out by a view, or split by another column."
Naming = dict[str, BytesColumn | list[object]]
# pg_settings has more than 64 kB, and would need a temporary file itself where work_mem is as small
_TEMP_FILE_LIMIT = "SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('temp_file_limit')) AS bytes"


class UnusableColumn(InvalidParameter):
    """A column has a value that cannot be read or encoded.

    Attributes
    ----------
    column : str
    problem : str
        What is wrong, and in which row: the text after the column's name.
    is_ragged : bool
        Whether the column can be read with padded arrays.
    """

    def __init__(self, column: str, problem: str, hint: str | None, *, is_ragged: bool = False):
        super().__init__(f"column {column!r} {problem}", hint=hint)
        self.column = column
        self.problem = problem
        self.is_ragged = is_ragged


@dataclass(frozen=True)
class SourceRows:
    """All rows of a source table.

    Attributes
    ----------
    columns : dict of str to RawColumn
        The columns that were read, by name.
    hashes : numpy.ndarray
        uint64 (n_rows, 2): what `RowHasher` returns for the seed and each row's values. Rows that are equal as they are
        read have equal hashes, however their values were written.
    overflowed : dict of str to ColumnStatistics
        The columns with more distinct texts than can be kept, with the statistics of their first rows.
    names : RowNames
        What names a row in an error.
    folded : frozenset of str
        The columns whose texts SQL compares without regard to case or accents.
    """

    columns: dict[str, RawColumn]
    hashes: Hashes
    overflowed: dict[str, ColumnStatistics] = field(default_factory=dict)
    names: "RowNames" = field(default_factory=lambda: RowNames())
    folded: frozenset[str] = frozenset()

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

    def statistics(self, of: npt.NDArray[np.bool_] | None = None) -> dict[str, ColumnStatistics]:
        """Return the statistics of each column's rows, or of those where ``of`` is true; columns are counted at once.

        Sorting takes most of the time, and NumPy sorts without holding the interpreter's lock. Columns are counted in
        pieces, and those of texts as a whole, which takes a few bytes a row.
        """
        chosen = None if of is None else np.flatnonzero(of)  # row numbers take a fifth of the time of flags

        def counted(column: RawColumn) -> ColumnStatistics:
            statistics = ColumnStatistics(column.family)
            n_rows = column.n_rows if chosen is None else len(chosen)
            # a part of texts costs as much as its dictionary
            n_at_once = max(n_rows, 1) if isinstance(column, Levels) else rows_at_once(column)
            for start in range(0, max(n_rows, 1), n_at_once):
                rows = slice(start, start + n_at_once)
                statistics.add(column.take(rows if chosen is None else chosen[rows]))
            statistics.flush()
            return statistics

        with ThreadPoolExecutor(min(processors(), _MOST_THREADS)) as threads:
            return dict(zip(self.columns, threads.map(counted, self.columns.values()), strict=True))


class RowNames:
    """What names each row in an error: its system columns if they are kept, else its number in reading order."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._naming: list[Naming] = []

    def add(self, first: int, batch: Batch) -> None:
        """Keep the system columns of a batch whose first row has this number."""
        self._firsts.append(first)
        self._naming.append(_naming(batch))

    def of(self, row: int) -> str:
        """Return the name of a row, by its number."""
        if not self._firsts:
            return row_label({}, row, 0)
        place = bisect_right(self._firsts, row) - 1
        return row_label(self._naming[place], row - self._firsts[place], self._firsts[place])


def read_rows(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    seed: int,
    batch_rows: int = _BATCH_ROWS,
    unchecked: Collection[str] = (),
    split_by: str | None = None,
) -> SourceRows:
    """Read every row of a table, once; if a value cannot be used, its column once more, to name the row.

    Parameters
    ----------
    session : CallerSession
    source : SourceTable
    fields : sequence of Field
        The columns to read.
    seed : int
        Of the hashes.
    batch_rows : int
        Most rows in a batch.
    unchecked : collection of str
        Columns in which NaN and infinite values are no error.
    split_by : str or None
        The column that divides the rows into those for training and for validation.

    Raises
    ------
    UnusableColumn
        If a value is NaN, infinite, or cannot be read; the message names the column and the row.
    """
    if source.naming and not _has_blobs(fields):
        try:
            return _read_once(session, replace(source, naming=()), fields, seed, batch_rows, unchecked, split_by)
        except UnusableColumn as error:
            unusable = error.column
        # Names of rows take a tenth of the time of reading: they are read only for an error.
        only = [one for one in fields if one.name == unusable or (one.layout and unusable in one.layout.parts)]
        _read_once(session, source, only, seed, batch_rows, unchecked, split_by)
    return _read_once(session, source, fields, seed, batch_rows, unchecked, split_by)


def temp_file_limit(session: CallerSession) -> int | None:
    """Return the most bytes that the caller's temporary files may take; None: no limit."""
    limit_bytes: int = session.execute(_TEMP_FILE_LIMIT)[0]["bytes"]
    return limit_bytes if limit_bytes >= 0 else None


def _read_once(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    seed: int,
    batch_rows: int,
    unchecked: Collection[str],
    split_by: str | None,
) -> SourceRows:
    """Read every row of a table; an error has the name of its row if ``source.naming`` says what to read for it."""
    spool = Spool(temp_file_limit(session))
    hashes = [np.zeros((0, 2), np.uint64)]
    folded = {place for place, field_ in enumerate(fields) if field_.is_folded}
    hasher, names, typed = RowHasher(seed), RowNames(), _Typed(source, fields, unchecked, split_by)

    def keep(batch: Batch) -> None:
        columns = typed.columns(batch)
        hashes.append(hasher.of(columns, folded))
        if _has_blobs(fields):
            names.add(spool.n_rows, batch)
        with naming_rows(names_of(batch, spool.n_rows)):
            spool.add(columns)

    with closing(_received(session, source, fields, (), batch_rows)) as batches, in_background(keep) as keep_next:
        for batch in batches:
            keep_next(batch)
    if not spool.n_rows:
        raise no_rows(source.text, source.what)
    named = {f.name: column for f, column in zip(fields, spool.columns(), strict=True)}
    kept = {name: column for name, column in named.items() if column is not None}
    overflowed = {fields[i].name: statistics for i, statistics in spool.overflowed.items()}
    return SourceRows(kept, np.concatenate(hashes), overflowed, names, frozenset(fields[i].name for i in folded))


def read_batches(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    unchecked: Collection[str] = (),
    copied: Sequence[CopiedColumn] = (),
    batch_rows: int = _BATCH_ROWS,
    share: float | None = None,
    naming: Callable[[Batch, int], Callable[[int], str]] | None = None,
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
        Most rows in a batch; it has less if rows with bytea columns are large.
    share : float or None
        Share of the rows to read, drawn at random; None: all.
    naming : callable or None
        From a batch and the number of rows before it to what names its rows; default: `names_of`.

    Raises
    ------
    UnusableColumn
        If a value is NaN, infinite, or cannot be read; the message names the column and the row.
    """
    typed = _Typed(source, fields, unchecked, naming=naming)
    with closing(_received(session, source, fields, copied, batch_rows, share)) as batches:
        for batch in batches:
            yield batch, typed.columns(batch)


@dataclass(frozen=True)
class _Joined:
    """The values of a column of a range of blocks, as `madlib_mop.columns.joined` reads them.

    Attributes
    ----------
    data : bytes-like
    lengths : bytes-like or None
        Of texts and numerics; None of arrays.
    """

    data: Blob
    lengths: Blob | None = None

    def read(self, field_: Field) -> RawColumn:
        """Return the column."""
        return read_array(field_, self.data) if self.lengths is None else read_values(field_, self.data, self.lengths)


@dataclass(frozen=True)
class _Blocks(Batch):
    """The rows of a range of blocks: the columns ``joined`` by themselves, by their numbers, the others in records."""

    joined: dict[int, _Joined] = field(default_factory=dict)


class _Typed:
    """Reads the typed columns of one batch after the other, and checks their values."""

    def __init__(
        self,
        source: SourceTable,
        fields: Sequence[Field],
        unchecked: Collection[str],
        split_by: str | None = None,
        naming: Callable[[Batch, int], Callable[[int], str]] | None = None,
    ):
        self._fields = fields
        self._names_of = naming or names_of
        self._unchecked = unchecked
        self._split_by = split_by
        self._sent = source.sent(fields)
        self._readers: dict[int, RecordReader] = {}  # by the number of fields that are joined
        self._n_before = 0

    def columns(self, batch: Batch) -> list[RawColumn]:
        """Return the columns of the next batch. Raises UnusableColumn as `read_batches`."""
        with naming_rows(self._names_of(batch, self._n_before)):
            columns = self._read(batch, batch.joined if isinstance(batch, _Blocks) else {})
        self._check(columns, batch)
        self._n_before += batch.n_rows
        return columns

    def _read(self, batch: Batch, joined: Mapping[int, _Joined]) -> list[RawColumn]:
        if not (reader := self._readers.get(len(joined))):
            rest = [one for i, one in enumerate(self._sent) if i not in joined]
            reader = self._readers[len(joined)] = RecordReader(rest)
        sent: list[RawColumn] = []
        if reader.fields:
            rows = batch.bytes_of("r")
            sent = reader.read(rows.data, np.asarray(rows.lengths, np.int64))
        of_records = iter(sent)
        return [joined[i].read(one) if i in joined else next(of_records) for i, one in enumerate(self._sent)]

    def _check(self, columns: Sequence[RawColumn], batch: Batch) -> None:
        for place, (field_, column) in enumerate(zip(self._fields, columns, strict=True)):
            is_checked = field_.name not in self._unchecked and field_.layout is None  # its reader has checked it
            special = column.first_special() if is_checked else None
            if special is not None:
                held = "a number that is too large for double precision"
                if not (field_.reader == "numeric" and _is_finite(batch, special.row, place)):
                    held = special.text
                raise UnusableColumn(
                    field_.name,
                    f"holds {held} ({self._names_of(batch, self._n_before)(special.row)})",
                    _SPLIT_HINT if field_.name == self._split_by else _HINT,
                )


def _is_finite(batch: Batch, row: int, place: int) -> bool:
    """Return whether a numeric of a batch is a finite number."""
    joined = batch.joined if isinstance(batch, _Blocks) else {}
    if place in joined and (lengths := joined[place].lengths) is not None:
        return is_finite_numeric(value_at(joined[place].data, lengths, row))
    place -= sum(i < place for i in joined)
    sent = batch.bytes_of("r")
    start = int(sum(sent.lengths[:row]))
    return is_finite_numeric(value_of(bytes(sent.data[start : start + int(sent.lengths[row])]), place))


def _received(
    session: CallerSession,
    source: SourceTable,
    fields: Sequence[Field],
    copied: Sequence[CopiedColumn],
    batch_rows: int,
    share: float | None = None,
) -> Generator[Batch, None, None]:
    """Return a table's rows in batches, as they come, in the order of a scan."""
    large = _has_blobs(fields)  # a range of blocks can have many compressed bytes
    plain = not copied and not large and share is None
    if plain and engine_of(session).reads_by_blocks(session, source.relation):
        return _by_blocks(session, source, fields)
    query = source.rows_query(fields, copied, share is not None)
    params, types = (source.params, source.types) if share is None else ((share,), ("double precision",))
    return session.stream(query, list(params), list(types), *batch_limits(batch_rows, large))


def _by_blocks(
    session: CallerSession, source: SourceTable, fields: Sequence[Field]
) -> Generator[Batch, None, None]:
    """Yield the rows of ranges of blocks as batches, each with the joined columns of `SourceTable.blocks_query`."""
    query, forms = source.blocks_query(fields), source.joined(fields)
    with closing(session.stream(query, list(source.params), list(source.types), batch_rows=1)) as ranges:
        for one in ranges:
            values = {name: column.data for name, column in one.columns.items() if isinstance(column, BytesColumn)}
            joined: dict[int, _Joined] = {}
            for i, form in forms.items():
                lengths = values.pop(f"l{i}", None)
                data = values.pop(f"v{i}", None)
                if form is not JoinedForm.ARRAY and lengths is not None:
                    joined[i] = _Joined(data or b"", lengths)  # all values can be NULL
                elif data is not None:
                    joined[i] = _Joined(data)
            columns: dict[str, list[Any] | BytesColumn] = {}
            if "r" in values:
                sizes = read_lengths(values.pop("lengths"))
                columns["r"] = BytesColumn(values.pop("r"), sizes.tolist())
                n_rows = len(sizes)
            elif joined:
                first = next(iter(joined.values()))
                n_rows = n_rows_of(first.data if first.lengths is None else first.lengths)
            else:
                continue  # no visible row
            for name, data in values.items():  # of one width
                columns[name] = BytesColumn(data, [len(data) // n_rows] * n_rows)
            yield _Blocks(n_rows, columns, joined)


@contextmanager
def naming_rows(name_of: Callable[[int], str]) -> Iterator[None]:
    """Let an error of a reader or of the encoder name the row of the table.

    Parameters
    ----------
    name_of : callable
        From the number of a row among those that are read or encoded to its name.

    Raises
    ------
    UnusableColumn
        If a value, such as an image, cannot be used: column, problem and row.
    """
    try:
        yield
    except UnreadableValue as error:
        problem = f"{error.problem.removesuffix(',')} ({name_of(error.row)})"
        raise UnusableColumn(error.column, problem, error.hint, is_ragged=error.is_ragged) from None


def names_of(batch: Batch, n_before: int) -> Callable[[int], str]:
    """Return what names the rows of a batch of `read_batches`; ``n_before`` rows were before it."""
    return lambda row: row_label(_naming(batch), row, n_before)


def _naming(batch: Batch) -> Naming:
    return {name: column for name, column in batch.columns.items() if name != "r"}


def _has_blobs(fields: Sequence[Field]) -> bool:
    return any(family_of(field_.reader) == BLOB for field_ in fields)
