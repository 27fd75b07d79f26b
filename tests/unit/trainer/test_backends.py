"""What each backend of Keras promises (``trainer/backends/base/interface.py``), for all that are installed."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from tests.helpers.unit.backends import INSTALLED, results_of
from tests.helpers.unit.cases import CASES

TITLES = [case.name for case in CASES]


@pytest.mark.parametrize("name", INSTALLED, scope="class")
class TestPromises:
    """One process for each backend computes the results (``tests/helpers/unit/backends.py``)."""

    def test_the_process_has_the_backend_that_was_chosen_and_no_other(self, name):
        results = results_of(name)
        assert results["names"] == [name] * 3
        assert results["loaded"] == [name]

    @pytest.mark.parametrize("title", TITLES)
    def test_visits_leave_the_bits_of_plain_keras(self, name, title):
        assert results_of(name)["visits"][title] == {"weights": True, "optimizer": True, "finite": True}

    def test_configurations_take_turns_in_one_compiled_model(self, name):
        """Learning rates and L2 strengths are arguments of the compiled passes, with the bits of constants."""
        assert results_of(name)["turns"] == [True] * 5

    @pytest.mark.parametrize("title", TITLES)
    def test_evaluations_and_predictions_are_those_of_plain_keras(self, name, title):
        found = results_of(name)["others"][title]
        assert found["evaluation"] < 1e-5 and found["prediction"] < 1e-6
