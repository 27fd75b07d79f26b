"""Promise 7: one function quotes names, once, and no user's text gets into SQL in another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.catalog.names import Identifier, Relation, SqlType, quote, split_name, statement, with_end
from madlib_mop.driver.data.packed import shard_query
from madlib_mop.errors import InvalidParameter, UnreadableText

names = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=15)


@given(names, names)
def test_what_is_quoted_is_read_as_it_was(schema, name):
    assert split_name(quote(name)) == (None, name)
    assert split_name(f" {quote(schema)} . {quote(name)} ") == (schema, name)


@given(names, names)
def test_a_name_of_a_message_is_read_as_it_was(schema, name):
    relation = Relation(schema, name)
    assert split_name(relation.written) == (schema, name) and relation.written in (str(relation), relation.sql)
    assert split_name(with_end(relation.written, "_2")) == (schema, f"{name}_2")


def test_a_name_of_a_message_is_quoted_where_it_must_be():
    written = [Relation("w", name).written for name in ("nets", "Net s", "a.b")]
    assert written == ["w.nets", '"w"."Net s"', '"w"."a.b"']
    assert [with_end(text, "_end") for text in ("out", '"Big Out"')] == ["out_end", '"Big Out_end"']


@given(names)
def test_a_quoted_name_ends_where_it_ends(name):
    inner = quote(name)[1:-1]
    assert inner.replace('""', "").count('"') == 0 and inner.replace('""', '"') == name


@pytest.mark.parametrize(
    "text, parts",
    [
        ("Train", (None, "train")),
        ("Public.Train", ("public", "train")),
        ('"Train"', (None, "Train")),
        ('public."a""b"', ("public", 'a"b')),
        ('"a.b"', (None, "a.b")),
        ("TÄBLE_Ünï", (None, "tÄble_Ünï")),  # PostgreSQL folds ASCII letters only
        ("İd", (None, "İd")),
        ("t$1", (None, "t$1")),
        ("_x", (None, "_x")),
        ("n" * 63, (None, "n" * 63)),
    ],
)
def test_names_are_read_as_postgresql_reads_them(text, parts):
    assert split_name(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "a.", ".a", "a..b", "a.b.c", "a b", 'a"b', '"a', '"a"b', '""', 'a.""', "1a", "a-b", "a;b", "a'b",
        'train"; DROP TABLE x', "train; DROP TABLE x", "pg_catalog.pg_class c", "(SELECT 1)", "a\nb", "$1",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_with_the_text(text):
    with pytest.raises(UnreadableText) as caught:
        split_name(text, "source_table")
    assert caught.value.message == f"source_table cannot be read. Received: {text!r}"
    assert caught.value.hint


@pytest.mark.parametrize("name", ["n" * 64, "é" * 32, '"' + "n" * 64 + '"', "s." + "n" * 64, "s" * 64 + ".n"])
def test_names_over_63_bytes_are_refused_not_cut(name):
    with pytest.raises(InvalidParameter, match="is longer than 63 bytes. Received: "):
        split_name(name)


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_some_names_cannot_be(name):
    with pytest.raises(InvalidParameter):
        quote(name)


@pytest.mark.parametrize("value", ["x", 1, None, b"x", ["x"], [Identifier("a"), "b"]])
def test_a_slot_takes_names_only(value):
    with pytest.raises(TypeError):
        statement("SELECT {x}", x=value)


def test_slots_are_filled_with_quoted_names():
    text = statement(
        "SELECT {c} FROM {t} WHERE {k}::{type} = $1",
        c=[Identifier("a"), Identifier('b"; DROP')],
        t=Relation("s", "{t}"),
        k=Identifier("%s $1 {c}"),
        type=SqlType("integer"),
    )
    assert text == 'SELECT "a", "b""; DROP" FROM "s"."{t}" WHERE "%s $1 {c}"::integer = $1'


def test_the_workers_query_quotes_what_the_summary_names():
    text = shard_query(Relation('s"', "t'; --"), ['x"; DROP TABLE t; --', "y {0} %s"], has_key=True)
    assert text == (
        'SELECT "x""; DROP TABLE t; --" AS b0, "x""; DROP TABLE t; --_shape" AS s0,'
        ' "y {0} %s" AS b1, "y {0} %s_shape" AS s1 FROM "s"""."t\'; --" WHERE __dist_key__ = $1 ORDER BY buffer_id'
    )
