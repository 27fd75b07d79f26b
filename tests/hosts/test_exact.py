"""Promise 1: one script and one seed result in bit-identical weights on one server and on three hosts."""

import pytest

from tests.helpers.engines.twelve import assert_same_bits, prepare_twelve, train_twelve

_BEGUN_EARLY = "SELECT segment_id FROM madlib_mop.visit WHERE run_id = %s AND timing ? 'rows_s'"
_PLACES = "SELECT place FROM madlib_mop.segment WHERE run_id = %s AND data_set = 'training' ORDER BY segment_id"


@pytest.mark.slow
def test_twelve_configurations_on_one_server_and_on_three_hosts(hosts):
    """4 segments here; segments on alpha, beta, gamma, alpha."""
    prepare_twelve(hosts.db)
    here = train_twelve(hosts.db, "_here", "SET madlib_mop.hosts = 'here'")
    there = train_twelve(hosts.db, "_there")
    assert_same_bits(here, there)
    assert here.metrics == there.metrics
    places = [[place for (place,) in hosts.db.rows(_PLACES, [run.run_id])] for run in (here, there)]
    assert places == [[None] * 4, ["alpha", "beta", "gamma", "alpha"]]
    begun = {segment_id for (segment_id,) in hosts.db.rows(_BEGUN_EARLY, [there.run_id])}
    assert begun == set(range(4)), "the first visits of a run begin while their rows arrive"
