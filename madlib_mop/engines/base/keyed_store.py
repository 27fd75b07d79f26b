"""A packed table that the engine itself spreads by `__dist_key__`: made and filled in the caller's session.

The base of the stores of Greenplum and Citus, where a key that the server told of takes a buffer to its segment.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from madlib_mop.catalog.names import Relation
from madlib_mop.engines.base.caller import Session
from madlib_mop.engines.base.interface import Store
from madlib_mop.engines.base.packed_form import PackedForm


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
        self._form = PackedForm(session, table, columns)
        self._keys: Mapping[int, int] = {}

    @abstractmethod
    def _distribute(self) -> Mapping[int, int]:
        """Have the table, which is made and empty, spread; give the ``__dist_key__`` of each segment."""

    def _form_clause(self) -> str:
        """Return what CREATE TABLE says after the columns."""
        return " USING heap"

    def create(self) -> None:
        """Make the table, and have it spread."""
        self._form.create(self._form_clause())
        self._keys = self._distribute()

    def insert(self, segment: int, buffer_id: int, values: Sequence[bytes], shapes: Sequence[Sequence[int]]) -> None:
        """See `Store.insert`; the key takes the buffer to its segment."""
        self._form.insert(self._keys[segment], buffer_id, values, shapes)

    def finish(self) -> None:
        """All is in the caller's transaction."""

    def close(self) -> None:
        """Nothing else is open."""
