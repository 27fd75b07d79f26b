"""Makes the record of this version, ``records/<version>.sql.gz``; run by ``make release``, by no run of the tests."""

import gzip
import subprocess

from madlib_mop import __version__
from tests.helpers.training import one_thread
from tests.upgrade.record import RECORDS, fill


def test_make_the_record_of_this_version(db):
    one_thread()
    fill(db)
    dump = subprocess.run([db.cluster.bindir / "pg_dump", "-d", db.dsn], capture_output=True, check=True)
    RECORDS.mkdir(exist_ok=True)
    with gzip.GzipFile(RECORDS / f"{__version__}.sql.gz", "wb", mtime=0) as file:
        file.write(dump.stdout)
