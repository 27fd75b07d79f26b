"""Earlier configurations in a search space: every spelling of a point is found, and nothing else."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.search import Locator, SearchSpace
from tests.helpers.unit.searches import COMPILE_GRID, FIT_GRID, space

SPACES = {
    "conditional": (COMPILE_GRID, FIT_GRID),
    "all kinds": (
        """{'loss': ['mse', 'Huber(delta=2.0)'], 'metrics': [['mae'], None], 'loss_weights': [[1, 2], None],
            'optimizer_params_list': [
                {'optimizer': ['Adam', 'Adam(beta_1=0.8)'], 'lr': [0.001, 0.1, 'log'], 'amsgrad': [True, False],
                 'beta_2': [0.8, 0.99, 'log_near_one']},
                {'lr': [1e-3, 1e-2], 'decay': [0.0, 1e-6, 1e-4]},
                {'optimizer': ['SGD'], 'learning_rate': ['CosineDecay(0.1, 100)', 0.5], 'momentum': [0, 0.9]}]}""",
        """{'batch_size': [3, 9, 'linear'], 'epochs': [2, 3], 'initial_epoch': [0, 1], 'shuffle': [True, False],
            'class_weight': [{0: 1.0, 1: 2.0}, 'balanced'], 'verbose': [0, 1],
            'callbacks': [[], 'TerminateOnNaN()']}""",
    ),
    "one optimizer": ("{'loss': ['mae'], 'optimizer': ['Adam(lr=0.1)', 'sgd']}", None),
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SPACES)), st.integers(0, 2**31 - 1))
def test_every_point_is_found_by_its_texts(name, seed):
    """A plan records texts: a resumed search gets the points back from them."""
    searched = SearchSpace.read([1, 2], *SPACES[name])
    locator = Locator(searched)
    for point in itertools.islice(searched.draw(seed), 5):
        found = locator.find(point.model_id, *point.texts)
        assert found is not None, point.texts
        assert _compared(found) == _compared(point)
        assert locator.find(found.model_id, *found.texts).key == found.key


def _compared(point) -> list[str]:
    """Return the texts of a point without metrics and verbose."""
    return [re.sub(r"metrics=(None|\[.*?\])|verbose=\d", "", text) for text in point.texts]


COMPILED = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01, amsgrad=False)'"


@pytest.mark.parametrize(
    ("compile_params", "fit_params"),
    [
        (COMPILED, "batch_size=8, epochs=1"),
        (COMPILED, "epochs=1, batch_size=8, verbose=2, early_stopping='patience=3'"),
        (COMPILED + ", metrics=['mae', 'accuracy'], weighted_metrics=['mae']", '{"batch_size": 8, "epochs": 1}'),
        ("optimizer=adam(amsgrad=False, learning_rate=1e-2), loss=categorical_crossentropy", "batch_size=8,epochs=1"),
        (
            '{"loss": "categorical_crossentropy", "optimizer": {"class_name": "Adam", "config":'
            ' {"learning_rate": 0.01, "amsgrad": false}}}',
            "batch_size=8, epochs=1",
        ),
    ],
)
def test_other_spellings_of_the_same_parameters_are_found(compile_params, fit_params):
    """Metrics, verbose and early_stopping do not count; the point has those of the space."""
    found = Locator(space()).find(2, compile_params, fit_params)
    assert found is not None and found.model_id == 2
    assert found.texts == (
        "optimizer='Adam(lr=0.01,amsgrad=False)',loss='categorical_crossentropy',metrics=['accuracy']",
        "batch_size=8,epochs=1",
    )


OUTSIDE = {
    "another loss": (COMPILED.replace("categorical_crossentropy", "mse"), "batch_size=8, epochs=1"),
    "above the range": (COMPILED.replace("0.01", "0.2"), "batch_size=8, epochs=1"),
    "no learning rate": (COMPILED.replace("lr=0.01, ", ""), "batch_size=8, epochs=1"),
    "another optimizer": (COMPILED.replace("Adam", "Nadam").replace(", amsgrad=False", ""), "batch_size=8, epochs=1"),
    "not in the list": (COMPILED.replace("False", "True"), "batch_size=8, epochs=1"),
    "one argument more": (COMPILED.replace("False", "False, clipnorm=1.0"), "batch_size=8, epochs=1"),
    "one parameter more": (COMPILED + ", loss_weights=[2]", "batch_size=8, epochs=1"),
    "a schedule": (COMPILED.replace("0.01", "CosineDecay(0.01, 100)"), "batch_size=8, epochs=1"),
    "batch size": (COMPILED, "batch_size=65, epochs=1"),
    "below the range": (COMPILED, "batch_size=3"),
    "epochs": (COMPILED, "batch_size=8, epochs=2"),
    "shuffle": (COMPILED, "batch_size=8, epochs=1, shuffle=False"),
    "an unknown custom loss": (COMPILED.replace("categorical_crossentropy", "mine"), "batch_size=8, epochs=1"),
    "unreadable": ("c", "f"),
}


@pytest.mark.parametrize(("compile_params", "fit_params"), OUTSIDE.values(), ids=OUTSIDE)
def test_what_is_not_in_the_space_is_not_found(compile_params, fit_params):
    assert Locator(space()).find(1, compile_params, fit_params) is None


def test_a_custom_loss_is_found_if_it_is_the_same_function():
    grid = "{'loss': ['mine', 'mse'], 'optimizer': ['sgd']}"
    locator = Locator(SearchSpace.read([1], grid, None))
    assert locator.find(1, "loss='mine', optimizer='sgd'", "", ["mine"]) is not None
    assert locator.find(1, "loss='mine', optimizer='sgd'", "", []) is None
    assert locator.find(1, "loss='mse', optimizer='SGD()'", None, []) is not None
