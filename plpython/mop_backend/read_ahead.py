"""Reads the next rows of a table ahead, so that they are predicted together; called by predict_row.py.

A query that predicts each row of a table calls with one row after the other. After some rows of a statement, the
session looks for the newest one in the table, predicts the rows behind it as a batch, and keeps the answers. An answer
belongs to exactly the bytes of a row, for one version of a model, one list of fields, one encoding, one role and one
statement. So a wrong guess about the next rows costs time only (`pacing.Pace` limits it), and changes no answer.

Rows are read with the caller's rights and with the snapshot of the calling query, because the SQL functions are STABLE.
No portal stays open between calls. A table is read only if this runs no code that the query would not run
(`_READABLE`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import plpy

from mop_backend.call import CallError
from mop_backend.frames import Blob, Header
from mop_backend.pacing import Pace
from mop_backend.rights import OWNER_OF_SCHEMA, Moment
from mop_backend.sql_errors import is_stop, sqlstate_of

_MOST_CONTEXTS = 4
#: Bytes of rows and answers in one batch; two batches of a context are kept.
_MOST_BYTES = 1 << 20
#: Rows with more stored bytes in their columns of variable length are not read ahead.
_MOST_STORED_BYTES = 1 << 14
_FETCHED = 128  # rows at once, so that wide rows are noticed
_LAST_BLOCK = 2**32 - 2
#: States of errors that end the statement: a cancel or a timeout, the end of the server, a conflict of transactions.
_FATAL = ("57", "40")

# The table of a row type, if its rows may be read ahead: in the order of a heap, all of them, without row policies,
# computed columns, or predicate locks of a serializable transaction. The caller's transaction must already have locked
# the table, as a query that reads it has: reading it then waits for nobody. No lock keeps the name: the owner of the
# schema can rename it and make another table of the name, so superusers read ahead only in superusers' schemas.
_READABLE = """
select pg_catalog.format('%I.%I', n.nspname, c.relname) as name,
       pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::int8 as n_blocks,
       (select pg_catalog.string_agg(
            pg_catalog.format('coalesce(pg_catalog.pg_column_size(t.%I), 0)', a.attname), ' + ')
        from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attlen = -1) as stored
from pg_catalog.pg_type t join pg_catalog.pg_class c on c.oid = t.typrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace join pg_catalog.pg_am m on m.oid = c.relam
where t.oid = $1::oid and c.relkind in ('r', 'm') and m.amname = 'heap'
    and (c.relpersistence <> 't' or c.relnamespace = pg_catalog.pg_my_temp_schema())
    and pg_catalog.has_schema_privilege(n.oid, 'usage') and pg_catalog.has_table_privilege(c.oid, 'select')
    and not pg_catalog.row_security_active(c.oid)  -- defence: policies-read-ahead
    and (exists (select from pg_catalog.pg_roles o where o.oid = {owner_of_schema}
                 and o.rolsuper  -- defence: schema-read-ahead
        ) or not exists (
        select from pg_catalog.pg_roles s where s.rolsuper and pg_catalog.pg_has_role(s.oid, 'MEMBER')))
    and not exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attgenerated = 'v')
    and pg_catalog.current_setting('transaction_isolation') <> 'serializable'
    and pg_catalog.current_setting('enable_tidscan')::bool
    and exists (  -- defence: locks-read-ahead = or exists (
        select from pg_catalog.pg_locks l where l.pid = pg_catalog.pg_backend_pid() and l.granted
                and l.locktype = 'relation' and l.relation = c.oid and l.database = (
                    select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database()))
""".replace("{owner_of_schema}", OWNER_OF_SCHEMA)
_ROWS = """
select t.ctid::text as place, case when {stored} <= {most} then pg_catalog.record_send(t.*) end as record
from only {table} as t where t.ctid > $1 and t.ctid < $2 limit $3
"""

Field = list[str | int | None]  # name, SQL type, oid, base type
#: Sends the trainer a request, made of the model's key, with its blobs; returns its answer and the values.
Ask = Callable[[Callable[[str], Header | bytes], Sequence[Blob]], tuple[Header, Blob]]
#: What the answer of a row depends on, beside its bytes: model table, mst_key, search_path, row type, encoding, role,
#: login, and the model's version; the fields' names are compared separately.
Key = tuple[str, int | None, str, int, str, str, str, str | None]


class RowValues(NamedTuple):
    """The outputs for one row.

    Attributes
    ----------
    widths : list of int
        Number of values of each output.
    floats : sequence of float
        The outputs side by side.
    """

    widths: Sequence[int]
    floats: Sequence[float]


class _Batch:
    """Answers for rows that were read ahead."""

    def __init__(self, records: Sequence[bytes], header: Header, values: Blob):
        self.header = header
        self._width: int = header["shape"][1]
        self._values = memoryview(values).cast("d")
        self._rows = {records[row]: i for i, row in enumerate(header["predicted"])}
        self._used = bytearray(len(records))

    def get(self, record: bytes) -> tuple[Sequence[float], bool] | None:
        """Return the values of a row and whether it is their first use; None if it is not in the batch."""
        i = self._rows.get(record)
        if i is None:
            return None
        is_first, self._used[i] = not self._used[i], 1
        return self._values[i * self._width : (i + 1) * self._width].tolist(), is_first


class Context:
    """The rows of one type, model and role in one statement."""

    def __init__(self, names: Sequence[str]):
        self.names = names
        self.pace = Pace()
        self._batches: collections.deque[_Batch] = collections.deque(maxlen=2)
        self._table: _Table | None = None
        self._is_off = False
        self._is_found = False  # whether the place of the newest row in the table is known
        self._row_bytes = 0

    def find(self, record: bytes) -> RowValues | None:
        """Return the answer for a row that was read ahead."""
        for batch in reversed(self._batches):
            found = batch.get(record)
            if found is not None:
                floats, is_first = found
                if is_first:
                    self.pace.hit()
                return RowValues(batch.header["widths"], floats)
        return None

    def timed(self, predict: Callable[[], RowValues]) -> RowValues:
        """Predict a row alone, and note how long it took."""
        began = self.pace.clock()
        values = predict()
        self.pace.single(self.pace.clock() - began)
        return values

    def read(self, record: bytes, row_type: int, request: Header, ask: Ask) -> None:
        """Read ahead, if this is the time for it; `find` then returns the answer for this row too.

        Parameters
        ----------
        record : bytes
            The newest row, for which there is no answer.
        row_type : int
            The oid of its type.
        request : dict
            The request to predict one such row.
        ask : callable
            Sends such a request.
        """
        if self._is_off:
            return
        n_rows = self.pace.rows(searching=not self._is_found)
        if not n_rows:
            return
        try:
            self._read(record, row_type, request, ask, n_rows)
        except plpy.SPIError as error:  # a later row, which the query may leave out; or a right that was revoked
            self._end_reading()
            if is_stop(error) or (sqlstate_of(error) or "").startswith(_FATAL):
                raise
        except CallError as error:
            self._end_reading()
            if not (error.fields["sqlstate"] or "").startswith("22"):
                raise

    def _read(self, record: bytes, row_type: int, request: Header, ask: Ask, n_rows: int) -> None:
        if self._table is None:
            # all types must be ones whose send functions are known
            fields: list[Field] = request["fields"]
            found = None if any(field[3] is None for field in fields) else _readable_table(row_type)
            if found is None:
                self._end_reading()
                return
            self._table = _Table(found["name"], found["n_blocks"], found["stored"])
        self._row_bytes = max(self._row_bytes, len(record))
        n_rows = max(1, min(n_rows, _MOST_BYTES // self._row_bytes))
        began = self.pace.clock()
        places, records = self._table.next_rows(n_rows)
        read = self.pace.clock()
        self.pace.searched(len(records), read - began)
        try:
            first = records.index(record)
        except ValueError:
            self._is_found = False
            return
        if not self._is_found:  # found: more rows were read than may be predicted now
            end = first + max(1, self.pace.affordable())
            places, records = places[:end], records[:end]
            self._table.go_to(places[-1])
        self._is_found = True
        ahead = [one for one in records[first:] if one is not None]
        lengths = list(map(len, ahead))
        header, values = ask(lambda key: {**request, "key": key, "lengths": lengths}, [b"".join(ahead)])
        self._batches.append(_Batch(ahead, header, values))
        self._row_bytes = max(self._row_bytes, (sum(map(len, ahead)) + len(values)) // len(ahead))
        self.pace.predicted(len(ahead), self.pace.clock() - read)

    def _end_reading(self) -> None:
        """Read nothing ahead any more in this statement."""
        self._is_off = True
        self._batches.clear()


class _Table:
    """A table that is read from its beginning to its end and again, a short query at a time."""

    def __init__(self, name: str, n_blocks: int, stored: str | None):
        query = _ROWS.format(table=name, stored=stored or "0", most=_MOST_STORED_BYTES)
        self._plan = plpy.prepare(query, ["tid", "tid", "int8"])
        self._n_blocks = n_blocks
        self._after = "(0,0)"

    def go_to(self, place: str) -> None:
        """Continue after the row with this ctid."""
        self._after = place

    def next_rows(self, n_rows: int) -> tuple[list[str], list[bytes | None]]:
        """Return the ctids and the records of the next rows, and go behind them.

        Few pages are read even if they have no rows. A row that is too wide is None. The bytes are limited.
        """
        block = int(self._after[1:].split(",")[0])
        end_block = min(block + n_rows + 1, _LAST_BLOCK)
        places: list[str] = []
        records: list[bytes | None] = []
        n_bytes = 0
        cursor = plpy.cursor(self._plan, [self._after, f"({end_block},0)", n_rows])
        try:
            while len(records) < n_rows and n_bytes < _MOST_BYTES:
                rows = cursor.fetch(min(_FETCHED, n_rows - len(records)))
                if not len(rows):
                    break
                for row in rows:
                    places.append(row["place"])
                    records.append(row["record"])
                    n_bytes += len(row["record"] or b"")
        finally:
            cursor.close()
        if len(records) == n_rows or n_bytes >= _MOST_BYTES:
            self._after = places[-1]
        else:
            self._after = f"({end_block},0)" if end_block < self._n_blocks else "(0,0)"
        return places, records


class Contexts:
    """The contexts of a session's newest statement."""

    def __init__(self) -> None:
        self._statement: float | None = None
        self._contexts: collections.OrderedDict[Key, Context] = collections.OrderedDict()

    def get(self, moment: Moment, key: Key, names: Sequence[str]) -> Context:
        """Return the context of a row; those of earlier statements are dropped."""
        if moment.statement != self._statement:
            self._contexts.clear()
            self._statement = moment.statement
        context = self._contexts.get(key)
        if context is None or context.names != names:  # defence: names-read-ahead = context is None
            context = self._contexts[key] = Context(names)
            while len(self._contexts) > _MOST_CONTEXTS:
                self._contexts.popitem(last=False)
        return context


_plan: plpy.Plan | None = None


def _readable_table(row_type: int) -> plpy.Row | None:
    global _plan
    if _plan is None:
        _plan = plpy.prepare(_READABLE, ["int8"])
    rows = plpy.execute(_plan, [row_type])
    return rows[0] if len(rows) else None
