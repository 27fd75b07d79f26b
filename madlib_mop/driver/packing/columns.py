"""The columns that a preprocessor packs: reads the lists of names, distinguishes arrays and labels, rejects other
types."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from madlib_mop.catalog.names import MAX_NAME_BYTES, Relation, quote, split_name
from madlib_mop.driver.data.engine import engine_of_table
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter, UndefinedColumn, UnreadableText, is_missing

_ARRAY_ELEMENTS = ("int2", "int4", "int8", "float4", "float8", "numeric")
_INTEGERS = ("int2", "int4", "int8")
_WIDE = ("float8", "numeric")
#: The numbers that round to 0 and to infinity as float4: up to half of the least one, and from half a step beyond the
#: greatest one on.
_LEAST, _BEYOND = "7.0064923216240854e-46", "3.4028235677973366e38"
_STRINGS = ("text", "varchar", "bpchar")
#: A packed column takes two pointers of 18 bytes (value and shape), and a row must fit into a page of 8 KB.
MAX_PACKED_COLUMNS = 200
_JOINED = "inputs"
_FIXED_COLUMNS = ("__dist_key__", "buffer_id")


class PackingKind(Enum):
    """How a column is packed."""

    ARRAY = "array"  # numeric array -> float32, or int16 for labels of integer types
    NUMBER = "number"  # scalar -> float32 of shape (n, 1)
    IMAGE = "image"  # encoded image -> uint8
    CLASS = "class"  # scalar -> one-hot int16


@dataclass(frozen=True)
class ColumnToPack:
    """One column to pack.

    Attributes
    ----------
    column : Column
        The column in the catalog.
    kind : PackingKind
    parts : tuple of Column
        The columns of numbers combined in it; empty for a column of the source table.
    """

    column: Column
    kind: PackingKind
    parts: tuple[Column, ...] = ()

    @property
    def sources(self) -> tuple[Column, ...]:
        """Its columns of the source table."""
        return self.parts or (self.column,)

    @property
    def name(self) -> str:
        """Its name, unquoted."""
        return self.column.name

    @property
    def vartype(self) -> str:
        """Its type without a length, e.g. ``character varying``."""
        text = self.column.type_sql
        return text if self.column.is_enum else re.sub(r"\(.*?\)", "", text)

    @property
    def class_type(self) -> str:
        """The type for comparing class values: all integers have one type, and so do all strings."""
        name = self.column.type_name
        if name in _INTEGERS:
            return "pg_catalog.int8"
        if name in _STRINGS:
            return "pg_catalog.text"
        return f"pg_catalog.{name}" if not self.column.is_enum else self.column.type_sql

    def text(self, value: str) -> str:
        """Return the SQL expression of a value as text, without casts that an enum's owner may have defined."""
        if self.column.is_enum:
            return f"pg_catalog.textin(pg_catalog.enum_out({value}))"
        return f"{value}::pg_catalog.text"

    @property
    def is_narrowed(self) -> bool:
        """Whether it has numbers that `as_float4` makes infinite if they are too large."""
        is_numbers = self.kind is PackingKind.NUMBER or bool(self.parts)
        return is_numbers and any(one.type_name in _WIDE for one in self.sources)

    @property
    def is_integer_array(self) -> bool:
        """Whether it is an array of int2, int4 or int8."""
        return self.kind is PackingKind.ARRAY and self.column.element_type in _INTEGERS

    def sent(self, values: Sequence[str]) -> str:
        """Return the SQL expression of a row's value as it is read for an encoder: images as they are, all else as an
        array in its memory layout; not for classes.

        Parameters
        ----------
        values : sequence of str
            The expressions of its columns of the source table.
        """
        if self.kind is PackingKind.IMAGE:
            return values[0]
        if self.kind is PackingKind.ARRAY and not self.parts:
            cast = "::pg_catalog.float4[]" if self.column.element_type == "numeric" else ""
            return f"madlib_mop.array_bytes({values[0]}{cast})"
        numbers = [as_float4(value, one) for value, one in zip(values, self.sources, strict=True)]
        return f"madlib_mop.array_bytes(ARRAY[{', '.join(numbers)}])"


@dataclass(frozen=True)
class PackingSource:
    """The table to pack, with its columns in the order of the packed table: first the x, then the y.

    Attributes
    ----------
    text : str
        The name as written by the caller.
    relation : Relation
    independent, dependent : tuple of ColumnToPack
    naming : tuple of str
        The system columns that identify a row, such as ``ctid``; () if there are none, or the caller cannot read them.
    """

    text: str
    relation: Relation
    independent: tuple[ColumnToPack, ...]
    dependent: tuple[ColumnToPack, ...]
    naming: tuple[str, ...]

    @property
    def columns(self) -> tuple[ColumnToPack, ...]:
        """All columns that are packed."""
        return self.independent + self.dependent


def as_float4(value: str, column: Column) -> str:
    """Return the SQL expression of a column's number as float4.

    The cast alone is an error for numbers beyond the range of float4, and names neither column nor row. Here numbers
    that are too small become 0, as in arrays of float8, and those that are too large become infinite, which encoders
    reject.

    Parameters
    ----------
    value : str
        The expression of the number.
    column : Column
    """
    cast = f"{value}::pg_catalog.float4"
    if column.type_name not in _WIDE:
        return cast
    size = f"pg_catalog.abs({value})"
    return (
        f"CASE WHEN {size} > {_LEAST} AND {size} < {_BEYOND} THEN {cast}"
        f" WHEN {size} < 1 THEN ({value} * 0)::pg_catalog.float4"
        f" WHEN {size} >= {_BEYOND} AND {value}::pg_catalog.text NOT IN ('NaN', 'Infinity', '-Infinity')"
        f" THEN 'Infinity'::pg_catalog.float4 ELSE {cast} END"
    )


def read_source(
    session: CallerSession,
    table: str,
    y_names: list[str],
    x_names: list[str],
    as_numbers: list[bool],
    separate: bool = False,
    arguments: tuple[str, str, str] = ("source_table", "independent_varname", "dependent_varname"),
) -> PackingSource:
    """Find the source table and the columns to pack.

    Parameters
    ----------
    session : CallerSession
    table : str
        As written by the caller.
    y_names, x_names : list of str
        Dependent and independent columns.
    as_numbers : list of bool
        For each dependent column whether a scalar is packed unchanged (regression), instead of as a class.
    separate : bool
        Whether independent columns that are all numbers are packed separately, instead of combined as one input.
    arguments : tuple of str
        Those that name the table, the independent and the dependent columns, for messages.

    Raises
    ------
    MopError
        For a table or column that does not exist, or that cannot be packed.
    """
    what, of_x, of_y = arguments
    relation = session.relation(table, what, any_type=True)
    known = {column.name: column for column in session.columns(relation)}
    _check_names_once(x_names)
    inputs = tuple(as_input(find_column(known, name, of_x, relation), of_x) for name in x_names)
    if not separate:
        inputs = side_by_side(inputs, y_names)
    names = [one.name for one in inputs] + y_names
    check_packed_names(names, names)
    return PackingSource(
        table.strip(),
        relation,
        inputs,
        tuple(
            _dependent(find_column(known, name, of_y, relation), as_number, of_y)
            for name, as_number in zip(y_names, as_numbers, strict=True)
        ),
        engine_of_table(session, relation).naming_columns(session, relation),
    )


def side_by_side(inputs: tuple[ColumnToPack, ...], y_names: list[str]) -> tuple[ColumnToPack, ...]:
    """Return columns as one input if all are numbers, with one number for each column; otherwise unchanged.

    The packed column is called ``inputs``, with a number appended if a dependent column has that name.
    """
    if len(inputs) < 2 or any(one.kind is not PackingKind.NUMBER for one in inputs):
        return inputs
    names = (f"{_JOINED}{number or ''}" for number in itertools.count())
    return (joined(inputs, next(name for name in names if name not in y_names and f"{name}_shape" not in y_names)),)


def joined(inputs: tuple[ColumnToPack, ...], name: str) -> ColumnToPack:
    """Return columns of numbers as one input of this name."""
    row = replace(
        inputs[0].column,
        name=name,
        type_sql="real[]",
        type_name="_float4",
        is_array=True,
        category="A",
        element_type="float4",
    )
    return ColumnToPack(row, PackingKind.ARRAY, tuple(one.column for one in inputs))


def _check_names_once(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameter(
                f"column {name!r} is named twice in independent_varname", hint="Name each column once."
            )


def split_columns(text: str | None, what: str) -> list[str]:
    """Split a comma-separated list of column names; unquoted ones are folded to lower case.

    Raises
    ------
    InvalidParameter
        If there is no list.
    UnreadableText
        If an entry is not one column name.
    """
    if text is None or not text.strip():
        raise is_missing(what, text, "Name one or more columns, separated by commas.")
    entries, quoted = [""], False
    for character in text:
        quoted ^= character == '"'
        if character == "," and not quoted:
            entries.append("")
        else:
            entries[-1] += character
    names = []
    for entry in entries:
        try:
            schema, name = split_name(entry, what)
        except UnreadableText as error:
            if '"' in entry or not entry.strip():
                raise
            hint = f"Write other names in double quotes: {quote(entry.strip())}"
            raise UnreadableText(error.message, hint=hint) from None
        if schema is not None:
            raise UnreadableText(f"{what} takes column names only. Received: {text!r}")
        names.append(name)
    return names


def check_packed_names(names: Sequence[str], with_classes: Sequence[str]) -> None:
    """Reject names that would clash in the packed table or its summary, and too many columns.

    Parameters
    ----------
    names : sequence of str
        Inputs and targets.
    with_classes : sequence of str
        Those that may have class values in the summary.

    Raises
    ------
    InvalidParameter
    """
    if len(names) > MAX_PACKED_COLUMNS:
        raise InvalidParameter(
            f"{len(names)} columns would be packed separately; a row of a packed table can have at most "
            f"{MAX_PACKED_COLUMNS}",
            hint="If all columns are numbers, they are packed as one input. Otherwise combine columns into an array "
            "in a view: ARRAY[a, b, c].",
        )
    made = list(_FIXED_COLUMNS)
    for name in names:
        for candidate in (name, f"{name}_shape"):
            if candidate in made:
                raise InvalidParameter(
                    f"column {name!r} would result in two columns of the packed table named {candidate!r}",
                    hint="Name each column once, and use a view to rename columns that clash.",
                )
            made.append(candidate)
        longest = f"{name}_class_values" if name in with_classes else f"{name}_shape"
        if len(longest.encode()) > MAX_NAME_BYTES:
            raise InvalidParameter(
                f"column {name!r}: {longest!r} would be longer than {MAX_NAME_BYTES} bytes",
                hint="Rename it in a view.",
            )


def find_column(known: dict[str, Column], name: str, what: str, relation: Relation) -> Column:
    """Return the column of a table by its name. Raises UndefinedColumn; ``what`` is the argument with its name."""
    if name in known:
        return known[name]
    alike = [other for other in known if other.lower() == name.lower()]
    raise UndefinedColumn(
        f"{what}: table {relation} has no column {name!r}",
        hint=f'Write it quoted: "{alike[0]}".' if alike else "Its columns are: " + ", ".join(map(repr, known)) + ".",
    )


def as_input(column: Column, what: str = "independent_varname") -> ColumnToPack:
    """Return how an independent column is packed, or encoded by predict. Raises InvalidParameter; ``what`` is the
    argument with its name."""
    if column.is_array and column.element_type in _ARRAY_ELEMENTS:
        return ColumnToPack(column, PackingKind.ARRAY)
    if column.type_name in _ARRAY_ELEMENTS:
        return ColumnToPack(column, PackingKind.NUMBER)
    if column.type_name == "bytea":
        return ColumnToPack(column, PackingKind.IMAGE)
    raise _refusal(column, what, "a numeric array, a number, or a bytea that is a JPEG or PNG image")


def _dependent(column: Column, as_number: bool, what: str) -> ColumnToPack:
    if column.is_array and column.element_type in _ARRAY_ELEMENTS:
        return ColumnToPack(column, PackingKind.ARRAY)
    if as_number:
        if column.type_name in _ARRAY_ELEMENTS:
            return ColumnToPack(column, PackingKind.NUMBER)
        raise _refusal(
            column, what, "a number or a numeric array, because num_classes => '{}' packs values as they are"
        )
    if column.type_name in (*_ARRAY_ELEMENTS, *_STRINGS, "bool") or column.is_enum:
        return ColumnToPack(column, PackingKind.CLASS)
    raise _refusal(column, what, "a boolean, text, a number, an enum or a numeric array")


def _refusal(column: Column, what: str, takes: str) -> InvalidParameter:
    return InvalidParameter(
        f"{what}: column {column.name!r} cannot be packed. It must be {takes}. Received type: {column.type_sql}",
        hint="Cast it in a view; domains must also be cast.",
    )
