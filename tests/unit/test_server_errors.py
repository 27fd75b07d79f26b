"""`read_server_error`: the one place that reads exceptions of psycopg2 and psycopg."""

import ast
from pathlib import Path
from types import SimpleNamespace

import psycopg
import psycopg2
import pytest

import madlib_mop
from madlib_mop.errors import InvalidParameter, read_server_error

FOLDER = Path(madlib_mop.__file__).parent
BACKEND = FOLDER.parent / "plpython" / "mop_backend"


class Raised(Exception):
    """An exception of a driver; psycopg2's has ``pgcode`` where psycopg's has ``sqlstate``."""

    def __init__(self, name: str, message: str, hint: str | None = None):
        super().__init__(message)
        setattr(self, name, "22023")
        self.diag = SimpleNamespace(message_primary=message, message_hint=hint, message_detail=None)


@pytest.mark.parametrize("name", ["pgcode", "sqlstate"])
def test_an_error_of_either_driver_becomes_one_of_ours(name):
    error = read_server_error(Raised(name, "bad", "Do this.")).as_error()
    assert isinstance(error, InvalidParameter)
    assert error.as_dict() == {"sqlstate": "22023", "message": "bad", "hint": "Do this.", "detail": None}


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg2.OperationalError])
def test_an_error_of_the_driver_itself_has_no_state(kind):
    found = read_server_error(kind("the connection is lost\nreally"))
    assert (found.sqlstate, found.first_line) == (None, "the connection is lost")


def test_long_texts_are_cut():
    found = read_server_error(Raised("pgcode", "m" * 10**6, "h" * 10**6))
    assert (len(found.message), len(found.hint)) == (10_000, 10_000)


def test_no_other_module_reads_them():
    reads = {"pgcode", "diag", "spidata", "message_primary", "message_hint"}
    places = {
        f"{path.relative_to(FOLDER.parent)}: {node.attr}"
        for folder in (FOLDER, BACKEND)
        for path in folder.rglob("*.py")
        if any(name in path.read_text() for name in reads)  # to parse all takes a second
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in reads
    }
    assert places == set()
