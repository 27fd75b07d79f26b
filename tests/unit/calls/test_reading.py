"""A command gets exactly the arguments of its function, with their types and within their limits."""

from collections.abc import Iterator

import pytest

from madlib_mop.calls import FUNCTIONS, Argument, Function, find_function, read_arguments, recorded_arguments
from madlib_mop.calls.argument import AboveZero, Given, Label, OneOf, Whole
from madlib_mop.calls.columns import PACK, PROPOSE
from madlib_mop.errors import InvalidParameter, MopError, Unsupported
from tests.helpers.unit.findings import assert_none, place_of

F = Function(
    "f", "Do.",
    (
        Argument("table", "varchar", "a table"),
        Argument("n", "integer", "a number", default=3, check=Whole(1, 10, "Give 5.")),
        Argument("word", "text", "a word", default="a", check=OneOf(("a", "b"), "a", "Leave it out.")),
        Argument("ids", "integer[]", "ids", default=None),
        Argument("values", "text[]", "values", default=None, any_dimensions=True),
        Argument("blob", "bytea", "bytes", default=None),
        Argument("kind", "varchar", "a kind", default=None, other_types=("integer", "double precision")),
    ),
)  # fmt: skip


def refusal(given) -> InvalidParameter:
    with pytest.raises(InvalidParameter) as caught:
        read_arguments(F, given)
    return caught.value


def test_what_is_left_out_has_its_default_and_what_is_unknown_is_left_out():
    assert read_arguments(F, {"n": 4, "word": None, "role": "carol"}) == {
        "table": None, "n": 4, "word": "a", "ids": None, "values": None, "blob": None, "kind": None,
    }  # fmt: skip


def test_null_that_is_given_is_no_default():
    assert read_arguments(F, {"n": None})["n"] is None


@pytest.mark.parametrize("given", [
    {"n": "x"}, {"n": 1.0}, {"n": True}, {"n": 2**31}, {"table": 1}, {"ids": [1, "x"]}, {"ids": [[1]]}, {"ids": 1},
    {"values": [["x"], [1]]}, {"blob": "x"}, {"kind": [1]}, {"kind": True},
])  # fmt: skip
def test_a_value_of_another_type_is_refused_with_what_was_received(given):
    ((name, value),) = given.items()
    error = refusal(given)
    assert error.message.startswith(f"{name} must be of type ") and error.message.endswith(f"Received: {value!r}")


def test_an_array_of_more_dimensions_has_a_hint():
    assert refusal({"ids": [[1]]}).hint == "Write an array of one dimension: ARRAY[a, b]."
    assert refusal({"ids": [1, "x"]}).hint is refusal({"values": [["x"], [1]]}).hint is None


def test_an_excluded_column_is_not_null():
    for function in (PROPOSE, PACK):
        assert read_arguments(function, {"exclude": ["a"]})["exclude"] == ["a"]
        assert read_arguments(function, {"exclude": None})["exclude"] is None
        with pytest.raises(InvalidParameter) as caught:
            read_arguments(function, {"exclude": ["it's", None]})
        assert caught.value.message == "exclude has a NULL element. Received: ARRAY['it''s', NULL]"
        assert caught.value.hint


def test_every_type_of_an_argument_and_arrays_of_any_dimensions_are_taken():
    assert [read_arguments(F, {"kind": kind})["kind"] for kind in ("prob", 2, 0.5, "NaN")] == ["prob", 2, 0.5, "NaN"]
    values = [["x", None], ["y", "z"]]
    assert read_arguments(F, {"values": values, "ids": [1, None]})["values"] == values


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_text_that_the_server_cannot_hold_is_refused(text):
    assert "cannot store" in refusal({"table": text}).message
    assert "cannot store" in refusal({"values": [[text]]}).message


@pytest.mark.parametrize("given", [None, [], "x", 1])
def test_arguments_are_an_object(given):
    assert refusal(given).message == f"the arguments must be a JSON object. Received: {given!r}"


def test_checks_say_what_was_received_and_what_to_do():
    assert (refusal({"n": 0}).message, refusal({"n": 0}).hint) == ("n must be at least 1. Received: 0", "Give 5.")
    assert refusal({"n": 11}).message == "n must be at most 10. Received: 11"
    error = refusal({"word": "C"})
    assert (error.message, error.hint) == ("word must be one of a, b. Received: 'C'", "Leave it out.")
    assert read_arguments(F, {"word": " B "})["word"] == "b"


@pytest.mark.parametrize("value", [0, -1.5, "NaN", "Infinity", 10**400, 1e-60, 1e300])
def test_a_constant_that_cannot_divide_is_refused(value):
    with pytest.raises(InvalidParameter, match="c must be a number above 0. Received: "):
        AboveZero("1 leaves it.", is_single=True)("c", value)
    if isinstance(value, float) and value > 0:
        assert AboveZero("1 leaves it.")("c", value) == value


@pytest.mark.parametrize("name", ["", " ", " f", "f\n", "x" * 201])
def test_a_label_has_characters_and_no_spaces_around_them(name):
    (argument,) = [a for a in FUNCTIONS["load_custom_function"].arguments if a.name == "name"]
    for value, received in ((name, repr(name)), (None, "NULL")):
        with pytest.raises(InvalidParameter) as caught:
            argument.check("name", value)
        assert caught.value.message == (
            f"name must be a text of 1 to 200 characters, without spaces around it. Received: {received}"
        )
    assert argument.check("name", "x" * 200) == "x" * 200
    assert Label(63)("tag", None) is None


def test_a_check_for_null():
    with pytest.raises(InvalidParameter, match="k must be at least 1. Received: NULL"):
        Whole(1, is_needed=True)("k", None)
    with pytest.raises(InvalidParameter, match="server is missing. Received: NULL"):
        Given()("server", None)
    assert AboveZero("")("c", None) == 1.0


def test_a_run_keeps_all_but_bytes():
    values = read_arguments(F, {"table": "t", "blob": b"x"})
    assert recorded_arguments(F, values) == {name: value for name, value in values.items() if name != "blob"}


@pytest.mark.parametrize("name", ["", "os:system", None, [], 1])
def test_a_function_is_looked_up(name):
    with pytest.raises(Unsupported, match="there is no command"):
        find_function(name)


def mistakes_in(function: Function) -> Iterator[str]:
    """Yield what breaks the rules of a specification: texts of one line, and defaults that pass their checks."""
    if not function.purpose.endswith(".") or "\n" in function.purpose:
        yield f"its purpose must be one line that ends with a period: {function.purpose!r}"
    for a in function.arguments:
        if not a.help or "\n" in a.help or a.help.endswith("."):
            yield f"the help of {a.name} must be one line without a period at the end: {a.help!r}"
        if not a.is_required and not passes(a):
            yield f"the default of {a.name} must pass its check: {a.default!r}"


def passes(argument: Argument) -> bool:
    """Return whether the default of an argument passes its check."""
    try:
        if argument.check is not None:
            argument.check(argument.name, argument.default)
    except MopError:
        return False
    return True


def test_every_argument_explains_itself_in_a_line_and_its_default_passes_its_check():
    assert_none(
        f"{place_of(function)}: {function.name}: {mistake}"
        for function in FUNCTIONS.values()
        for mistake in mistakes_in(function)
    )


def test_a_blank_text_is_null_where_null_is_the_default():
    function = find_function("madlib_keras_fit_multiple_model")
    for blank in ("", "  "):
        given = {"validation_table": blank, "policy": blank, "early_stopping": blank, "source_table": blank}
        found = read_arguments(function, {"num_iterations": 1, **given})
        assert [found[name] for name in ("validation_table", "policy", "early_stopping")] == [None] * 3
        assert found["source_table"] == blank, "it has no default"
