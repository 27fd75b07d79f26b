"""Names of the tables that `learn` makes, in the caller's schema or in another one."""

import pytest

from madlib_mop.catalog.names import split_name
from madlib_mop.driver.learning.command import _base, _search
from madlib_mop.errors import MopError
from madlib_mop.search import parse_params


@pytest.mark.parametrize(
    ("name", "schema", "base"),
    [
        ("a.b-c", None, "a_b_c"),
        ("9x", "work", "work._9x"),
        ("x", ' "It\'s ""own"""', '"It\'s ""own""".x'),
    ],
)
def test_the_names_of_tables_begin_with_that_of_the_model(name, schema, base):
    assert _base(name, schema) == base
    assert split_name(f"{base}_models")[0] == (schema and split_name(schema)[1])


@pytest.mark.parametrize("schema", ["", "a.b", "pg_temp", "PG_TEMP", "a b", "s" * 64])
def test_what_is_not_the_name_of_a_schema_is_an_error(schema):
    with pytest.raises(MopError, match="^schema") as raised:
        _base("x", schema)
    assert repr(schema) in raised.value.message


def test_the_search_finds_the_configurations_in_any_schema():
    for schema in (None, '"It\'s ""own"""'):
        configs = f"{_base('x', schema)}_configs"
        assert parse_params("asha", _search(4, configs, 1)).given == (configs, (1,))
