"""What each backend of Keras promises (``trainer/backends/base/interface.py``), for all that are installed."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from mop_backend.keras_backends import BackendName  # noqa: E402

from madlib_mop.trainer.backends.choice import environment_of  # noqa: E402
from tests.helpers.unit import captured  # noqa: E402
from tests.helpers.unit.backends import INSTALLED, results_of  # noqa: E402
from tests.helpers.unit.cases import CASES, NOT_ON_TENSORFLOW  # noqa: E402

TITLES = [case.name for case in [*CASES, *NOT_ON_TENSORFLOW]]


def visits_of(name, title):
    """Return what the visits of a case left; skip the test where plain Keras cannot train the case."""
    if name == BackendName.TENSORFLOW and title in [case.name for case in NOT_ON_TENSORFLOW]:
        pytest.skip("plain Keras on TensorFlow refuses it")
    return results_of(name)["visits"][title]


def test_pytorch_looks_for_compiled_code_where_only_root_can_write():
    """By default it would be below /tmp, where another user could put code for trainers."""
    place = os.stat(environment_of(BackendName.TORCH)["TORCHINDUCTOR_CACHE_DIR"])
    assert place.st_uid == 0 and not place.st_mode & 0o022


@pytest.mark.slow  # tests/unit/trainer/test_exact.py has faster cases
@pytest.mark.parametrize("name", INSTALLED, scope="class")
class TestPromises:
    """One process for each backend computes the results (``tests/helpers/unit/backends.py``)."""

    def test_the_process_has_the_backend_that_was_chosen(self, name):
        """And, after all visits, no other: TensorFlow alone imports JAX where that is installed, for its converters."""
        results = results_of(name)
        assert results["names"] == [name] * 3
        assert set(results["loaded"]) - {name} <= ({BackendName.JAX} if name == BackendName.TENSORFLOW else set())

    @pytest.mark.parametrize("title", TITLES)
    def test_visits_leave_the_bits_of_plain_keras(self, name, title):
        """The state moves between two trainers, and has all of the optimizer."""
        found = visits_of(name, title)
        assert found["weights"] and found["optimizer"]

    @pytest.mark.parametrize("title", TITLES)
    def test_evaluations_and_predictions_are_those_of_plain_keras(self, name, title):
        found = visits_of(name, title)
        assert found["evaluation"] < 1e-5 and found["prediction"] < 1e-6

    def test_configurations_take_turns_in_one_compiled_model(self, name):
        """Learning rates and L2 strengths are arguments of the compiled passes, with the bits of constants."""
        assert results_of(name)["turns"] == [True] * 5

    def test_jax_compiles_a_step_once_for_each_number_of_rows(self, name):
        """A model's first step, and steps after a state was loaded, have arguments like those of all others."""
        if name == BackendName.JAX:
            found = results_of(name)["compilations"]
            assert (found["step"], found["run"]) == (2, 1)
            assert found["predicted"] == 7  # for 1, 2, 4, ... 64 rows of a network that is not dense

    def test_pytorch_captures_the_steps_that_the_manual_says(self, name):
        """Those that it does not capture, and no others, are on the page of backends; all have the bits of Keras."""
        if name == BackendName.TORCH:
            found = captured.results()["steps"]
            assert {title for title, (is_captured, _) in found.items() if not is_captured} == {
                "Nadam", "accumulated gradients", "average weights that replace the weights", "dropout with a seed",
                "noise with a seed", "noise", "a rate that restarts", "a rate with a warm-up",
            }  # fmt: skip
            assert {title for title, (_, is_same) in found.items() if not is_same} == set()

    def test_pytorch_repeats_a_step_only_if_no_value_is_read(self, name):
        """A graph of a step that decides by a value, or computes with one in Python, would repeat the old decision."""
        if name == BackendName.TORCH:
            found = captured.results()["recorded"]
            assert {title for title, (_, is_same) in found.items() if not is_same} == set()
            assert {title for title, (has_graph, _) in found.items() if has_graph} == {
                "a rate that is a tensor", "changes in place", "a tensor from numbers, changed",
                "two results, one of them unused", "lists of tensors", "a view that is changed", "random numbers",
                "an error",
            }  # fmt: skip

    def test_pytorch_captures_a_step_when_it_is_worth_it(self, name):
        """Visits with a graph from the first step on, and turns whose first steps were made by Keras, were compared."""
        if name == BackendName.TORCH:
            of_visits, of_turns = results_of(name)["captures"]
            assert of_visits > len(TITLES) and CASES[0].batch_size in of_turns
