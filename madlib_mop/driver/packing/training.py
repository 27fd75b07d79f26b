"""A packed training table for validation_preprocessor_dl: its constant, classes and shapes, and checks against them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.driver.packing.columns import PackingKind, PackingSource
from madlib_mop.driver.packing.tables import Classes
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter, UndefinedTable

_PACK_AGAIN = "Pass the output table of training_preprocessor_dl."
_NEEDED = ("dependent_varname", "independent_varname", "dependent_vartype", "normalizing_const", "num_classes")
_INTEGERS = ("smallint", "integer", "bigint")
_STRINGS = ("text", "character varying", "character")


@dataclass(frozen=True)
class PackedColumn:
    """A column of the training table.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of one row.
    itemsize : int or None
        Bytes of an element: 1 for images; None if unknown.
    """

    name: str
    shape: tuple[int, ...]
    itemsize: int | None


@dataclass(frozen=True)
class TrainingTable:
    """The training table's properties that a validation table must have.

    Attributes
    ----------
    table : Relation or str
        For messages.
    constant : float
    independent, dependent : tuple of PackedColumn
    vartypes : tuple of str
        Of the dependent columns.
    classes : tuple of Classes or None
        Of the dependent columns.
    """

    table: Relation | str
    constant: float
    independent: tuple[PackedColumn, ...]
    dependent: tuple[PackedColumn, ...]
    vartypes: tuple[str, ...]
    classes: tuple[Classes | None, ...]

    def check_counts(self, x_names: list[str], y_names: list[str], side_by_side: bool = False) -> None:
        """Reject another number of columns; ``side_by_side``: a single input can be given as one column for each of
        its numbers."""
        if side_by_side and len(self.independent) == 1 and self.independent[0].shape == (len(x_names),):
            x_names = [self.independent[0].name]
        for what, names, ours in (
            ("independent_varname", x_names, self.independent),
            ("dependent_varname", y_names, self.dependent),
        ):
            if len(names) != len(ours):
                raise InvalidParameter(
                    f"{what} has {len(names)} columns, but {self.table} has {len(ours)}. Received: {', '.join(names)}",
                    hint="Name the same number of columns, in the same order: "
                    + ", ".join(repr(column.name) for column in ours)
                    + ".",
                )

    def check_columns(self, source: PackingSource) -> None:
        """Reject a column of another kind (image, class, other) than the training table's."""
        for column, ours in zip(source.independent, self.independent, strict=True):
            if ours.itemsize is not None and (column.kind is PackingKind.IMAGE) != (ours.itemsize == 1):
                raise InvalidParameter(
                    f"column {column.name!r} is of type {column.column.type_sql}, but column {ours.name!r} of"
                    f" {self.table} was packed from {'encoded images' if ours.itemsize == 1 else 'numbers'}"
                )
        for column, vartype, classes in zip(source.dependent, self.vartypes, self.classes, strict=True):
            if classes is None:
                fits = (column.kind is PackingKind.ARRAY) == vartype.endswith("[]")
            else:
                fits = column.kind is PackingKind.CLASS and _family(column.vartype) == _family(vartype)
                # The summary's owner wrote the vartypes, and may have defined a cast between other types.
                fits &= column.column.type_sql == classes.type_sql if column.column.is_enum else classes.is_safe
            if not fits:
                raise InvalidParameter(
                    f"column {column.name!r} is of type {column.column.type_sql}, but {self.table} was packed from"
                    f" {vartype}",
                    hint="Cast it in a view.",
                )

    def check_shapes(self, found: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Reject rows of other shapes, by the names and shapes of inputs and targets."""
        for (name, shape), ours in zip(found, self.independent + self.dependent, strict=True):
            if shape != ours.shape:
                raise InvalidParameter(
                    f"column {name!r} has rows of the shape {list(shape)}, but column {ours.name!r} of"
                    f" {self.table} has {list(ours.shape)}",
                    hint="image_shape resizes encoded images." if ours.itemsize == 1 else None,
                )


def read_training_table(session: CallerSession, text: str) -> TrainingTable:
    """Read a table of training_preprocessor_dl.

    Raises
    ------
    UndefinedTable
        If the table or its summary does not exist.
    InvalidParameter
        If it is not a packed table, or is empty.
    """
    table = session.relation(text, "training_preprocessor_table")
    holder = session.existing(table.with_suffix("_summary").sql)
    if holder is None:
        raise UndefinedTable(
            f"training_preprocessor_table has no table {table.name + '_summary'!r} in its schema. Received: {text!r}",
            hint="Pass the output table of training_preprocessor_dl.",
        )
    known = {column.name: column for column in session.columns(holder)}
    rows = []
    if all(name in known for name in _NEEDED):
        needed = [Identifier(name) for name in _NEEDED]
        rows = session.execute(statement("SELECT {needed} FROM {holder}", needed=needed, holder=holder))
    if len(rows) != 1:
        raise InvalidParameter(
            f"training_preprocessor_table was not created by training_preprocessor_dl. Received: {text!r}"
        )
    (summary,) = rows
    independent = tuple(_packed_column(session, table, name) for name in summary["independent_varname"])
    dependent = tuple(_packed_column(session, table, name) for name in summary["dependent_varname"])
    classes = tuple(_classes(session, holder, known, column) for column in dependent)
    classes = tuple(
        replace(known, as_index=True) if known and known.width > 1 and column.shape == (1,) else known
        for known, column in zip(classes, dependent, strict=True)
    )
    vartypes = tuple(summary["dependent_vartype"])
    return TrainingTable(table, float(summary["normalizing_const"]), independent, dependent, vartypes, classes)


def _packed_column(session: CallerSession, table: Relation, name: str) -> PackedColumn:
    query = statement(
        "SELECT t.{shape} AS shape, pg_catalog.octet_length(t.{column}) AS n_bytes FROM {table} t LIMIT 1",
        shape=Identifier(f"{name}_shape"),
        column=Identifier(name),
        table=table,
    )
    rows = session.execute(query)
    if not rows:
        raise InvalidParameter(f"training_preprocessor_table has no rows. Received: {str(table)!r}")
    shape = tuple(rows[0]["shape"])
    n_elements = 1
    for size in shape:
        n_elements *= size
    return PackedColumn(name, shape[1:], rows[0]["n_bytes"] // n_elements)


def _classes(
    session: CallerSession, holder: Relation, known: Mapping[str, Column], column: PackedColumn
) -> Classes | None:
    name = f"{column.name}_class_values"
    if name not in known or not known[name].is_array:
        raise InvalidParameter(f"training_preprocessor_table: {holder} has no array {name!r}", hint=_PACK_AGAIN)
    query = statement(
        "SELECT pg_catalog.textin(pg_catalog.array_out(t.{values})) AS values,"
        " pg_catalog.cardinality(t.{values}) AS width, t.{values}[1] IS NULL AS has_null FROM {holder} t",
        values=Identifier(name),
        holder=holder,
    )
    row = session.only_row(query, holder)
    if row["values"] is None:
        return None
    type_sql = known[name].type_sql.removesuffix("[]")
    width, is_safe = row["width"], known[name].is_safe
    return Classes(row["values"], width, width, row["has_null"], type_sql, holder, name, is_safe=is_safe)


def _family(vartype: str) -> str:
    if vartype in _INTEGERS:
        return "integer"
    return "text" if vartype in _STRINGS else vartype
