"""The number of a run in the advisory lock of its driver."""

import pytest

from madlib_mop.catalog.drivers import _lock_key
from madlib_mop.catalog.rows.states import lock_number


@pytest.mark.parametrize("run_id", [1, 2, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_number_of_32_bits_is_its_own(run_id):
    assert lock_number(run_id) == run_id


@pytest.mark.parametrize("run_id", [1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1])
def test_every_number_fits_and_is_not_that_of_admission(run_id):
    assert 0 < lock_number(run_id) < 2**32
    assert -(2**31) <= _lock_key(run_id) < 2**31 and _lock_key(run_id) % 2**32 == lock_number(run_id)
