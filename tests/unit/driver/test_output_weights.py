"""Weights of an output table: in the field, or in parts in the table beside, with the SHA-256 of all."""

import random
from hashlib import sha256
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.outputs.weights import OutputWeights, cut
from madlib_mop.driver.session.settings import read_field_bytes
from madlib_mop.errors import InvalidParameter

DATA = random.Random(1).randbytes(1000)
BUFFERS = [DATA[:1], DATA[1:401], b"", DATA[401:402], DATA[402:]]


class Statements:
    """A session that notes what it is to do."""

    def __init__(self, there=None):
        self.there, self.done, self.posted, self.notices = there, [], [], []
        self.of_owner = None

    def existing(self, name):
        return self.there

    def execute(self, statement, params=(), types=()):
        self.done.append(statement)
        return [{"product": None, "there": False}]

    def post(self, statement, params, types):
        assert len(params) == len(types)
        self.posted.append([bytes(p) if isinstance(p, bytearray) else p for p in params])

    def notice(self, text):
        self.notices.append(text)

    def qualified(self, table):
        return str(table)


@pytest.fixture
def session(monkeypatch):
    made = []
    monkeypatch.setattr("madlib_mop.driver.outputs.weights.create_table", lambda *given: made.append(given[1:]))
    monkeypatch.setattr("madlib_mop.driver.outputs.weights.find_parts", lambda session, table: session.of_owner)
    found = Statements()
    found.made = made
    return found


@pytest.mark.parametrize("size", [1, 7, 400, 999, 1000, 1001])
def test_parts_have_one_size(size):
    parts = list(cut(BUFFERS, size))
    assert b"".join(parts) == DATA and {len(part) for part in parts[:-1]} <= {size} and 0 < len(parts[-1]) <= size


def test_no_weights_have_no_parts():
    assert list(cut([b""], 5)) == []


OUTPUT = Relation("public", "models", 1, "r", False)


def test_weights_that_fit_are_the_field(session):
    weights = OutputWeights(session, OUTPUT, 1000)
    written = weights.write(3, 1000, BUFFERS, "mst_key 3")
    assert (written.field, written.digest) == (DATA, sha256(DATA).hexdigest())
    assert not session.made and not session.posted and not session.notices and weights.qualified_names() == {}


def test_weights_that_do_not_fit_are_in_parts(session):
    weights = OutputWeights(session, OUTPUT, 999)
    for key in (3, 4):
        written = weights.write(key, 1000, BUFFERS, f"mst_key {key}")
        assert written.field is None and written.digest == sha256(DATA).hexdigest()
    ((table, columns, key),) = session.made
    assert str(table) == "public.models_weights" and key == ["mst_key", "part"]
    assert [name for name, _ in columns] == ["mst_key", "part", "data"]
    assert session.posted == [[key, part, data] for key in (3, 4) for part, data in ((0, DATA[:999]), (1, DATA[999:]))]
    assert session.notices[0].startswith("mst_key 3: model_weights is NULL") and "models_weights" in session.notices[0]
    assert weights.qualified_names() == {"model_weights": "public.models_weights"}
    weights.remove(4)
    assert session.done == ['DELETE FROM "public"."models_weights" WHERE mst_key = 4']


def test_the_parts_of_a_single_model_have_no_key(session):
    weights = OutputWeights(session, OUTPUT, 600, has_keys=False)
    weights.write(1, 1000, BUFFERS, "models")
    assert session.posted == [[0, DATA[:600]], [1, DATA[600:]]] and session.made[0][2] == ["part"]


def test_a_table_of_a_warm_start_is_used_again(session):
    session.there = session.of_owner = OUTPUT.with_suffix("_weights")
    weights = OutputWeights(session, OUTPUT, 600)
    weights.write(1, 1000, BUFFERS, "models")
    assert not session.made and len(session.posted) == 2


def test_nothing_is_written_into_a_table_that_another_role_has_made(session):
    """To create it is an error of the server then."""
    session.there = OUTPUT.with_suffix("_weights")
    OutputWeights(session, OUTPUT, 600).write(1, 1000, BUFFERS, "models")
    assert len(session.made) == 1


@pytest.mark.parametrize("text", ["0", "501", "many", "-1", "1.5"])
def test_the_largest_field_is_one_that_can_be_dumped(text):
    with pytest.raises(InvalidParameter, match="weights_field_mb"):
        read_field_bytes(SimpleNamespace(settings=lambda: {"weights_field_mb": text}))


def test_the_largest_field_is_that_of_the_setting():
    assert read_field_bytes(SimpleNamespace(settings=dict)) == 500 << 20
    assert read_field_bytes(SimpleNamespace(settings=lambda: {"weights_field_mb": "7"})) == 7 << 20
