"""A packed table that the engine itself spreads by `__dist_key__`: made and filled in the caller's session.

The base of the stores of Greenplum and Citus, where a key that the server told of takes a buffer to its segment.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.engines.interface import Session, Store


class KeyedStore(Store):
    """See `Store`.

    Parameters
    ----------
    session : Session
    table : Relation
        Its name.
    columns : sequence of str
        Inputs, then outputs.
    """

    def __init__(self, session: Session, table: Relation, columns: Sequence[str]):
        self._session = session
        self._table = table
        self._names = {f"c{i}": Identifier(column) for i, column in enumerate(columns)}
        self._names |= {f"s{i}": Identifier(f"{column}_shape") for i, column in enumerate(columns)}
        self._n_columns = n = len(columns)
        self._keys: Mapping[int, int] = {}
        shapes = ", ".join(f"${n + i + 2}::pg_catalog.text::pg_catalog.int4[]" for i in range(n))
        values = ", ".join(f"${i + 2}" for i in range(n))
        self._insert = statement(f"INSERT INTO {{table}} VALUES ($1, {values}, {shapes}, ${2 * n + 2})", table=table)
        self._types = ["integer", *["bytea"] * n, *["text"] * n, "integer"]

    @abstractmethod
    def _distribute(self) -> Mapping[int, int]:
        """Have the table, which is made and empty, spread; give the ``__dist_key__`` of each segment."""

    def _clause(self) -> str:
        """Give what CREATE TABLE says of the distribution, if it says so."""
        return ""

    def create(self) -> None:
        """Make the table; tensors are stored as they are, outside the row and uncompressed."""
        tensors = ", ".join(f"{{c{i}}} pg_catalog.bytea" for i in range(self._n_columns))
        shapes = ", ".join(f"{{s{i}}} pg_catalog.int4[]" for i in range(self._n_columns))
        storage = ", ".join(f"ALTER COLUMN {{c{i}}} SET STORAGE EXTERNAL" for i in range(self._n_columns))
        for template in (
            f"CREATE TABLE {{table}} (__dist_key__ pg_catalog.int4, {tensors}, {shapes}, buffer_id pg_catalog.int4)"
            + self._clause(),
            f"ALTER TABLE {{table}} {storage}",
        ):
            self._session.execute(statement(template, table=self._table, **self._names))
        self._keys = self._distribute()

    def insert(self, segment: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """See `Store.insert`; the key takes the buffer to its segment."""
        texts = ["{" + ",".join(map(str, shape)) + "}" for shape in shapes]
        self._session.execute(self._insert, [self._keys[segment], *values, *texts, buffer_id], self._types)

    def finish(self) -> None:
        """All is in the caller's transaction."""

    def close(self) -> None:
        """Nothing else is open."""
