"""Random orders are the documented functions of the numbers in the record only."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from madlib_mop.trainer.seeds import model_seed, pass_permutation

_NUMBERS = st.integers(0, 2**40)


@given(_NUMBERS, _NUMBERS)
def test_model_seed_is_the_documented_function_and_fits_keras(seed, mst_key):
    found = model_seed(seed, mst_key)
    assert found == int(np.random.SeedSequence([seed, mst_key]).generate_state(1)[0])
    assert 0 <= found < 2**32


def test_model_seed_of_known_numbers_does_not_change_between_versions():
    assert [model_seed(0, 1), model_seed(0, 2), model_seed(42, 1)] == [3964924996, 3141116543, 3329053876]


def test_models_and_seeds_get_start_weights_of_their_own():
    assert len({model_seed(seed, mst_key) for seed in range(20) for mst_key in range(20)}) == 400


@given(_NUMBERS, st.integers(1, 1000), st.integers(1, 100), st.integers(0, 100), st.integers(0, 9), st.integers(0, 50))
def test_pass_permutation_is_the_documented_function(seed, mst_key, epoch, segment_id, pass_, n_rows):
    found = pass_permutation(seed, mst_key, epoch, segment_id, pass_, n_rows)
    again = np.random.default_rng([seed, mst_key, epoch, segment_id, pass_]).permutation(n_rows)
    assert found.dtype == np.int64
    assert np.array_equal(found, again)
    assert sorted(found) == list(range(n_rows))


def test_every_number_changes_the_permutation():
    base = (7, 1, 1, 0, 0)
    orders = {tuple(pass_permutation(*base, 50))}
    for position in range(len(base)):
        changed = [value + (index == position) for index, value in enumerate(base)]
        orders.add(tuple(pass_permutation(*changed, 50)))
    assert len(orders) == 1 + len(base)
