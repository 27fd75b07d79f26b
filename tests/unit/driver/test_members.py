"""What an ensemble is made of, and which run trained a model, in the details of a version: read back as they were
written, and checked."""

import json
from math import inf
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.exports.origin import ExportSource, read_source
from madlib_mop.driver.inference.model import RegisteredVersion
from madlib_mop.driver.registry.members import as_details, of_details
from madlib_mop.errors import InvalidParameter
from madlib_mop.reports.card import CardMember, CardOrigin, CardVisit, Ensemble, MemberRun

ENSEMBLE = Ensemble(
    "public.models", "loss", (CardMember(3, 0.75, 0.5, 7), CardMember(12, 0.25, None, None)),
    (MemberRun(7, "public.train", None, 100),), {"validation_loss": 0.25, "validation_accuracy": None},
)  # fmt: skip


def written(**fields) -> dict:
    return json.loads(json.dumps(as_details(ENSEMBLE))) | fields


def test_an_ensemble_is_read_as_it_was_written():
    assert of_details(written()) == ENSEMBLE


@pytest.mark.parametrize("details", [
    None, 7, [], {}, "x", written(members=None), written(members=[{}]), written(members=[{"mst_key": 1}]),
    written(runs=[7]), written(runs=[{"run_id": 1}]), written(metrics=[]), written(metrics={"validation_loss": "much"}),
    written(members=[{"mst_key": 1, "share": 1, "metric": "x|y", "run_id": 1}]),
    written(members=[{"mst_key": 1, "share": 1, "metric": 1, "run_id": {}}]),
])  # fmt: skip
def test_details_that_are_no_ensemble_are_none(details):
    assert of_details(details) is None


VISIT = {"epoch": 1, "segment_id": 0, "n_rows": 9, "rows_digest": "aa", "ended_at": "2026-01-02T03:04:05+00:00"}
LINEAGE = {
    "kind": "automl", "source_table": "public.train", "validation_table": None, "seed": 1, "parent_run_id": None,
    "cloned_from": {"mst_key": 3, "epoch": 1}, "versions": {"keras": "3"}, "visits": [VISIT],
}  # fmt: skip
DETAILS = {
    "name": "m", "version": 3, "registered_by": "ann", "registered_at": "2026-01-02T03:04:05+00:00", "note": None,
    "digest": "ab", "n_bytes": 4, "run_id": 7, "epoch": 2, "lineage": LINEAGE,
    "metrics": {"training_loss": 0.5, "training_auc": "Infinity"},
}  # fmt: skip


def source(text: str) -> ExportSource:
    place = RegisteredVersion("model_card", "m@3", Relation("public", "models"), "SEE", text)
    return read_source(None, SimpleNamespace(place=place))


def test_the_run_is_read_as_it_was_written():
    assert source(json.dumps(DETAILS)).origin == CardOrigin(
        7, 2, "automl", "public.train", None, 1, None, 3, {"keras": "3"}, {"training_loss": 0.5, "training_auc": inf},
        (CardVisit(1, 0, 9, "aa"),),
    )  # fmt: skip


@pytest.mark.parametrize("details", [
    {"run_id": None}, {"lineage": 5}, {"lineage": None}, {"metrics": [1]}, {"metrics": {"training_loss": "much"}},
    {"metrics": {"training_loss": 10**400}}, *({"lineage": LINEAGE | more} for more in (
        {"visits": 1}, {"visits": [1]}, {"visits": [{**VISIT, "n_rows": None}]}, {"visits": [{"epoch": 1}]},
        {"versions": [1]}, {"cloned_from": 3}, {"seed": "x"},
    )),
])  # fmt: skip
def test_details_without_a_readable_run_have_no_origin(details):
    found = source(json.dumps(DETAILS | details))
    assert found.origin is None and found.digest == "ab"


def test_details_that_cannot_be_parsed_are_one_clear_error():
    with pytest.raises(InvalidParameter, match="the details of m@3 cannot be read: "):
        source(json.dumps(DETAILS)[:-1] + ', "more": 1' + "0" * 5000 + "}")
