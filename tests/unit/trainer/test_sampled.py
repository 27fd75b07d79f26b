"""Metrics after a visit: the trained state is the same with and without them, and they are those of an evaluation."""

import pytest

from tests.helpers.unit.cases import CASES
from tests.helpers.unit.trainer import Trainer, TrainerError

PLACE = {"op": "train", "shard": "s", "epoch": 1, "segment_id": 0}


@pytest.mark.one_case
@pytest.mark.parametrize("case", CASES[:6], ids=lambda case: case.name)
def test_they_are_those_of_an_evaluation_and_change_no_bit(case):
    with Trainer() as trainer:
        trainer.send_shard("s", *case.data(48))
        assert trainer.send_shard("sample", *case.data(48), first_rows=20)["n_rows"] == 20
        without, parts = trainer.visit(PLACE, case.request())
        answer, again = trainer.visit({**PLACE, "sample": "sample"}, case.request())
        assert answer["digest_out"] == without["digest_out"] and [*map(bytes, parts)] == [*map(bytes, again)]
        figures = trainer.evaluate(case.request(), "sample", state=again)
        assert answer["sample"] == {"loss": figures["loss"], **figures["metrics"]}
        assert answer["timing"]["sample_s"] > 0 and without["sample"] is None


def test_a_sample_that_was_not_sent_is_named():
    with Trainer() as trainer:
        trainer.send_shard("s", *CASES[0].data(48))
        with pytest.raises(TrainerError, match="shard 'sample' is not in the trainer's memory"):
            trainer.visit({**PLACE, "sample": "sample"}, CASES[0].request())
