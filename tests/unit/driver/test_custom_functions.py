"""Pickles are rejected by default; if they are allowed, one clear error says what is missing (promise 8)."""

import importlib.util

import pytest

from madlib_mop.driver.data.custom_functions import check_openable, custom_names, object_relation, pickles_on
from madlib_mop.errors import InvalidParameter, MopError, NotReady, Unsupported
from madlib_mop.models.parameters.custom import CustomFunctions

PICKLE = b"\x80\x04\x95."


def test_pickles_are_refused_unless_a_superuser_said_on():
    assert not any(map(pickles_on, ({}, {"pickled_functions": "off"}, {"pickled_functions": "yes"})))
    assert pickles_on({"pickled_functions": "on"})
    check_openable(CustomFunctions({"f": b"def f(a, b): return a"}))
    with pytest.raises(Unsupported, match="custom function 'f' is a pickle") as caught:
        check_openable(CustomFunctions({"f": PICKLE}))
    assert "('pickled_functions', 'on')" in caught.value.hint


def test_missing_dill_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "dill" else object())
    with pytest.raises(NotReady, match="dill is not installed") as caught:
        check_openable(CustomFunctions({"f": PICKLE}, pickles=True))
    assert "-m pip install 'dill" in caught.value.hint
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check_openable(CustomFunctions({"f": PICKLE}, pickles=True))


@pytest.mark.parametrize("name, base", [("functions", "functions"), ("Functions", "functions"), ('"F n"', "F n")])
def test_an_object_table_is_in_schema_madlib(name, base):
    assert object_relation(name).sql == f'"madlib"."{base}"' == object_relation(f"madlib.{name}", stored=True).sql


@pytest.mark.parametrize("name", ["madlib.t", "public.t", "t; drop table x", "t UNION SELECT", "", None, "a.b.c"])
def test_anything_else_is_refused(name):
    with pytest.raises(MopError):
        object_relation(name)
    with pytest.raises(InvalidParameter):
        object_relation("public.t", stored=True)


@pytest.mark.parametrize("name", [None, "", "  "])
def test_without_an_object_table_there_are_no_custom_functions(name):
    assert custom_names(None, name) == frozenset()
