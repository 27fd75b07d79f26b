"""Texts are parsed as literals and calls by name; nothing in them is executed."""

import builtins
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.errors import UnreadableText
from madlib_mop.models.parameters.literals import (
    MAX_FLOAT,
    CallSpec,
    canonical,
    read_dict,
    read_keywords,
    read_value,
    write_value,
)

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(-MAX_FLOAT, MAX_FLOAT)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
_NAMES = st.from_regex(r"[A-Z][a-z]{2,6}", fullmatch=True)
_KEYS = st.from_regex(r"x_[a-z]{1,5}", fullmatch=True)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc'\"\\", max_size=4), inner, max_size=3)
        | st.builds(CallSpec, _NAMES, st.just(()), st.dictionaries(_KEYS, inner, max_size=3))
    ),
    max_leaves=8,
)


@given(_VALUES)
def test_what_is_written_reads_back_equal(value):
    assert read_value(write_value(value), "x") == value


@given(st.dictionaries(_KEYS, _VALUES, max_size=4))
def test_keyword_texts_and_dict_texts_hold_the_same(values):
    text = ", ".join(f"{name}={write_value(value)}" for name, value in values.items())
    assert read_keywords(text, "x") == values
    if values:
        assert read_keywords(write_value(values), "x") == values


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_canonical_text_does_not_depend_on_the_order_of_names(values):
    turned = dict(reversed(values.items()))
    assert canonical(values) == canonical(turned)
    assert canonical(CallSpec("Adam", (), values)) == canonical(CallSpec("Adam", (), turned))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_way(text):
    for read in (read_keywords, read_value, read_dict):
        try:
            read(text, "x")
        except UnreadableText as error:
            assert error.message.startswith("x")


def test_json_words_and_package_prefixes():
    text = "a=true, b=null, c=tf.keras.optimizers.schedules.CosineDecay(0.1, 5), d=-1, e=keras.losses.mse,"
    assert read_keywords(text, "x") == {
        "a": True,
        "b": None,
        "c": CallSpec("CosineDecay", (0.1, 5)),
        "d": -1,
        "e": "mse",
    }


RUNS_CODE = [
    "a=__import__('os').system('touch {marker}')",
    "a=exec(\"open('{marker}', 'w')\").x",
    "a=[open('{marker}', 'w') for _ in 'x']",
    "a=(lambda: open('{marker}', 'w'))()",
    "a=f\"{{open('{marker}', 'w')}}\"",
    "a=1) or open('{marker}', 'w'",
    "a=1)(open('{marker}', 'w')",
    "a=(b := open('{marker}', 'w')).c",
    "a=os.system('touch {marker}')",
    "a=keras.utils.get_file('x', 'file://{marker}')",
    "**{{'a': 1}}",
    "*[1]",
    "a=[*'xy']",
    "a={{**b}}",
    "a=b if c else d",
    "a=2**9999999999",
    "a='x' * 10**12",
    "a=b[0]",
    "a=not b",
    "a=b'x'",
    "a=1j",
    "a=...",
    "a={{1, 2}}",
    "a=await b",
    "a=yield",
]


@pytest.mark.parametrize("text", RUNS_CODE)
def test_expressions_are_refused_and_do_not_run(text, tmp_path, monkeypatch):
    marker, ran = tmp_path / "ran", []
    for module, name in ((builtins, "eval"), (builtins, "exec"), (os, "system"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, lambda *args, **kwargs: ran.append(args))
    with pytest.raises(UnreadableText):
        read_keywords(text.format(marker=marker), "x")
    assert ran == [] and not marker.exists()


def test_calls_of_python_functions_are_names_only_and_wait_for_the_tables(tmp_path):
    marker = tmp_path / "ran"
    assert read_value(f"open('{marker}', 'w')", "x") == CallSpec("open", (str(marker), "w"))
    assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a=" + "(" * 5000 + "1" + ")" * 5000,
        "a=" + "-" * 9000 + "1",
        "a=" + "[" * 90 + "]" * 90,
        "a=" + "1+" * 40000 + "1",
        "a=" + "9" * 5000,
        "a=1e999",
        "a=1, a=2",
        "a=1\0",
        "1",
        "a==1",
        "a",
        "x" * 100_001,
    ],
    ids=lambda text: text[:12],
)
def test_texts_that_are_no_parameters(text):
    with pytest.raises(UnreadableText):
        read_keywords(text, "x")


@pytest.mark.parametrize("number", ["0x" + "f" * 6000, "1" + "0" * 30, "9223372036854775808"])
@pytest.mark.parametrize("text", ["{}", "-{}", "[1, {}]", "Adam({})", "Adam(lr={})", "~{}", "{} + 1"])
def test_a_whole_number_of_more_than_64_bits_is_one_clear_error(text, number):
    """Python has no text of a whole number of more than 4,300 digits; a hexadecimal one is read nevertheless."""
    for read, source in ((read_value, text.format(number)), (read_keywords, f"x={text.format(number)}"),
                         (read_keywords, text.format(number))):
        with pytest.raises(UnreadableText, match="x: a number is too large"):
            read(source, "x")
