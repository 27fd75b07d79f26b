"""The form of every packed table: created, and filled row by row, in the caller's session."""

from collections.abc import Sequence

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.engines.base.caller import EngineCaller


class PackedForm:
    """The columns of a packed table: ``__dist_key__``, a tensor (bytea) and its shape for each, ``buffer_id``.

    Parameters
    ----------
    session : EngineCaller
    table : Relation
        Its name.
    columns : sequence of str
        Inputs, then outputs.
    """

    def __init__(self, session: EngineCaller, table: Relation, columns: Sequence[str]):
        self._session = session
        self._table = table
        self._n_columns = n = len(columns)
        self._names = {f"c{i}": Identifier(column) for i, column in enumerate(columns)}
        self._names |= {f"s{i}": Identifier(f"{column}_shape") for i, column in enumerate(columns)}
        shapes = ", ".join(f"${n + i + 2}::pg_catalog.text::pg_catalog.int4[]" for i in range(n))
        values = ", ".join(f"${i + 2}" for i in range(n))
        self._insert = statement(f"INSERT INTO {{table}} VALUES ($1, {values}, {shapes}, ${2 * n + 2})", table=table)
        self._types = ["integer", *["bytea"] * n, *["text"] * n, "integer"]

    def create(self, form: str = " USING heap") -> None:
        """Create the table; tensors are stored out of line and uncompressed.

        Parameters
        ----------
        form : str
            The clause of CREATE TABLE after the columns.
        """
        tensors = ", ".join(f"{{c{i}}} pg_catalog.bytea" for i in range(self._n_columns))
        shapes = ", ".join(f"{{s{i}}} pg_catalog.int4[]" for i in range(self._n_columns))
        storage = ", ".join(f"ALTER COLUMN {{c{i}}} SET STORAGE EXTERNAL" for i in range(self._n_columns))
        for template in (
            f"CREATE TABLE {{table}} (__dist_key__ pg_catalog.int4, {tensors}, {shapes}, buffer_id pg_catalog.int4)"
            + form,
            f"ALTER TABLE {{table}} {storage}",
        ):
            self._session.execute(statement(template, table=self._table, **self._names))

    def insert(self, key: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """Insert one buffer; see `Store.insert`. The next buffer can be made meanwhile."""
        texts = ["{" + ",".join(map(str, shape)) + "}" for shape in shapes]
        self._session.post(self._insert, [key, *values, *texts, buffer_id], self._types)

    def finish(self) -> None:
        """Wait until all buffers are inserted; raise the error of one that could not be."""
        self._session.flush()
