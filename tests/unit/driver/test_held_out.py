"""Which rows register takes as held-out ones, and what learn says of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.certainty.scores import of_classes, of_numbers
from madlib_mop.columns.encoding.targets import Predictions
from madlib_mop.driver.learning.quality import of_held_out
from madlib_mop.driver.registry import held_out
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter

NAMES = ("models", "models_summary", "packed", "packed_summary", "packed_validation", "packed_test", "source", "member")
TABLES = {name: Relation("public", name, oid) for oid, name in enumerate(NAMES, 1)}
PACKED = [SimpleNamespace(name=name, type_sql="text") for name in ("buffer_id", "x", "x_shape")]
MODEL = SimpleNamespace(place=SimpleNamespace(relation=TABLES["models"]))
ENSEMBLE = {"ensemble": {"runs": [{"source_table": "member", "validation_table": None}]}}


class Session:
    """A session that sees tables: of a model that was trained on ``packed``, which was made from ``source``."""

    def __init__(self, own=True, qualified=True):
        self.own, self.qualified = own, qualified

    def existing(self, name, what="table"):
        if name == "hidden":
            raise InsufficientPrivilege("not yours")
        return TABLES.get(name.rpartition(".")[2].strip('"'))

    def columns(self, relation):
        if relation.name.endswith("_summary"):
            types = {"source_table": "text", **({"qualified_names": "json"} if self.qualified else {})}
            return [SimpleNamespace(name=name, type_sql=type_sql) for name, type_sql in types.items()]
        return [] if relation.name == "source" else PACKED

    def only_row(self, query, relation):
        if relation.name == "models_summary":
            return {"source_table": "public.packed", "validation_table": "public.packed_validation"}
        return {"name": "source"}

    def execute(self, query, params=(), types=()):
        return [{"is_own": self.own}]


def check(name: str, session: Session | None = None, lineage=None) -> None:
    held_out._check_unused(session or Session(), MODEL, TABLES[name], name, lineage or {})


@pytest.mark.parametrize(("name", "words"), [
    ("packed", "packed have trained the model"), ("packed_validation", "have chosen the model"),
    ("source", "from which public.packed was packed, have trained the model"),
])  # fmt: skip
def test_rows_of_training_and_of_choosing_are_refused(name, words):
    with pytest.raises(InvalidParameter, match=words) as caught:
        check(name)
    assert f"Received: {name!r}" in caught.value.message and "test => 0.2" in caught.value.hint


def test_other_rows_are_taken():
    check("packed_test")


def test_the_runs_that_are_known_count_too():
    old = Session(qualified=False)
    check("packed", old)  # its summary does not say more
    lineage = {"source_table": "public.packed", "validation_table": None, **ENSEMBLE}
    for name in ("packed", "member"):
        with pytest.raises(InvalidParameter, match="have trained the model"):
            check(name, old, lineage)


def test_a_table_of_others_is_neither_read_nor_an_error():
    check("source", Session(own=False))
    check("packed_test", Session(qualified=False), {"source_table": "hidden", "validation_table": 7})


def test_learn_says_how_wide_intervals_are_and_how_sure_their_coverage_is():
    record = of_numbers("y", "t", np.zeros(100), np.arange(100.0), False)
    row = of_held_out("m", record, Predictions(numbers=np.zeros(100)))
    assert (row["item"], row["value"]) == ("prediction interval", "+- 90")
    assert "madlib_mop.predict_interval('m', t.*, 0.9)" in row["note"] and "give or take 3.0" in row["note"]
    record = of_numbers("y", "t", np.full(100, 9.0), np.full(100, 99.0), True)
    assert of_held_out("m", record, Predictions(numbers=np.zeros(100)))["value"] == "*/ 10"


def test_learn_says_how_many_classes_sets_have():
    probabilities = np.array([[0.9, 0.1], [0.5, 0.5], [0.4, 0.6]] * 10)
    record = of_classes("y", "t", probabilities, np.array([0, 0, 1] * 10), "temperature")
    row = of_held_out("m", record, Predictions(probabilities=probabilities))
    assert (row["item"], row["value"]) == ("prediction set", "1.333") and "predict_set" in row["note"]


def test_learn_says_that_the_rows_are_too_few():
    row = of_held_out("m", of_numbers("y", "t", np.zeros(5), np.ones(5), False), Predictions(numbers=np.zeros(5)))
    assert row["value"] is None and "needs at least 9 held-out rows" in row["note"]
