"""Tables of arrays, of numbers side by side and of images: what `training_preprocessor_dl` packs, read and encoded as
the columns of ordinary tables are, by an encoding that is fixed before any row is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.catalog.names import Identifier, Relation, Slot
from madlib_mop.columns.encoding.fixed import FixedInput
from madlib_mop.columns.layout import ArrayLayout
from madlib_mop.columns.records import Field
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind

_BYTEA_OID = 17


@dataclass(frozen=True)
class ArraySource(SourceTable):
    """A table whose columns are read as `ColumnToPack.sent` has them.

    Attributes
    ----------
    packed : tuple of ColumnToPack
    """

    packed: tuple[ColumnToPack, ...] = ()

    def _row(self, fields: Sequence[Field]) -> tuple[str, dict[str, Slot]]:
        by_name = {one.name: one for one in self.packed}
        slots: dict[str, Slot] = {}
        values = []
        for i, field in enumerate(fields):
            one = by_name[field.name]
            parts = {f"c{i}_{k}": Identifier(part.name) for k, part in enumerate(one.sources)}
            values.append(one.sent([f"s.{{{slot}}}" for slot in parts]))
            slots |= parts
        return f"pg_catalog.record_send(ROW({', '.join(values)}))", slots


def array_source(
    relation: Relation, text: str, packed: Sequence[ColumnToPack], naming: tuple[str, ...] = ()
) -> ArraySource:
    """Return a table with these columns of arrays, numbers and images."""
    return ArraySource(relation, text, (), naming, packed=tuple({one.name: one for one in packed}.values()))


def field_of(one: ColumnToPack, divisor: float) -> Field:
    """Return how an input is read; ``divisor`` is that of its encoder."""
    if one.kind is PackingKind.IMAGE:
        return Field(one.name, "bytea", _BYTEA_OID, "bytea")
    parts = tuple(part.name for part in one.sources) if one.parts or one.kind is PackingKind.NUMBER else ()
    return Field(one.name, "bytea", _BYTEA_OID, "_float4", layout=ArrayLayout(parts, divisor, one.is_narrowed))


def fixed_input(one: ColumnToPack, wanted: tuple[int, ...] | None = None) -> FixedInput:
    """Return how an input is encoded; ``wanted`` is the size of its images."""
    return FixedInput(one.name, wanted if one.kind is PackingKind.IMAGE else None)
