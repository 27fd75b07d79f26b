"""The caller's session: statements that are posted, and answers in the order of their requests."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.inference.rows import array_rows
from madlib_mop.driver.packing.columns import ColumnToPack, PackingKind
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import MopError

DONE = {"columns": [], "rows": []}
ERROR = {"error": {"message": "no room", "sqlstate": "53100"}}


class Backend:
    """A channel whose answers are given in advance."""

    def __init__(self, *answers):
        self.answers, self.sent = list(answers), []

    def send(self, header, blobs=()):
        self.sent.append(header.get("sql", header["do"]))

    def receive(self):
        return self.answers.pop(0), []


def test_a_posted_statement_is_not_waited_for():
    backend = Backend(DONE, {"columns": ["a"], "rows": [[1]]})
    session = CallerSession(backend, None)
    session.post("first")
    assert len(backend.answers) == 2
    assert session.execute("second") == [{"a": 1}]
    assert backend.sent == ["first", "second"]


@pytest.mark.parametrize("then", ["flush", "execute", "post"])
def test_the_error_of_a_posted_statement_is_raised_by_what_follows(then):
    session = CallerSession(Backend(ERROR, DONE), None)
    session.post("first")
    with pytest.raises(MopError, match="no room"):
        getattr(session, then)(*([] if then == "flush" else ["second"]))


def test_posts_do_not_mix_with_the_batches_of_a_stream():
    batches = [{"n_rows": n, "columns": {"a": {"values": [n] * n}}} for n in (2, 1, 0)]
    backend = Backend(DONE, batches[0], batches[1], DONE, batches[2], DONE)
    session = CallerSession(backend, None)
    found = []
    for batch in session.stream("rows"):
        found.append(batch.values_of("a"))
        session.post("insert")
    session.flush()
    assert found == [[2, 2], [1]] and not backend.answers


class Table:
    """A channel of a backend whose rows have these sizes, in bytes; it notes how many rows each fetch asks for."""

    def __init__(self, sizes):
        self.sizes, self.asked, self._answers = list(sizes), [], []

    def send(self, header, blobs=()):
        if header["do"] == "fetch":
            self.asked.append(header["n_rows"])
            chosen, self.sizes = self.sizes[: header["n_rows"]], self.sizes[header["n_rows"] :]
            column = {"blob": 0, "lengths": chosen}
            self._answers.append(({"n_rows": len(chosen), "columns": {"a": column}}, [bytes(sum(chosen))]))
        else:
            self._answers.append((DONE, []))

    def receive(self):
        return self._answers.pop(0)


@pytest.mark.parametrize(("size", "expected"), [(10, [16, 90, 90]), (1000, [16, 1, 1]), (50, [16, 19, 19])])
def test_batches_of_large_rows_have_few_rows(size, expected):
    table = Table([size] * 300)
    batches = list(CallerSession(table, None).stream("rows", batch_rows=200, batch_bytes=1000))
    assert table.asked[:3] == expected and sum(batch.n_rows for batch in batches) == 300


def test_batches_without_a_number_of_bytes_have_all_rows():
    table = Table([1 << 10] * 300)
    assert [b.n_rows for b in CallerSession(table, None).stream("rows", batch_rows=200)] == [200, 100]


class Limits:
    """A session that notes the limits of its batches, and has no rows."""

    def stream(self, query, params, types, batch_rows, batch_bytes):
        self.noted = batch_rows, batch_bytes
        yield from ()


@pytest.mark.parametrize(
    ("kind", "expected"), [(PackingKind.IMAGE, (128, 16 << 20)), (PackingKind.ARRAY, (10_000, None))]
)
def test_rows_with_encoded_images_are_read_in_batches_of_a_number_of_bytes(kind, expected):
    """However small the images become when they are packed or predicted."""
    session, relation = Limits(), Relation("public", "photos", 1, "r", False)
    column = ColumnToPack(Column("x", "bytea", "bytea", False, False, "U", "", True), kind)
    model = SimpleNamespace(shape=SimpleNamespace(input_shapes=((8, 8, 3),)), normalizing_const=1.0)
    with array_rows(session, relation, [column], model, column.column) as reader:
        assert list(reader) == []
    assert session.noted == expected
