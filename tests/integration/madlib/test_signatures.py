"""Scripts written for MADlib call by position and by name: arguments have MADlib's names, order, types and defaults."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REFERENCE = (HERE.parents[2] / "docs" / "reference.md").read_text()
LINE = re.compile(r"(\w+)\((.*)\) -> (\S+)")
NO_DEFAULT = "none"
OF_ONE_TEXT = {"gpu_configuration"}  # their only text argument is a table's name, so their help form has no arguments
FUNCTIONS = """
SELECT p.proname::text, p.proargnames[1:p.pronargs],
       ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n) ORDER BY n),
       ARRAY(SELECT pg_get_function_arg_default(p.oid, n::int) FROM generate_series(1, p.pronargs) AS n ORDER BY n),
       p.prorettype::regtype::text
FROM pg_proc p WHERE p.pronamespace = 'madlib'::regnamespace
"""


@dataclass(frozen=True)
class Signature:
    """A function of MADlib: (name, type, default) of each argument."""

    name: str
    arguments: tuple[tuple[str, str, str], ...]
    result: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(type_ for _, type_, _ in self.arguments)})"


def read(line: str) -> Signature:
    """Read one line of signatures.txt."""
    name, arguments, result = LINE.fullmatch(line).groups()
    found = []
    for argument in arguments.split(", "):
        head, _, default = argument.partition(" = ")
        found.append((*head.split(), default or NO_DEFAULT))
    return Signature(name, tuple(found), result)


MADLIBS = [read(line) for line in (HERE / "signatures.txt").read_text().splitlines() if not line.startswith("#")]
LONG = {"varchar": "character varying", "varchar[]": "character varying[]", "float8": "double precision"}


@pytest.fixture(scope="module")
def ours(db):
    """Every function of schema madlib: [(names, types, defaults, result)] by name."""
    functions: dict[str, list[tuple]] = {}
    for name, *others in db.rows(FUNCTIONS):
        functions.setdefault(name, []).append(tuple(others))
    return functions


def default_of(expression: str | None) -> str:
    """Return a default without its cast."""
    return NO_DEFAULT if expression is None else re.sub(r"::[\w ]+(\[\])?$", "", expression)


def matches(signature: Signature, function: tuple) -> bool:
    """Return whether a function of ours accepts all calls of MADlib's function."""
    names, types, defaults, result = function
    names = names or ()  # NULL for a function without arguments
    n = len(signature.arguments)
    same = [
        (name, LONG.get(type_, type_), default) == (names[i], types[i], default_of(defaults[i]))
        for i, (name, type_, default) in enumerate(signature.arguments)
        if i < len(names)
    ]
    return len(same) == n and all(same) and None not in defaults[n:] and result == signature.result


@pytest.mark.parametrize("signature", MADLIBS, ids=str)
def test_a_function_of_madlib_is_called_as_there(ours, signature):
    if signature.name not in ours:
        assert f"`{signature.name}`" in REFERENCE.partition("### Not there yet")[2].partition("\n## ")[0], (
            f"madlib.{signature.name} is not there, and docs/reference.md does not say so"
        )
        return
    assert any(matches(signature, function) for function in ours[signature.name]), (signature, ours[signature.name])


def test_what_the_reference_calls_missing_is_missing(ours):
    listed = re.findall(r"`(\w+)`", REFERENCE.partition("### Not there yet")[2].partition("\n## ")[0])
    assert not {*listed} & {*ours}


def test_every_family_explains_itself_in_both_forms(ours):
    for name in {signature.name for signature in MADLIBS} & {*ours}:
        if not name.startswith("convert_"):
            texts = [
                defaults
                for _, types, defaults, result in ours[name]
                if (result, types) in (("text", []), ("text", ["text"]))
            ]
            wanted = 1 if name in OF_ONE_TEXT else 2
            assert len(texts) == wanted or any(defaults and defaults[0] is not None for defaults in texts), name
