"""Promise 1 on Citus: one script and one seed result in bit-identical weights on one server and on the nodes."""

import pytest

from tests.helpers.citus import NEEDS_CITUS
from tests.helpers.engines.twelve import assert_same_bits, prepare_twelve, train_twelve

pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_twelve_configurations_on_one_server_and_on_citus(citus):
    """4 segments here, 4 shards on the nodes."""
    prepare_twelve(citus.db)
    here = train_twelve(citus.db, "_here", "SET madlib_mop.hosts = 'here'")
    there = train_twelve(citus.db, "_there")
    assert_same_bits(here, there)
    assert here.metrics == there.metrics
    query = "SELECT DISTINCT engine, place FROM madlib_mop.segment WHERE run_id = %s ORDER BY 2"
    assert citus.db.rows(query, [here.run_id]) == [("postgres", None)]
    assert citus.db.rows(query, [there.run_id]) == [("citus", server) for server in citus.at]
