"""Edited proposals: reading, defaults, and one clear error for every contradiction."""

import pytest

from madlib_mop.columns.proposals.kinds import ColumnSpec, TableColumn
from madlib_mop.columns.proposals.specification import check_table, read_specification
from madlib_mop.errors import InvalidParameter, UndefinedColumn
from tests.helpers.unit.columns import error_text

TARGET = {"name": "y", "sql_type": "boolean", "role": "target", "kind": "boolean"}
NUMBER = {"name": "x", "sql_type": "double precision", "role": "input", "kind": "number"}
CATEGORY = {"name": "c", "sql_type": "text", "role": "input", "kind": "category"}


def read(*rows, **options):
    return read_specification([*rows, TARGET], **options)


def test_defaults_are_those_of_the_kind():
    number, category, text, target = read(NUMBER, CATEGORY, {**CATEGORY, "name": "t", "kind": "text"})
    assert (number.impute, number.indicator, number.encode, number.scale) == ("mean", False, "identity", "standard")
    assert (category.impute, category.encode, category.scale, category.width) == ("level", "index", "none", 21)
    assert (text.impute, text.encode, text.width) == ("zero", "tfidf", 512)
    (hashed, _) = read({**CATEGORY, "kind": "text", "encode": "hashed_ngrams"})
    assert (hashed.impute, hashed.width) == ("zero", 256)
    assert (target.impute, target.encode, target.scale) == ("error", "one_hot", "none")


def test_a_kind_is_changed_by_itself_where_the_rest_is_null():
    row = {**NUMBER, "impute": "mean", "encode": "identity", "scale": "standard", "n_distinct": 40}
    with pytest.raises(InvalidParameter) as caught:
        read({**row, "kind": "category"})
    assert "NULL is the default of the kind" in caught.value.hint
    (category, _) = read({**row, "kind": "category", "impute": None, "encode": None, "scale": None})
    assert (category.encode, category.impute, category.scale, category.width) == ("index", "level", "none", 13)


def test_words_are_read_whatever_their_case_and_a_constant_keeps_its_own():
    row = {**CATEGORY, "kind": " Category", "encode": "ONE_HOT", "impute": "Constant: Red"}
    (category, _) = read(row)
    assert (category.kind, category.encode, category.constant) == ("category", "one_hot", "Red")


def test_ignored_columns_may_have_anything():
    (ignored, _, _) = read({**NUMBER, "name": "i", "role": "ignored", "kind": "what", "scale": "never"}, NUMBER)
    assert ignored.role == "ignored"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "inputs"}, ["'x'", "role 'inputs' is unknown", "input, target, ignored"]),
        ({"kind": "numeric"}, ["kind 'numeric' is unknown", "number, category, boolean"]),
        ({"kind": None}, ["kind is missing", "number, category"]),
        ({"impute": "average"}, ["impute 'average' is unknown", "mean or median"]),
        ({"impute": "constant"}, ["impute 'constant' is unknown", "constant:<value>"]),
        ({"impute": "level"}, ["impute 'level' is not for kind 'number'"]),
        ({"impute": "constant:many"}, ["'constant:many' has no finite number"]),
        ({"impute": "constant:inf"}, ["no finite number"]),
        ({"encode": "embed"}, ["encode 'embed' is unknown", "identity"]),
        ({"encode": "one_hot"}, ["encode 'one_hot' is not for kind 'number'"]),
        ({"scale": "zscore"}, ["scale 'zscore' is unknown", "standard, min_max, robust"]),
        ({"kind": "boolean", "scale": "log1p"}, ["scale 'log1p' is not for kind 'boolean'"]),
        ({"indicator": True, "impute": "error"}, ["indicator contradicts impute 'error'"]),
        ({"levels": ["1", "2"]}, ["levels is not for kind 'number'"]),
        ({"max_levels": 10}, ["max_levels is not for kind 'number'", "10"]),
        ({"width": 3}, ["width is not for encode 'identity'", "3"]),
        ({"width": "3"}, ["width must be a whole number", "'3'"]),
        ({"indicator": "yes"}, ["indicator must be true or false", "'yes'"]),
        ({"scale": 3}, ["scale must be a text", "3"]),
        ({"sql_type": None}, ["'x'", "sql_type is missing"]),
        ({"name": None}, ["has no name"]),
        ({"note": "mine"}, ["unknown column 'note'"]),
        ({"kind": "text", "width": 4}, ["width must be from 8 to 65,536", "4"]),
        ({"kind": "image", "width": 5000}, ["width must be from 8 to 512"]),
        ({"kind": "vector", "width": 0}, ["width must be from 1 to 65,536"]),
        ({"kind": "vector", "scale": "robust"}, ["scale 'robust' is not for kind 'vector'"]),
        ({"kind": "datetime", "impute": "constant:0"}, ["impute 'constant:0' is not for kind 'datetime'"]),
        ({"name": "y"}, ["'y' has two rows"]),
    ],
)
def test_a_number_that_contradicts_itself_is_one_clear_error(changes, words):
    with pytest.raises(InvalidParameter) as caught:
        read({**NUMBER, **changes})
    assert all(word in error_text(caught) for word in words), error_text(caught)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": "standard"}, ["'c'", "scale 'standard' is not for kind 'category'", "none"]),
        ({"encode": "ordinal"}, ["encode 'ordinal' needs levels"]),
        ({"encode": "ordinal", "levels": []}, ["encode 'ordinal' needs levels"]),
        ({"levels": []}, ["levels is empty"]),
        ({"levels": ["a", "b", "a"]}, ["level 'a' is in levels twice"]),
        ({"levels": ["a", None]}, ["list of texts without NULL. Received: ARRAY['a', NULL]", "Leave NULL out"]),
        ({"levels": "a,b"}, ["list of texts", "'a,b'"]),
        ({"levels": ["a", "b"], "max_levels": 1}, ["levels has 2 levels and max_levels is 1"]),
        ({"levels": ["a", "b"], "impute": "constant:c"}, ["'constant:c' names none of the levels"]),
        ({"encode": "hashed", "max_levels": 8, "levels": ["a"]}, ["levels is not for encode 'hashed'"]),
        ({"encode": "hashed"}, ["needs max_levels"]),
        ({"encode": "ordinal", "levels": ["a"], "max_levels": 3}, ["max_levels is not for encode 'ordinal'"]),
        ({"max_levels": 0}, ["max_levels must be from 1 to 1,000,000", "0"]),
        ({"encode": "one_hot", "max_levels": 5000}, ["max_levels must be from 1 to 1,000 for encode 'one_hot'"]),
        ({"width": 0}, ["width must be from 1 to 4,096", "0"]),
        ({"width": 9999}, ["width must be from 1 to 4,096", "9999"]),
        ({"encode": "one_hot", "width": 3}, ["width is not for encode 'one_hot'"]),
        ({"indicator": True}, ["indicator is not for encode 'index'", "level of its own"]),
        ({"impute": "mean"}, ["impute 'mean' is not for kind 'category'"]),
    ],
)
def test_a_category_that_contradicts_itself_is_one_clear_error(changes, words):
    with pytest.raises(InvalidParameter) as caught:
        read({**CATEGORY, **changes})
    assert all(word in error_text(caught) for word in words), error_text(caught)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "text"}, ["a target of kind 'text' cannot be trained"]),
        ({"impute": "mean"}, ["impute 'mean' is not for a target", "view"]),
        ({"indicator": True}, ["indicator is not for a target"]),
        ({"encode": "hashed"}, ["encode 'hashed' is not for a target", "one_hot or index"]),
        ({"scale": "standard"}, ["scale 'standard' is not for a target of kind 'boolean'"]),
        ({"kind": "number", "scale": "quantile"}, ["scale 'quantile' is not for a target of kind 'number'", "log1p"]),
        ({"kind": "number", "levels": ["1"]}, ["levels are for categories"]),
        ({"kind": "category", "levels": ["1"]}, ["two classes or more"]),
        ({"kind": "category", "levels": ["1", "1"]}, ["twice"]),
        ({"width": 2}, ["width is not for a target"]),
        ({"max_levels": 2}, ["max_levels is not for a target"]),
    ],
)
def test_a_target_that_contradicts_itself_is_one_clear_error(changes, words):
    with pytest.raises(InvalidParameter) as caught:
        read_specification([NUMBER, {**TARGET, **changes}])
    assert all(word in error_text(caught) for word in words), error_text(caught)


def test_inputs_and_targets_are_needed_and_more_targets_only_where_allowed():
    other = {**NUMBER, "name": "z", "role": "target"}
    with pytest.raises(InvalidParameter, match="no column has the role input"):
        read_specification([TARGET])
    with pytest.raises(InvalidParameter, match="no column has the role target"):
        read_specification([NUMBER])
    with pytest.raises(InvalidParameter, match="2 columns have the role target, where one is allowed: 'z', 'y'"):
        read(NUMBER, other)
    assert [one.name for one in read(NUMBER, other, several_targets=True)] == ["x", "z", "y"]


TABLE = [TableColumn("x", "double precision", "number"), TableColumn("y", "boolean", "boolean")]


def test_a_column_that_the_table_lacks_is_named_and_one_that_looks_alike_too():
    with pytest.raises(UndefinedColumn) as caught:
        check_table([ColumnSpec("X", "double precision")], TABLE)
    assert "no column 'X'" in caught.value.message and "'x'" in caught.value.hint
    with pytest.raises(UndefinedColumn) as caught:
        check_table([ColumnSpec("age", "double precision")], TABLE)
    assert "'x', 'y'" in caught.value.hint
    check_table([ColumnSpec("age", "double precision", role="ignored")], TABLE)


def test_a_type_that_changed_since_is_named_with_both_types():
    with pytest.raises(InvalidParameter, match="'x' is of type double precision, where the specification has integer"):
        check_table([ColumnSpec("x", "integer")], TABLE)


@pytest.mark.parametrize(
    ("sql_type", "family", "kind", "hint"),
    [
        ("text", "text", "number", "category or text"),
        ("real[]", "vector", "number", "vector or array"),
        ("date", "moment", "category", "datetime"),
        ("jsonb", None, "category", "ignored"),
        ("bytea", "blob", "text", "image"),
        ("integer", "number", "boolean", "number or category"),
    ],
)
def test_a_kind_that_a_type_cannot_be_is_an_error(sql_type, family, kind, hint):
    table = [TableColumn("x", sql_type, family)]
    with pytest.raises(InvalidParameter) as caught:
        check_table([ColumnSpec("x", sql_type, kind=kind)], table)
    assert f"type {sql_type} cannot be of kind {kind!r}" in caught.value.message and hint in caught.value.hint
