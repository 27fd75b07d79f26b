"""What an ensemble is made of, in the details of a version: read back as it was written, and checked."""

import json

import pytest

from madlib_mop.driver.registry.members import as_details, of_details
from madlib_mop.exports.card import Ensemble, Member, MemberRun

ENSEMBLE = Ensemble(
    "public.models", "loss", (Member(3, 0.75, 0.5, 7), Member(12, 0.25, None, None)),
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
