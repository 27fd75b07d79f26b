"""Statements of the library cast to types of pg_catalog by their qualified names, or to a type that was checked."""

import re
from pathlib import Path

import madlib_mop

ROOT = Path(madlib_mop.__file__).parent
#: A cast to an unqualified name, which could resolve to a type of a temporary schema.
_BARE = re.compile(r"::(?!pg_catalog\.)([a-z]\w*)")
_WORDS = {("wanted.py", "integer"), ("loop.py", "bad_alloc")}


def test_no_cast_is_to_a_bare_name():
    found = {
        (file.name, name)
        for folder in ("driver", "catalog")
        for file in (ROOT / folder).rglob("*.py")
        for name in _BARE.findall(file.read_text())
    }
    assert found <= _WORDS
