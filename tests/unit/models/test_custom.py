"""Custom functions are checked without running them before a trainer gets them: promise 7; clear errors (promise 8)."""

import pickle
import subprocess
import sys

import pytest

from madlib_mop.errors import InvalidParameter, MopError, UnreadableText
from madlib_mop.models.parameters.custom import (
    CustomFunctions,
    check_name,
    check_source,
    is_pickle,
    possible_names,
    top_k_name,
    top_k_source,
)
from madlib_mop.models.parameters.parser import parse_compile_params

GOOD = {
    "def": "def f(y_true, y_pred):\n    return y_true - y_pred",
    "defaults": "def f(a, b, c=1, *, d=2, **more): return a",
    "any number": "def f(*both): return both[0]",
    "lambda": "f = lambda y_true, y_pred: y_true",
    "closure": "def make(k):\n    def inner(y_true, y_pred): return k\n    return inner\nf = make(3)",
    "imported": "from keras.metrics import mean_squared_error as f",
    "in a branch": "try:\n    import x\nexcept ImportError:\n    def f(y_true, y_pred): return y_true",
    "typed": "f: object = print",
    "with a cookie": "# -*- coding: latin-1 -*-\ndef f(a, b): return 'é'",
}
BAD = {
    "empty": ("", "does not define f"),
    "another name": ("def g(y_true, y_pred): return 1", "does not define f"),
    "inner only": ("def g():\n    def f(a, b): return 1", "does not define f"),
    "other case": ("def F(a, b): return 1", "does not define f"),
    "one argument": ("def f(y_true): return 1", "must take two positional arguments, y_true and y_pred"),
    "three arguments": ("def f(a, b, c): return 1", "must take two positional arguments"),
    "needs a keyword": ("def f(a, b, *, k): return 1", "must take two positional arguments"),
    "a class": ("class f: pass", "is a class"),
    "async": ("async def f(a, b): return 1", "is an async function"),
    "redefined": ("def f(a, b): return 1\nclass f: pass", "is a class"),
    "no Python": ("def f(a, b:\n  return 1", "is not Python source (line 1: "),
    "a word": ("invalid_obj", "does not define f"),
    "zero byte": ("def f(a, b): return 1\0", "is not Python source"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=list(GOOD))
def test_source_that_defines_the_name_passes(text):
    check_source("f", text.encode())


@pytest.mark.parametrize("text, message", BAD.values(), ids=list(BAD))
def test_source_that_does_not_is_an_error_that_says_why(text, message):
    with pytest.raises(MopError) as caught:
        check_source("f", text.encode())
    assert message in caught.value.message and caught.value.sqlstate in ("22023", "22P02")


def test_nothing_of_a_source_runs(tmp_path):
    marker = tmp_path / "marker"
    check_source("f", f"open({str(marker)!r}, 'w')\ndef f(a, b=open({str(marker)!r}, 'w')): return 1".encode())
    assert not marker.exists()


@pytest.mark.parametrize("value", [b"\xff\xfe", b"\x80", b"caf\xe9 = 1", b"\x1f\x8b\x08"])
def test_bytes_that_are_neither_text_nor_pickle_are_unreadable(value):
    assert not is_pickle(value)
    with pytest.raises(UnreadableText, match="neither Python source in UTF-8 nor a dill pickle"):
        check_source("f", value)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_told_by_their_bytes(protocol):
    assert is_pickle(pickle.dumps(len, protocol))


@pytest.mark.parametrize("protocol", [0, 1])
def test_older_pickles_are_text_that_is_no_function(protocol):
    value = pickle.dumps(len, protocol)
    assert not is_pickle(value)
    with pytest.raises(MopError):
        check_source("f", value)


@pytest.mark.parametrize("name", ["mse", "accuracy", "CategoricalCrossentropy", "acc"])
def test_names_of_keras_are_refused(name):
    with pytest.raises(InvalidParameter) as caught:
        check_name(name)
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("name", ["my-loss", "class", "1st", "a.b"])
def test_source_cannot_have_a_name_that_python_has_not(name):
    with pytest.raises(InvalidParameter, match="cannot have that name"):
        check_source(name, b"def f(a, b): return 1")


@pytest.mark.parametrize("k", [1, 3, 1000])
def test_top_k_is_a_source_that_passes(k):
    check_name(top_k_name(k))
    check_source(f"top_{k}_accuracy", top_k_source(k))


def test_functions_travel_and_their_digest_tells_them_apart():
    functions = CustomFunctions({"f": b"\x80\x04\xff", "g": b"def g(a, b): ..."}, pickles=True)
    assert CustomFunctions.from_request(functions.as_request()) == functions
    assert CustomFunctions().as_request() is None and CustomFunctions.from_request(None) == CustomFunctions()
    other = CustomFunctions({"f": b"\x80\x04\xfe", "g": b"def g(a, b): ..."})
    assert functions.digest(["f"]) != other.digest(["f"]) and functions.digest(["g"]) == other.digest(["g"])
    assert functions.digest([]) == "" and functions.digest(["f", "g"]) == functions.digest(["g", "f"])


def test_words_that_may_be_functions_are_found():
    text = "loss={'a': 'my_loss', 'b': mse}, optimizer='sgd', metrics=['Zwölf', 'accuracy']"
    names = possible_names(text)
    assert {"my_loss", "Zwölf"} <= names and not {"mse", "accuracy"} & names
    assert parse_compile_params(text, names).loss == {"a": "my_loss", "b": "mse"}


def test_what_the_driver_uses_imports_no_tensorflow():
    code = "import sys, madlib_mop.models.parameters.custom; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
