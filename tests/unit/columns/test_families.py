"""Families of column types: what is looked up in each, and what is recorded where a type does not show it."""

import json

import pytest

from madlib_mop.columns.families import FAMILIES, to_record
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import DATETIME, KINDS, NUMBER
from madlib_mop.columns.proposals.specification import check_specification, default_input
from madlib_mop.columns.raw import Levels, Moments, Numbers
from madlib_mop.columns.records import _READERS, family_of
from madlib_mop.columns.statistics import ColumnStatistics
from tests.helpers.unit.columns import SQL_TYPES, fitted, moments, numbers, spec, target, texts

Y = (target("y"), texts(["a", "b"]))
UNDER_A_DOMAIN = [("number", "span"), ("number", "time"), ("datetime", "time"), ("datetime", "moment")]


def test_each_family_has_readers_and_each_reader_a_family():
    assert {family_of(reader) for reader in _READERS} == set(FAMILIES)
    assert all(name == family.name for name, family in FAMILIES.items())


@pytest.mark.parametrize("reader", _READERS)
def test_a_reader_makes_columns_of_the_class_and_name_of_its_family(reader):
    column = _READERS[reader].column([None], "c")
    assert (type(column), column.family) == (FAMILIES[family_of(reader)].holds, family_of(reader))
    assert ColumnStatistics.of(column).n_missing == 1


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_has_what_is_looked_up_in_it(family):
    assert family.kinds and set(family.kinds) <= set(KINDS) and family.unit > 0
    check_specification([default_input("x", "any", family.name), target("y")])
    if family.holds is Moments:
        assert family.text is not None and family.unit > 1
    if family.holds in (Numbers, Moments, Levels):
        assert family.of_python is not None
    if DATETIME in family.kinds:
        assert family.holds is Moments and family.parts and family.unit_name and family.measured_in
    assert family.targets is not None or not family.has_classes


@pytest.mark.parametrize("kind", [NUMBER, DATETIME])
def test_words_tell_families_of_one_kind_and_unit_apart_or_they_replace_each_other(kind):
    alike = {}
    for family in FAMILIES.values():
        if kind in family.kinds:
            alike.setdefault(family.words, set()).add((family.holds, family.unit))
    assert all(len(found) == 1 for found in alike.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_is_recorded_where_the_type_shows_it(name):
    types = [SQL_TYPES[name], *(["date"] if name == "moment" else []), *(["bigint"] if name == "number" else [])]
    for kind in FAMILIES[name].kinds:
        assert [to_record(kind, name, sql_type) for sql_type in types] == [None] * len(types)


@pytest.mark.parametrize(("kind", "family"), UNDER_A_DOMAIN)
def test_the_family_under_a_domain_is_recorded_if_unit_and_kind_do_not_show_it(kind, family):
    fits = fitted([(spec("s", kind, sql_type="a_domain"), moments([0, 1_000_000], family)), Y])
    column = json.loads(fits.to_json())["columns"][0]
    assert column.get("family") == (family if kind == "number" else None)
    assert Preprocessor.from_json(fits.to_json()) == fits and fits.columns[0].families == {family}


def test_a_document_of_an_earlier_version_takes_both_where_it_did():
    fits = fitted([(spec("s", sql_type="a_domain"), moments([0, 1_000_000], "span")), Y])
    document = json.loads(fits.to_json())
    del document["columns"][0]["family"]
    assert Preprocessor.from_json(json.dumps(document)).columns[0].families == {"time", "span"}


@pytest.mark.parametrize(("kind", "family"), [("number", "number"), ("number", "boolean"), ("boolean", "boolean")])
def test_numbers_and_booleans_replace_each_other(kind, family):
    fits = fitted([(spec("x", kind, sql_type=SQL_TYPES[family]), numbers([0, 1], family)), Y])
    assert fits.columns[0].families == {"number", "boolean"}
