"""Which errors of Greenplum mean that a session has lost its process at a segment."""

from types import SimpleNamespace

import pytest

from madlib_mop.catalog.sessions.lost_segments import lost_at_segment


@pytest.mark.parametrize(
    "sqlstate, source_file, lost",
    [
        ("58M01", "cdbdispatchresult.c", True),
        ("XX000", "cdbtargeteddispatchfastpath.c", True),  # direct distpatch QE close connections unexpected
        ("XX000", "cdbdisp_async.c", True),
        ("XX000", "src/backend/cdb/dispatcher/cdbgang.c", True),
        ("XX000", "cdbmutate.c", False),
        ("XX000", "heapam.c", False),
        ("XX000", None, False),
        ("57014", "cdbdisp_async.c", False),
        (None, None, False),
    ],
)
def test_a_lost_process_is_known_by_its_sqlstate_or_by_the_code_that_found_it(sqlstate, source_file, lost):
    error = SimpleNamespace(pgcode=sqlstate, diag=SimpleNamespace(source_file=source_file))
    assert lost_at_segment(error) is lost
