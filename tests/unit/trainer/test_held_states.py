"""A trainer loads a state into a compiled model only if its variables have other values, and trains the same bits."""

from unittest import mock

import numpy as np
import pytest

from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.data.state import FORWARD_GROUPS
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.recipe import Recipe
from madlib_mop.trainer.visits import Start, Visitor
from tests.helpers.unit.backends import _shard
from tests.helpers.unit.cases import CASES

CASE = CASES[0]
OWN_KEY, OTHER_KEY = 3, 4


@pytest.fixture
def loaded():
    """The groups of each state that is loaded."""
    real, groups = ModelVariables.load, []

    def load(self, state, wanted=GROUPS):
        groups.append(tuple(wanted))
        return real(self, state, wanted)

    with mock.patch.object(ModelVariables, "load", load):
        yield groups


@pytest.fixture(scope="module")
def shards():
    return [_shard(CASE, n_rows) for n_rows in (53, 80)]


def recipe(mst_key=OWN_KEY):
    return Recipe.read(CASE.request(mst_key=mst_key))


def start(trained):
    figures = trained.figures
    return Start(parts=list(trained.parts), digest=figures.digest_out, weights_digest=figures.weights_digest)


def test_evaluations_between_visits_load_nothing_and_change_nothing(loaded, shards):
    visitor, alone = Visitor(), Visitor()
    trained = visitor.train(recipe(), Start(), shards[0], 1, 0)
    for shard in shards:
        visitor.evaluate(recipe(), start(trained), shard)
    again = visitor.train(recipe(), start(trained), shards[1], 1, 1)
    assert loaded == []
    expected = alone.train(recipe(), start(alone.train(recipe(), Start(), shards[0], 1, 0)), shards[1], 1, 1)
    assert again.figures.digest_out == expected.figures.digest_out


def test_a_state_that_was_loaded_to_be_evaluated_is_loaded_whole_to_be_trained(loaded, shards):
    trained = Visitor().train(recipe(), Start(), shards[0], 1, 0)
    visitor = Visitor()
    visitor.train(recipe(OTHER_KEY), Start(), shards[0], 1, 0)  # leaves other values in the optimizer's variables
    found = [visitor.evaluate(recipe(), start(trained), shard) for shard in shards for _ in range(2)]
    assert loaded == [FORWARD_GROUPS]
    again = visitor.train(recipe(), start(trained), shards[1], 1, 1)
    assert loaded == [FORWARD_GROUPS, GROUPS]
    assert again.figures.digest_out == Visitor().train(recipe(), start(trained), shards[1], 1, 1).figures.digest_out
    assert found[0].loss == found[1].loss != found[2].loss


def test_another_models_visit_or_evaluation_takes_the_place_of_a_state(loaded, shards):
    visitor = Visitor()
    trained = visitor.train(recipe(), Start(), shards[0], 1, 0)
    others = visitor.train(recipe(OTHER_KEY), Start(), shards[0], 1, 0)
    visitor.evaluate(recipe(), start(trained), shards[0])
    visitor.evaluate(recipe(OTHER_KEY), start(others), shards[0])
    assert loaded == [FORWARD_GROUPS] * 2
    again = visitor.train(recipe(), start(trained), shards[1], 1, 1)
    assert again.figures.digest_out == Visitor().train(recipe(), start(trained), shards[1], 1, 1).figures.digest_out


def test_texts_of_a_model_are_parsed_once_and_do_not_stand_for_those_of_another():
    assert recipe() is recipe()
    assert recipe() is not recipe(OTHER_KEY) and recipe(OTHER_KEY).mst_key == OTHER_KEY
    long = {**CASE.request(), "custom": None, "text": " " * (1 << 18)}  # not kept
    assert Recipe.read(long) is not Recipe.read(long)


def test_a_snapshot_has_the_bytes_of_the_variables():
    variables = ModelVariables(recipe().build())
    snapshot = variables.snapshot()
    for group, specs in variables.specs().items():
        for index in range(len(specs)):
            assert np.array_equal(snapshot.read(group, index), variables.read(group, index))
    assert [bytes(part) for part in snapshot.encode(0, 1 << 20)] == [bytes(p) for p in variables.encode(0, 1 << 20)]
    assert snapshot.weights_digest() == variables.weights_digest()
