"""Writes the weights of the models of an output table: into the field of a row, or in parts into the table beside, if
they are larger than the setting ``weights_field_mb``; called by `hopper`, `averaging` and `ensemble`.

Larger fields could not be dumped: pg_dump reads rows as text, which has two digits for each byte and at most 1 GB.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from mop_backend.frames import Blob
from mop_backend.weights import PARTS_SUFFIX

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.weights import PART_BYTES, PARTS, find_parts
from madlib_mop.driver.outputs.tables import create_table
from madlib_mop.driver.session.caller import CallerSession


@dataclass(frozen=True)
class WrittenWeights:
    """The cells of a model's row.

    Attributes
    ----------
    field : bytes-like or None
        For ``model_weights``; None if they are in parts.
    digest : str
        Their SHA-256.
    """

    field: Blob | None
    digest: str


class OutputWeights:
    """The weights of the models of an output table, which are written one after the other.

    Parameters
    ----------
    session : CallerSession
    output : Relation
    field_bytes : int
        Most bytes of a field.
    has_keys : bool
        Whether it can have several models.
    """

    def __init__(self, session: CallerSession, output: Relation, field_bytes: int, has_keys: bool = True):
        self._session = session
        self._output = output
        self._table = output.with_suffix(PARTS_SUFFIX)
        self._field_bytes = field_bytes
        self._columns = PARTS if has_keys else PARTS[1:]
        #: Whether some were written in parts.
        self.are_in_parts = False

    def write(self, mst_key: int, n_bytes: int, buffers: Iterable[Blob], label: str) -> WrittenWeights:
        """Return the cells of a model's row, after its weights were written in parts if they do not fit into a field.

        Parameters
        ----------
        mst_key : int
        n_bytes : int
            Of all weights.
        buffers : iterable of bytes-like
            float32, in ``get_weights()`` order; each is used before the next one is made.
        label : str
            The model, for messages.
        """
        digest = sha256()
        if n_bytes <= self._field_bytes:
            field = bytearray()
            for buffer in buffers:
                field += buffer
            digest.update(field)
            return WrittenWeights(field, digest.hexdigest())
        self._make_table()
        n_cells = len(self._columns)
        slots = ", ".join(f"${n}" for n in range(1, n_cells + 1))
        insert = statement(f"INSERT INTO {{t}} ({', '.join(self._names)}) VALUES ({slots})", t=self._table)
        for number, part in enumerate(cut(buffers, min(PART_BYTES, self._field_bytes))):
            digest.update(part)
            cells = [mst_key, number, part][-n_cells:]
            self._session.post(insert, cells, [type_name for _, type_name in self._columns])
        self._session.notice(
            f"{label}: model_weights is NULL, as its weights of {n_bytes:,} bytes do not fit into a field; they are in"
            f" parts in {self._table}"
        )
        return WrittenWeights(None, digest.hexdigest())

    def remove(self, mst_key: int) -> None:
        """Delete the parts of a model's weights."""
        if self.are_in_parts:
            where = "" if self._columns is not PARTS else f" WHERE mst_key = {int(mst_key)}"
            self._session.execute(statement("DELETE FROM {t}", t=self._table) + where)

    def qualified_names(self) -> dict[str, str]:
        """Return the name of the table of parts with its schema, by the column of the models; empty if it has none."""
        return {"model_weights": self._session.qualified(self._table)} if self.are_in_parts else {}

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self._columns]

    def _make_table(self) -> None:
        # One that another role has made meanwhile would get the weights, and its triggers would run as the caller: then
        # to create the table is an error.
        if not self.are_in_parts and find_parts(self._session, self._output) is None:
            create_table(self._session, self._table, self._columns, self._names[:-1])
        self.are_in_parts = True


def cut(buffers: Iterable[Blob], part_bytes: int) -> Iterator[bytearray]:
    """Yield the bytes of buffers in parts of one size; the last one can be smaller."""
    part = bytearray()
    for buffer in buffers:
        rest = memoryview(buffer)
        while rest:
            taken = rest[: part_bytes - len(part)]
            part += taken
            rest = rest[len(taken) :]
            if len(part) == part_bytes:
                yield part
                part = bytearray()
    if part:
        yield part
