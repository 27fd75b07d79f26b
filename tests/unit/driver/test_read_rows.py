"""A table is read once, without the names of its rows; after an error its column is read again, with them."""

import gc
import struct
import weakref
from dataclasses import replace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.records import Field
from madlib_mop.driver.columns import rows
from madlib_mop.driver.columns.rows import UnusableColumn, read_rows
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.session.caller import Batch, BytesColumn
from madlib_mop.errors import InvalidParameter

FLOAT8 = 701
FIELDS = [Field(name, "double precision", FLOAT8, "float8") for name in ("a", "b")]
SOURCE = SourceTable(Relation("public", "t", 1), "t", (), ("ctid",))
NAN = float("nan")


class Session:
    def execute(self, statement):
        return [{"bytes": -1}]


@pytest.fixture
def tables(monkeypatch):
    """Give each reading the next of these tables, lists of (a, b); ``readings`` has the names that each reads."""
    given, readings = [], []

    def received(session, source, fields, copied, batch_rows):
        readings.append(([field.name for field in fields], source.naming))
        for place, row in enumerate(given.pop(0)):
            values = dict(zip("ab", row, strict=True))
            record = struct.pack(">i", len(fields))
            record += b"".join(struct.pack(">Iid", FLOAT8, 8, values[field.name]) for field in fields)
            columns = {"r": BytesColumn(bytearray(record), [len(record)])}
            if source.naming:
                columns["row_ctid"] = BytesColumn(bytearray(struct.pack(">IH", 0, place + 1)), [6])
            yield Batch(1, columns)

    monkeypatch.setattr(rows, "_received", received)
    return given, readings


def test_a_table_is_read_once_without_names(tables):
    given, readings = tables
    given.append([(1.0, 2.0), (3.0, 4.0)])
    read = read_rows(Session(), SOURCE, FIELDS, 0)
    assert read.columns["b"].values.tolist() == [2.0, 4.0]
    assert readings == [(["a", "b"], ())]


def test_an_empty_table_is_refused_by_the_name_of_its_argument(tables):
    given, _ = tables
    given.append([])
    with pytest.raises(InvalidParameter, match="held_out has no rows. Received: 't'"):
        read_rows(Session(), replace(SOURCE, naming=(), what="held_out"), FIELDS, 0)


def test_the_column_of_an_error_is_read_again_to_name_the_row(tables):
    given, readings = tables
    given += [[(1.0, 2.0), (3.0, NAN)]] * 2
    with pytest.raises(UnusableColumn, match=r"column 'b' holds NaN \(row with ctid \(0,2\)\)"):
        read_rows(Session(), SOURCE, FIELDS, 0)
    assert readings == [(["a", "b"], ()), (["b"], ("ctid",))]


def test_a_row_that_was_corrected_between_two_readings_is_no_error(tables):
    given, readings = tables
    given += [[(1.0, NAN)], [(1.0, 2.0)], [(1.0, 2.0)]]
    assert read_rows(Session(), SOURCE, FIELDS, 0).columns["b"].values.tolist() == [2.0]
    assert readings[1:] == [(["b"], ("ctid",)), (["a", "b"], ("ctid",))]


def test_rows_of_the_first_reading_are_freed_before_the_second(tables, monkeypatch):
    alive, spools = [], weakref.WeakSet()

    class Spool(rows.Spool):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive.append(len(spools))
            spools.add(self)

    monkeypatch.setattr(rows, "Spool", Spool)
    given, _ = tables
    given += [[(1.0, 2.0), (3.0, NAN)]] * 2
    gc.disable()
    try:
        with pytest.raises(UnusableColumn):
            read_rows(Session(), SOURCE, FIELDS, 0)
    finally:
        gc.enable()
    assert alive == [0, 0]
