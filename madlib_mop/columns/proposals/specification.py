"""Reads the rows of an edited proposal, and checks them, each by itself, together, and against the table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from madlib_mop.columns.families import FAMILIES
from madlib_mop.columns.proposals.kinds import (
    ARRAY,
    BOOLEAN,
    CATEGORY,
    DEFAULT_IMPUTE,
    EMBEDDED,
    ENCODINGS,
    IGNORED,
    IMAGE,
    IMAGE_WIDTH,
    INPUT,
    KINDS,
    ROLES,
    ROW_TERMS,
    TARGET,
    TARGET_KINDS,
    TEXT,
    TEXT_WIDTH,
    TFIDF,
    VECTOR,
    ColumnSpec,
    TableColumn,
    embedding_width,
)
from madlib_mop.columns.proposals.rules import check_input, check_target, default_scale, problem
from madlib_mop.errors import InvalidParameter, UndefinedColumn, array_of

_TEXTS = ("name", "sql_type", "role", "kind", "impute", "encode", "scale", "minimum", "maximum", "reason")
_COUNTS = ("width", "max_levels", "n_rows", "n_null", "n_distinct")
_LISTS = ("levels", "examples")


def read_specification(rows: Iterable[Mapping[str, Any]], *, several_targets: bool = False) -> list[ColumnSpec]:
    """Return the specification that the rows of an edited proposal are.

    Parameters
    ----------
    rows : iterable of mapping
        One a column, by the names of `ColumnSpec`'s attributes; ``levels`` and ``examples`` are lists of text. NULL
        (None, or no such key) in ``impute``, ``indicator``, ``encode`` and ``scale`` is the default of the kind.
    several_targets : bool
        Whether more than one target is allowed.

    Returns
    -------
    list of ColumnSpec
        In the order of the rows; checked.

    Raises
    ------
    InvalidParameter
        For the first contradiction; the message has the column, what was received, and the hint what to do.
    """
    specs = [_read_row(row) for row in rows]
    check_specification(specs, several_targets=several_targets)
    return specs


def check_specification(specs: Sequence[ColumnSpec], *, several_targets: bool = False) -> None:
    """Raise InvalidParameter for the first column that contradicts itself, or if inputs or targets are missing.

    Parameters
    ----------
    specs : sequence of ColumnSpec
    several_targets : bool
        Whether more than one target is allowed.
    """
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise InvalidParameter(f"column {spec.name!r} has two rows in the proposal", hint="Delete one of the two.")
        seen.add(spec.name)
        _check_words(spec)
        if spec.role == INPUT:
            check_input(spec)
        elif spec.role == TARGET:
            check_target(spec)
    if not any(spec.role == INPUT for spec in specs):
        raise InvalidParameter("no column has the role input", hint="Set role to input for one column or more.")
    targets = [spec.name for spec in specs if spec.role == TARGET]
    if not targets:
        raise InvalidParameter("no column has the role target", hint="Set role to target for the dependent column.")
    if len(targets) > 1 and not several_targets:
        raise InvalidParameter(
            f"{len(targets)} columns have the role target, where one is allowed: " + ", ".join(map(repr, targets)),
            hint="Set the role of the others to input or ignored.",
        )


def check_table(specs: Sequence[ColumnSpec], table: Sequence[TableColumn]) -> None:
    """Check that a table has the columns of a specification, of the same types, and that their kinds fit the types.

    Columns of the table without a row in the specification are ignored.

    Parameters
    ----------
    specs : sequence of ColumnSpec
        Checked by `check_specification`.
    table : sequence of TableColumn

    Raises
    ------
    UndefinedColumn
        If the table has no such column.
    InvalidParameter
        If a column has another type, or a kind that its type cannot be.
    """
    known = {column.name: column for column in table}
    for spec in specs:
        if spec.role == IGNORED:
            continue
        column = known.get(spec.name)
        if column is None:
            raise missing_column(spec.name, known)
        if column.sql_type != spec.sql_type:
            raise InvalidParameter(
                f"column {spec.name!r} is of type {column.sql_type}, where the specification has {spec.sql_type}",
                hint="Propose the columns again, or cast the column in a view.",
            )
        check_family(spec, column.family)


def check_family(spec: ColumnSpec, family: str | None) -> None:
    """Raise InvalidParameter if a column's kind cannot be had from the family of its type (None: no family)."""
    possible = () if family is None else FAMILIES[family].kinds
    if spec.kind in possible:
        return
    kinds = [kind for kind in KINDS if kind in possible]
    raise problem(
        spec,
        f"type {spec.sql_type} cannot be of kind {spec.kind!r}",
        f"Set kind to {' or '.join(kinds)}, or cast the column in a view." if kinds else "Set role to ignored.",
    )


def missing_column(name: str, known: Iterable[str], *, is_folded: bool = False) -> UndefinedColumn:
    """Return the error for a column that the table does not have.

    Parameters
    ----------
    name : str
    known : iterable of str
        The columns of the table.
    is_folded : bool
        Whether names were folded to lower case unless they were quoted.
    """
    return UndefinedColumn(f"the table has no column {name!r}", hint=other_names(name, known, is_folded=is_folded))


def other_names(name: str, known: Iterable[str], *, is_folded: bool = False) -> str:
    """Return the hint for a missing column: the name that differs in case only, or all names. See `missing_column`."""
    names = list(known)
    alike = next((other for other in names if other.lower() == name.lower()), None)
    if alike is None:
        return "Its columns are: " + ", ".join(map(repr, names[:50])) + "."
    quoted = alike.replace('"', '""')
    return f'Write it quoted: "{quoted}".' if is_folded else f"Write {alike!r}."


def _read_row(row: Mapping[str, Any]) -> ColumnSpec:
    unknown = sorted(set(row) - {field.name for field in fields(ColumnSpec)})
    if unknown:
        raise InvalidParameter(f"the proposal has an unknown column {unknown[0]!r}", hint="Leave it out.")
    given = {key: value for key, value in row.items() if value is not None}
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidParameter(
            f"a row of the proposal has no name. Received: {name!r}", hint="Set name to a column of the table."
        )
    for key in ("sql_type", "role"):
        if key not in given:
            raise InvalidParameter(f"column {name!r}: {key} is missing", hint="Copy it from the proposal.")
    for key, value in given.items():
        if key in _TEXTS:
            if not isinstance(value, str):
                raise _wrong_type(name, key, "a text", value)
            if key in ("role", "kind", "encode", "scale", "impute"):
                given[key] = _plain(value)
        elif key in _COUNTS:
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong_type(name, key, "a whole number", value)
        elif key in _LISTS:
            if isinstance(value, str):
                raise _wrong_type(name, key, "a list of texts", value)
            if not all(isinstance(text, str) for text in value):
                raise InvalidParameter(
                    f"column {name!r}: {key} must be a list of texts without NULL. Received: {array_of(value)}",
                    hint="Leave NULL out: impute says what becomes of it.",
                )
            given[key] = tuple(value)
        elif not isinstance(value, bool):
            raise _wrong_type(name, key, "true or false", value)
    if "kind" not in given and given["role"] != IGNORED:
        raise InvalidParameter(f"column {name!r}: kind is missing", hint=f"Kinds are {', '.join(KINDS)}.")
    return _with_defaults(given)


def default_input(name: str, sql_type: str, family: str) -> ColumnSpec:
    """Return the row of an input of which no value was read: its kind is the usual one of its family of types."""
    kind = FAMILIES[family].kinds[0]
    if kind == VECTOR and sql_type.endswith("[]"):
        kind = ARRAY
    return _with_defaults({"name": name, "sql_type": sql_type, "role": INPUT, "kind": kind})


def _with_defaults(given: dict[str, Any]) -> ColumnSpec:
    """Return the specification of a row; what is not given has the default of its role, kind and encoding."""
    kind, role = given.get("kind", "number"), given["role"]
    if kind in KINDS and role in ROLES:
        if role == TARGET:
            given.setdefault("encode", "one_hot" if kind in (CATEGORY, BOOLEAN) else "identity")
            given.setdefault("impute", "error")
        given.setdefault("encode", ENCODINGS[kind][0])
        given.setdefault("impute", DEFAULT_IMPUTE[kind])
        given.setdefault("scale", default_scale(kind))
        if role == INPUT:
            width = _default_width(kind, given["encode"], given.get("n_distinct"))
            given.setdefault("width", width)
    return ColumnSpec(**given)


def _default_width(kind: str, encode: str, n_distinct: int | None) -> int | None:
    if kind == CATEGORY and encode in EMBEDDED:
        return embedding_width(n_distinct or 100)
    if kind == TEXT:
        return ROW_TERMS if encode == TFIDF else TEXT_WIDTH
    return IMAGE_WIDTH if kind == IMAGE else None


def _plain(text: str) -> str:
    """Return a keyword without blanks around it, in lower case; a constant's value stays as it is."""
    word, colon, value = text.partition(":")
    return word.strip().lower() + colon + value


def _wrong_type(name: str, key: str, expected: str, value: object) -> InvalidParameter:
    return InvalidParameter(f"column {name!r}: {key} must be {expected}. Received: {value!r}")


def _check_words(spec: ColumnSpec) -> None:
    if spec.role not in ROLES:
        raise problem(spec, f"role {spec.role!r} is unknown", f"Roles are {', '.join(ROLES)}.")
    if spec.role != IGNORED and spec.kind not in KINDS:
        raise problem(spec, f"kind {spec.kind!r} is unknown", f"Kinds are {', '.join(KINDS)}.")
    if spec.role == TARGET and spec.kind not in TARGET_KINDS:
        raise problem(
            spec, f"a target of kind {spec.kind!r} cannot be trained", f"Targets are {', '.join(TARGET_KINDS)}."
        )


def ignored(spec: ColumnSpec, reason: str) -> ColumnSpec:
    """Return the row of a column that is not used, with the sentence that says why."""
    return replace(spec, role=IGNORED, reason=reason)
