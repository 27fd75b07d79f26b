"""The preprocessor of a packed table: what its encoder, its networks' inputs and every prediction follow."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mop_backend.bounded_json import read_json

from madlib_mop.columns.preprocessors.canonical import build, canonical_json, plain
from madlib_mop.columns.preprocessors.checks import check_fitted
from madlib_mop.columns.preprocessors.fits import (
    FIT_TYPES,
    DateFit,
    FittedColumn,
    ImageFit,
    TermsFit,
    TextFit,
    VectorFit,
)
from madlib_mop.columns.preprocessors.profiles import ColumnProfile
from madlib_mop.columns.proposals.kinds import INPUT, TARGET, ColumnSpec
from madlib_mop.columns.transforms.categories import CategoryFit
from madlib_mop.columns.transforms.scaling import NumberFit
from madlib_mop.errors import UnreadableText

FORMAT = 1
_NUMBERS, _WEIGHTS = "numbers", "_weights"
#: Of the name of a packed column, beside which there is one with the suffix ``_shape``.
_MOST_BYTES = 63 - len("_shape")
_KEYS = {"spec", "type", "fit"}
#: Keys that a column may have besides.
_ADDED = {"profile", "family"}


@dataclass(frozen=True)
class InputTensor:
    """One input of the network.

    Attributes
    ----------
    name : str
        ``numbers`` for the matrix of all units of numbers (``numbers_1``, ... if a column has that name); else the
        name of its column. ``weights`` have the name of their column with the suffix ``_weights``, or a longer one.
    kind : str
        ``numbers``, ``index``, ``text``, ``terms``, ``weights``, ``vector`` or ``image``. A text of ``terms`` has
        ``weights`` too, which are the next tensor.
    dtype : str
        ``float32``, ``int32`` (``index`` and ``terms``) or ``uint8`` (``image``).
    shape : tuple of int
        Of one row.
    columns : tuple of str
        The columns that it is made of.
    units : tuple of str
        One name an element of a row; () for images.
    n_codes : int or None
        Of ``index`` and ``terms``: codes are 0 to ``n_codes`` - 1, the ``input_dim`` of an ``Embedding``.
    width : int or None
        Of ``index``: the proposed units of the embedding.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    columns: tuple[str, ...]
    units: tuple[str, ...]
    n_codes: int | None = None
    width: int | None = None


@dataclass(frozen=True)
class Preprocessor:
    """Inputs and targets with what was fitted to them; immutable.

    Attributes
    ----------
    columns : tuple of FittedColumn
        Inputs and targets in the order of the specification. Ignored columns are not there.
    """

    columns: tuple[FittedColumn, ...]

    @property
    def inputs(self) -> tuple[FittedColumn, ...]:
        """The columns with the role input."""
        return tuple(column for column in self.columns if column.spec.role == INPUT)

    @property
    def targets(self) -> tuple[FittedColumn, ...]:
        """The columns with the role target."""
        return tuple(column for column in self.columns if column.spec.role == TARGET)

    @cached_property
    def tensors(self) -> tuple[InputTensor, ...]:
        """The inputs of a network: the matrix of numbers first, if there is one, then one a column."""
        return tuple(self._tensors())

    @property
    def index_inputs(self) -> tuple[int, ...]:
        """The numbers of the tensors of type int32."""
        return tuple(number for number, tensor in enumerate(self.tensors) if tensor.dtype == "int32")

    def to_json(self) -> str:
        """Return the canonical text: the same preprocessor has the same text, always."""
        names = {cls: name for name, cls in FIT_TYPES.items()}
        columns = [
            {"spec": _plain_spec(column.spec), "type": names[type(column.fit)], "fit": plain(column.fit)}
            | ({} if column.profile is None else {"profile": plain(column.profile)})
            | ({} if column.family is None else {"family": column.family})
            for column in self.columns
        ]
        return canonical_json({"format": FORMAT, "columns": columns})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical text, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> "Preprocessor":
        """Return the preprocessor of a text that `to_json` wrote; jsonb may have stored it.

        Raises
        ------
        UnreadableText
            If the text is no JSON, not what `to_json` writes, or contradicts itself.
        """
        try:
            document = read_json(text)
        except (ValueError, RecursionError):
            raise UnreadableText("the preprocessor is damaged: it is not JSON", hint="Pack the table again.") from None
        if not isinstance(document, dict) or not isinstance(document.get("columns"), list):
            raise UnreadableText("the preprocessor is damaged: it has no columns", hint="Pack the table again.")
        if document.get("format") != FORMAT:
            raise UnreadableText(
                f"the preprocessor has format {document.get('format')!r}; this version reads {FORMAT}",
                hint="Update madlib_mop on this server.",
            )
        columns = [_read_column(column, f"columns[{place}]") for place, column in enumerate(document["columns"])]
        check_fitted(columns)  # defence: consistent-preprocessor
        return Preprocessor(tuple(columns))

    def _tensors(self) -> Iterator[InputTensor]:
        taken: set[str] = set()
        units: list[str] = []
        names = {column.name for column in self.columns}
        owners = [column for column in self.inputs if column.units()]
        for column in owners:
            units += [_unused(unit, taken) for unit in column.units()]
        if units:
            name = _unused_name(names, _NUMBERS)
            yield InputTensor(
                name, "numbers", "float32", (len(units),), tuple(column.name for column in owners), tuple(units)
            )
        for column in self.inputs:
            tensor = _own_tensor(column, taken)
            if tensor is not None:
                yield tensor
            if isinstance(column.fit, TermsFit):
                name, width = _unused_name(names, _WEIGHTS, column.name), column.fit.width
                elements = _numbered(name, width, taken)
                yield InputTensor(name, "weights", "float32", (width,), (column.name,), elements)


def _own_tensor(column: FittedColumn, taken: set[str]) -> InputTensor | None:
    """Return the input that a column is by itself; None if it is units of the matrix of numbers only."""
    fit, name = column.fit, column.name
    if isinstance(fit, CategoryFit) and fit.encode in ("index", "hashed"):
        unit = _unused(name, taken)
        return InputTensor(name, "index", "int32", (1,), (name,), (unit,), fit.n_codes, fit.width)
    if isinstance(fit, TermsFit):
        units = _numbered(name, fit.width, taken)
        return InputTensor(name, "terms", "int32", (fit.width,), (name,), units, 1 + fit.n_terms)
    if isinstance(fit, TextFit | VectorFit):
        kind = "text" if isinstance(fit, TextFit) else "vector"
        units = _numbered(name, fit.width, taken)
        dimensions = fit.dimensions if isinstance(fit, VectorFit) else ()
        return InputTensor(name, kind, "float32", dimensions or (fit.width,), (name,), units)
    if isinstance(fit, ImageFit):
        return InputTensor(name, "image", "uint8", fit.shape, (name,), ())
    return None


def _numbered(name: str, n: int, taken: set[str]) -> tuple[str, ...]:
    """Return the names of the elements of a tensor."""
    return tuple(_unused(f"{name}[{place + 1}]", taken) for place in range(n))


def _unused_name(names: set[str], end: str, begin: str = "") -> str:
    """Return a name for a tensor that is none of these, and add it: ``end`` after ``begin``, with a number if needed.

    Of a name that is too long for a packed column, ``begin`` is cut.
    """
    number = 0
    while True:
        suffix = f"{end}_{number}" if number else end
        name = begin.encode()[: _MOST_BYTES - len(suffix)].decode("utf-8", "ignore") + suffix
        if name not in names:
            names.add(name)
            return name
        number += 1


def _unused(name: str, taken: set[str]) -> str:
    """Return a name that no unit before has, and note it."""
    unused, number = name, 1
    while unused in taken:
        number += 1
        unused = f"{name} ({number})"
    taken.add(unused)
    return unused


def _plain_spec(spec: ColumnSpec) -> dict[str, object]:
    fields: dict[str, object] = plain(spec)
    del fields["examples"]  # examples are the users' data, and nothing depends on them
    return fields


def _read_column(value: object, where: str) -> FittedColumn:
    if not isinstance(value, dict) or set(value) - _ADDED != _KEYS or not isinstance(value["spec"], dict):
        raise UnreadableText(f"the preprocessor is damaged: {where} is no column", hint="Pack the table again.")
    if not isinstance(value["type"], str) or value["type"] not in FIT_TYPES:
        raise UnreadableText(f"the preprocessor is damaged: {where} has an unknown type", hint="Pack the table again.")
    spec = build(ColumnSpec, {**value["spec"], "examples": []}, f"{where}.spec")
    profile = build(ColumnProfile, value["profile"], f"{where}.profile") if "profile" in value else None
    fit, family = build(FIT_TYPES[value["type"]], value["fit"], f"{where}.fit"), value.get("family")
    if "family" in value and (not isinstance(family, str) or not isinstance(fit, NumberFit | DateFit)):
        raise UnreadableText(f"the preprocessor is damaged: {where} has no such family", hint="Pack the table again.")
    return FittedColumn(spec, fit, profile, family)
