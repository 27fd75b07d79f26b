"""A packed table that the engine itself distributes by `__dist_key__`: created and filled in the caller's session.

The base of the stores of Greenplum and Citus, where the server's key of a segment routes buffers to it.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from madlib_mop.catalog.names import Relation
from madlib_mop.engines.base.caller import EngineCaller
from madlib_mop.engines.base.interface import Store
from madlib_mop.engines.base.packed_form import PackedForm


class KeyedStore(Store):
    """See `Store`.

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
        self._form = PackedForm(session, table, columns)
        self._keys: Mapping[int, int] = {}

    @abstractmethod
    def _distribute(self) -> Mapping[int, int]:
        """Distribute the new, empty table; return the ``__dist_key__`` of each segment."""

    def _form_clause(self) -> str:
        """Return the clause of CREATE TABLE after the columns."""
        return " USING heap"

    def create(self) -> None:
        """Create the table and distribute it."""
        self._form.create(self._form_clause())
        self._keys = self._distribute()

    def insert(self, segment: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """See `Store.insert`; the key routes the buffer to its segment."""
        self._form.insert(self._keys[segment], buffer_id, values, shapes)

    def finish(self) -> None:
        """Wait for the last buffer; all is in the caller's transaction."""
        self._form.finish()

    def close(self) -> None:
        """Nothing else is open."""
