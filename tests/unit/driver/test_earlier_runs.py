"""Which recorded run wrote an output table: found by the digests of its weights, for warm starts and for resume."""

from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.rows.states import ModelState, RunState
from madlib_mop.driver.data.weights import MAX_FIELD_BYTES
from madlib_mop.driver.outputs.earlier_runs import find_earlier_runs, has_models_of, newer_run, weights_digests
from madlib_mop.schedule.bulk import AVERAGING
from tests.helpers.unit.rows import a_model, a_plan, a_run

TABLE = Relation("public", "models", 7, "r", False)
COLUMNS = [SimpleNamespace(name=n, type_sql=t) for n, t in
           (("mst_key", "integer"), ("model_weights", "bytea"), ("model_arch", "json"))]  # fmt: skip


class Runs:
    """The record of some runs: for each its number and the digests of its models by mst_key."""

    def __init__(self, *runs, **columns):
        run = a_run(a_plan(), state=RunState.FINISHED, **columns)
        self.runs = {number: replace(run, run_id=number) for number, _ in runs}
        self._models = {
            number: [
                a_model(key, run_id=number, state=ModelState.TRAINED, state_slot=1, weights_digest=digest)
                for key, digest in digests.items()
            ]
            for number, digests in runs
        }

    def newest_run(self, output, owner):
        return self.runs[max(self.runs)] if self.runs else None

    def runs_with_weights(self, output, owner, digests):
        known = [n for n, models in self._models.items() if None in digests or any(m.weights_digest in digests
                 for m in models)]  # fmt: skip
        return [self.runs[number] for number in sorted(known, reverse=True)]

    def models(self, run_id):
        return self._models[run_id]


class Table:
    """The caller's session, with an output table that has weights of these digests."""

    def __init__(self, digests, columns=COLUMNS):
        self.digests, self._columns = digests, columns

    def existing(self, name):
        return TABLE

    def columns(self, relation):
        return self._columns

    def execute(self, statement):
        return [{"mst_key": key, "digest": digest} for key, digest in self.digests.items()]


def found(record, digests, averaging=False):
    earlier = find_earlier_runs(record, TABLE, 10, digests, averaging)
    return earlier.run and earlier.run.run_id, {key: model.run_id for key, model in earlier.states.items()}


class TableWithParts(Table):
    """The same with a table of parts, by mst_key."""

    def __init__(self, digests, parts):
        super().__init__(digests)
        self.parts = parts

    def relation(self, name, any_type=False):
        return TABLE.with_suffix("_weights")

    def columns(self, relation):
        return PARTS if relation.name.endswith("_weights") else COLUMNS

    def execute(self, statement, params=(), types=()):
        if "has_keys" in statement:
            return [{"found": True, "has_keys": True}]
        if "NULL::pg_catalog.text AS digest" in statement and "WHERE" in statement:
            return [{"weights": None, "digest": None}]
        parts = self.parts.get(params[0], []) if params else []
        if "octet_length" in statement:
            return [{"part": number, "n_bytes": len(data)} for number, data in enumerate(parts)]
        if "SELECT data" in statement:
            return [{"data": parts[params[1]]}]
        return super().execute(statement)


PARTS = [SimpleNamespace(name=n, type_sql=t) for n, t in
         (("mst_key", "integer"), ("part", "integer"), ("data", "bytea"))]  # fmt: skip


def test_parts_without_a_recorded_digest_are_known_by_their_own():
    """A table of an earlier version has no column for it, and users who change weights set it to NULL."""
    session = TableWithParts({1: None, 2: "b", 3: None}, {1: [b"ab", b"c"]})
    assert weights_digests(session, TABLE, False) == [(1, sha256(b"abc").hexdigest()), (2, "b"), (3, None)]


def test_the_newest_run_with_all_weights_comes_before_newer_ones():
    record = Runs((1, {1: "a", 2: "b"}), (2, {1: "a", 2: "b"}), (3, {1: "c", 2: "b"}))
    assert found(record, {1: "a", 2: "b"}) == (2, {1: 2, 2: 2})


def test_models_of_several_runs_continue_each_from_its_own():
    record = Runs((1, {1: "a", 2: "b", 3: "c"}), (2, {1: "a", 2: "x"}), (3, {1: "y", 2: "x"}))
    assert found(record, {1: "a", 2: "x", 3: "c"}) == (2, {1: 2, 2: 2, 3: 1})


def test_without_weights_in_the_record_the_newest_run_gives_the_seed():
    assert found(Runs((1, {1: "a"}), (2, {1: "b"})), {1: "changed by hand"}) == (2, {})
    assert found(Runs(), {1: "a"}) == (None, {})


def test_runs_of_the_other_kind_are_not_looked_at():
    assert found(Runs((1, {1: "a"}), schedule=AVERAGING), {1: "a"}) == (None, {})
    assert found(Runs((1, {1: "a"}), schedule=AVERAGING), {1: "a"}, averaging=True) == (1, {1: 1})


def test_weights_that_are_not_in_the_table_are_those_of_a_large_model():
    record = Runs((1, {1: "a"}), (2, {1: "b"}))
    assert found(record, {1: None}) == (2, {})
    record._models[1] = [replace(record._models[1][0], model_bytes=MAX_FIELD_BYTES + 1)]
    assert found(record, {1: None}) == (1, {1: 1})


@pytest.mark.parametrize(
    ("digests", "has_models", "newer"),
    [
        ({1: "a", 2: "b"}, False, None),  # those of before: the call of run 2 was rolled back
        ({1: "c", 2: "d"}, True, None),
        ({1: "e", 2: "f"}, True, 3),
        ({1: "changed", 2: "too"}, True, 3),  # the newest run may have written it
    ],
)
def test_a_table_has_the_models_of_a_run_or_of_a_newer_one(digests, has_models, newer):
    record = Runs((1, {1: "a", 2: "b"}), (2, {1: "c", 2: "d"}), (3, {1: "e", 2: "f"}))
    session, run = Table(digests), record.runs[2]
    assert has_models_of(session, record, run) is has_models
    found_newer = newer_run(session, record, run)
    assert (found_newer and found_newer.run_id) == newer


def test_a_run_that_a_command_gave_another_model_is_not_yet_in_its_table():
    record = Runs((1, {1: "a", 2: "b"}))
    run = record.runs[1]
    assert has_models_of(Table({1: "a"}), record, run), "a row may have been deleted"
    assert not has_models_of(Table({1: "a"}), record, replace(run, reopened=True))
    assert has_models_of(Table({1: "a", 2: "b"}), record, replace(run, reopened=True))


def test_a_table_of_other_columns_has_no_models():
    record = Runs((1, {1: "a"}))
    assert not has_models_of(Table({}, COLUMNS[1:]), record, record.runs[1])
    assert newer_run(Table({}, COLUMNS[:1]), record, record.runs[1]) is None
