"""Compiled functions between trainers: what the driver keeps and sends, and what a writer passes on."""

import pytest
from mop_backend.functions import Functions

from madlib_mop.engines.sessions import functions as of_driver
from madlib_mop.engines.sessions.functions import CompiledFunctions


@pytest.fixture
def functions():
    """Those of segments 0 and 1; segment 2 is elsewhere."""
    return CompiledFunctions(range(2))


def done(pid=1, **functions) -> dict:
    return {"outcome": "done", "versions": {"pid": pid}, "functions": functions}


def test_a_trainer_gets_the_functions_of_others_once(functions):
    answer = done(a="QQ==")
    functions.collect(0, answer)
    assert answer == {"outcome": "done", "versions": {"pid": 1}}
    assert functions.with_new(0, {"do": "train"}) == {"do": "train"}, "it compiled the function"
    assert functions.with_new(1, {"do": "train"}) == {"do": "train", "functions": {"a": "QQ=="}}
    assert functions.with_new(1, {"do": "train"}) == {"do": "train"}


def test_a_new_trainer_gets_all(functions):
    functions.collect(0, done(a="QQ=="))
    functions.with_new(1, {})
    functions.forget(1)
    assert functions.with_new(1, {}) == {"functions": {"a": "QQ=="}}
    functions.collect(0, {"outcome": "failed", "error": {}})
    assert functions.with_new(0, {}) == {}, "a model has failed"
    functions.collect(0, done(pid=2))
    assert functions.with_new(0, {}) == {"functions": {"a": "QQ=="}}, "the trainer ended between two tasks"
    assert functions.with_new(0, {}) == {}
    functions.collect(0, {"outcome": "died", "status": 1, "stderr": ""})
    assert functions.with_new(0, {}) == {"functions": {"a": "QQ=="}}


def test_a_segment_elsewhere_gets_none(functions):
    functions.collect(2, {"outcome": "host", "error": {}})
    functions.collect(0, done(a="QQ=="))
    assert functions.with_new(2, {"do": "start"}) == {"do": "start"}


def test_functions_beyond_the_limit_are_dropped(functions, monkeypatch):
    monkeypatch.setattr(of_driver, "_MOST_BYTES", 10)
    functions.collect(0, done(a="QQ==", b="QUFBQUFB", c="Qg=="))
    assert functions.with_new(1, {}) == {"functions": {"a": "QQ==", "c": "Qg=="}}


def test_a_writer_passes_functions_on():
    writer = Functions()
    task = {"do": "train", "functions": {"a": "QQ=="}}
    writer.take(task)
    assert task == {"do": "train"}
    assert writer.on_request({"op": "train"}, [b"state"]) == ({"op": "train", "functions": ["a"]}, [b"A", b"state"])
    assert writer.on_request({"op": "train"}, [b"state"]) == ({"op": "train"}, [b"state"])
    assert writer.from_answer({"ok": True, "functions": ["b"]}, [b"state", b"B"]) == ({"ok": True}, [b"state"])
    assert writer.on_answer({"outcome": "done"}) == {"outcome": "done", "functions": {"b": "Qg=="}}
    assert writer.on_answer({"outcome": "done"}) == {"outcome": "done"}


def test_a_writer_forgets_functions_with_its_trainer():
    writer = Functions()
    writer.take({"functions": {"a": "QQ=="}})
    writer.from_answer({"functions": ["b"]}, [b"B"])
    writer.forget()
    assert writer.on_request({}, []) == ({}, []) and writer.on_answer({}) == {}


def test_an_answer_with_too_many_bytes_of_functions_loses_them(monkeypatch):
    monkeypatch.setattr("mop_backend.functions._MOST_BYTES", 3)
    writer = Functions()
    assert writer.from_answer({"functions": ["a", "b"]}, [b"state", b"AA", b"BB"]) == ({}, [b"state"])
    assert writer.from_answer({"functions": ["a" * 257]}, [b"state", b""]) == ({}, [b"state"])
    assert writer.on_answer({}) == {}
