"""The command register while another session changes the model: what a version has is all of the same weights."""

import dataclasses
from hashlib import sha256
from types import SimpleNamespace

import pytest

from madlib_mop.driver.drift import recorded
from madlib_mop.driver.registry import registering
from madlib_mop.errors import NotReady
from tests.unit.driver.test_registered import MODEL, RELATION

ONE = dataclasses.replace(MODEL, preprocessor=None)


class Table:
    """A session that sees a table with one model, whose weights another session may change."""

    def __init__(self):
        self.weights = b"old"
        self.copied = []

    def relation(self, name, what):
        return RELATION

    def columns(self, relation):
        return [SimpleNamespace(name="mst_key")]

    def execute(self, query, params=(), types=()):
        digest = sha256(self.weights).hexdigest()
        if "madlib_mop.setting" in query:
            return []
        if query.startswith("SELECT"):
            return [{"digest": digest, "n_bytes": len(self.weights), "recorded": digest}]
        if params[-1] != digest:
            return []
        self.copied.append(self.weights)
        return [{"version_id": params[-3]}]


@pytest.fixture
def register(monkeypatch):
    """Return a function that registers a model of a table, with a baseline whose predictions call a function."""

    def register(table: Table, meanwhile) -> int:
        monkeypatch.setattr(registering, "check_registry", lambda session: None)
        monkeypatch.setattr(registering, "read_model", lambda *_: ONE)
        monkeypatch.setattr(registering, "lineage_of", lambda *_: {})
        monkeypatch.setattr(registering, "read_ensemble", lambda *_: None)
        monkeypatch.setattr(registering, "add_version", lambda *_: ("an id", 1))
        monkeypatch.setattr(recorded, "record_predictions", lambda *_: meanwhile() or ())
        arguments = {"name": "m", "model_table": "models", "mst_key": 1, "baseline": "packed"}
        return registering.register(SimpleNamespace(arguments=arguments, session=table))

    return register


def test_a_model_that_stays_is_copied(register):
    table = Table()
    assert register(table, lambda: None) == 1 and table.copied == [b"old"]


def test_a_model_whose_weights_change_while_its_baseline_is_predicted_is_refused(register):
    table = Table()
    with pytest.raises(NotReady, match="public.models was changed while it was being read"):
        register(table, lambda: setattr(table, "weights", b"new"))
    assert table.copied == []
