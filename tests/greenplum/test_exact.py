"""Promise 1 on Greenplum: one script and one seed result in bit-identical weights on one server and on segments."""

import pytest

from tests.helpers.engines.twelve import N_SEGMENTS, assert_same_bits, prepare_twelve, train_twelve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_twelve_configurations_on_one_server_and_on_greenplum(greenplum, db):
    """4 segments of a PostgreSQL server, 4 segments of a cluster."""
    n_segments = greenplum.value("SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")
    if n_segments != N_SEGMENTS:
        pytest.skip(f"the cluster has {n_segments} segments")
    runs = []
    for database in (db, greenplum):
        prepare_twelve(database)
        runs.append(train_twelve(database))
    assert_same_bits(*runs)
