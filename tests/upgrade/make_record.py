"""Writes the records of this version: ``records/<version>.sql.gz``, and those of a coordinator and its host.

Run by ``make release``, not by the tests.
"""

from madlib_mop import __version__
from tests.helpers.dumps import keep
from tests.helpers.hosts import joined, start_cluster
from tests.helpers.training import one_thread
from tests.upgrade.hosts_record import SERVER, keep_both
from tests.upgrade.hosts_record import fill as fill_hosts
from tests.upgrade.record import fill


def test_make_the_record_of_this_version(db):
    one_thread()
    fill(db)
    keep(db, __version__)


def test_make_the_record_of_a_coordinator_and_its_host(cluster):
    one_thread()
    host = start_cluster(SERVER)
    try:
        with joined(cluster, {SERVER: host}) as ours:
            fill_hosts(ours)
            keep_both(ours, __version__)
    finally:
        host.destroy()
