"""The first promise on Greenplum: one script, one seed; bit-identical weights on one server and at the segments."""

import pytest

from tests.helpers.engines.twelve import N_SEGMENTS, assert_same_bits, prepare_twelve, train_twelve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_twelve_configurations_on_one_server_and_on_greenplum(greenplum, db):
    """On 4 segments of a PostgreSQL server, and on a cluster's 4."""
    n_segments = greenplum.value("SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")
    if n_segments != N_SEGMENTS:
        pytest.skip(f"the cluster has {n_segments} segments")
    runs = []
    for database in (db, greenplum):
        prepare_twelve(database)
        runs.append(train_twelve(database))
    assert_same_bits(*runs)
