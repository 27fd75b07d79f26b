"""Lists of columns as callers write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.catalog.names import quote
from madlib_mop.driver.packing.columns import split_columns
from madlib_mop.errors import InvalidParameter, UnreadableText

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", ["x"]),
        (" X , y_1", ["x", "y_1"]),
        ('"X","a,b" , "say ""hi"""', ["X", "a,b", 'say "hi"']),
        ("größe", ["größe"]),
    ],
)
def test_names_are_read_as_the_server_reads_them(text, expected):
    assert split_columns(text, "independent_varname") == expected


@settings(deadline=None)
@given(st.lists(names, min_size=1, max_size=5))
def test_quoted_names_come_back_whatever_they_hold(columns):
    assert split_columns(", ".join(map(quote, columns)), "independent_varname") == columns


@pytest.mark.parametrize("text", ["x,", ",x", "x y", '"x', "1x", "a.b", "x;y", "ARRAY[x, y]", '""'])
def test_what_is_no_list_of_names_is_refused(text):
    with pytest.raises(UnreadableText, match="^independent_varname "):
        split_columns(text, "independent_varname")


@pytest.mark.parametrize("text, quoted", [("id, monthly fee", '"monthly fee"'), ("A b", '"A b"'), ("1x", '"1x"')])
def test_a_name_that_needs_quotes_is_shown_with_them(text, quoted):
    with pytest.raises(UnreadableText) as caught:
        split_columns(text, "keep")
    assert caught.value.hint == f"Write other names in double quotes: {quoted}"


@pytest.mark.parametrize("text", [None, "", "  "])
def test_a_missing_list_is_refused(text):
    with pytest.raises(InvalidParameter, match="independent_varname is missing"):
        split_columns(text, "independent_varname")
