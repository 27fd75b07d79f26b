"""The client over TLS in a process that uses TensorFlow, whose library has functions of another OpenSSL."""

import subprocess
import sys

import pytest

from tests.helpers.clones import ROOT
from tests.helpers.hosts import serving_tls

_CODE = """
import sys
sys.path.insert(0, {root!r})
{imports}
from sqlalchemy import text
import madlib_mop.client.calling.sessions as sessions
for _ in range(3):
    engine = sessions.make_engine({dsn!r})
    with engine.connect() as connection:
        print(connection.execute(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar())
    engine.dispose()
"""


@pytest.mark.parametrize("driver", ["", "psycopg2", "psycopg"])
@pytest.mark.parametrize(
    "imports", ["import tensorflow, madlib_mop.client", "import madlib_mop.client, tensorflow"], ids=["first", "later"]
)
def test_a_program_may_import_tensorflow_before_it_connects(db, cluster, driver, imports):
    with serving_tls(cluster):
        dsn = db.dsn_of("over_tls") + "?sslmode=require"
        if driver:
            dsn = dsn.replace("postgresql:", f"postgresql+{driver}:")
        code = _CODE.format(root=str(ROOT), imports=imports, dsn=dsn)
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.split() == ["True"] * 3
