"""States that a host holds: one that cannot be read is lost, and is let go."""

import sys
from contextlib import nullcontext
from types import ModuleType
from unittest import mock

import pytest
from mop_backend import seals


class SPIError(Exception):
    """An error of a statement."""

    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


_PLPY = ModuleType("plpy")
_PLPY.SPIError, _PLPY.subtransaction = SPIError, nullcontext
with mock.patch.dict(sys.modules, {"plpy": _PLPY}):  # of the module's imports
    from mop_backend import held

PARTS = [b"ab", b"c"]
STATE = held.HeldState(5, held.StateName(7, 1, 3, seals.digest_of_all(PARTS)), [2, 1])


class Rows(list):
    """The result of a query."""

    def nrows(self):
        """Return the number of rows."""
        return len(self)


class Server:
    """A server with a state; ``fails`` is the SQLSTATE of each read of its second part."""

    def __init__(self):
        self.parts, self.fails, self.let_go = dict(enumerate(PARTS)), None, []

    def execute(self, query, values):
        if "set coordinator = null" in query:
            self.let_go.append(tuple(values))
            return Rows()
        assert query.startswith("select data from madlib_mop.held_part_5")
        (part,) = values
        if part == 1 and self.fails is not None:
            raise SPIError(self.fails)
        return Rows({"data": data} for number, data in self.parts.items() if number == part)


@pytest.fixture
def server(monkeypatch):
    found = Server()
    monkeypatch.setattr(held.plpy, "prepare", lambda query, types: query, raising=False)
    monkeypatch.setattr(held.plpy, "execute", found.execute, raising=False)
    return found


def test_the_parts_of_a_state_are_read(server):
    states = held.HeldStates("us")
    assert states.parts(STATE) == PARTS and states.parts(STATE, 1) == PARTS[:1] and not server.let_go


@pytest.mark.parametrize("sqlstate", ["XX000", "XX001", "XX002", "42501", "58030", "58P01"])
def test_a_state_whose_pages_cannot_be_read_is_lost(server, sqlstate):
    server.fails = sqlstate
    states = held.HeldStates("us")
    assert states.read(STATE, 1) is None and states.parts(STATE) is None
    assert server.let_go == [("us", 5)] * 2
    assert states.parts(STATE, 1) == PARTS[:1]


@pytest.mark.parametrize("changed", [{1: b"X"}, {1: b""}])
def test_a_state_with_other_bytes_is_lost(server, changed):
    server.parts |= changed
    assert held.HeldStates("us").parts(STATE) is None and server.let_go == [("us", 5)]


def test_a_state_without_a_part_is_lost(server):
    del server.parts[1]
    assert held.HeldStates("us").parts(STATE) is None and server.let_go == [("us", 5)]


@pytest.mark.parametrize("sqlstate", ["53200", "57014", "57P01"])
def test_another_error_is_one(server, sqlstate):
    server.fails = sqlstate
    with pytest.raises(SPIError):
        held.HeldStates("us").read(STATE, 1)
    assert not server.let_go
