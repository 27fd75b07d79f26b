"""The client over TLS in a process that uses TensorFlow, whose library has functions of another OpenSSL."""

import subprocess
import sys

import pytest

from tests.helpers.clones import ROOT
from tests.helpers.hosts import serving_tls

_CODE = """
import sys
sys.path.insert(0, {root!r})
import {imports}
from sqlalchemy import text
from madlib_mop.client.calling import sessions
for dsn in {dsns!r}:
    engine = sessions.make_engine(dsn)
    with engine.connect() as connection:
        uses_tls = connection.execute(text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")).scalar()
    engine.dispose()
    print(engine.driver, uses_tls)
"""


@pytest.mark.parametrize("imports", ["tensorflow, madlib_mop.client", "madlib_mop.client, tensorflow"])
def test_a_program_may_import_tensorflow_before_it_connects(db, imports):
    db.cluster.create_role("over_tls")
    plain = db.dsn_of("over_tls") + "?sslmode=require"
    dsns = [plain, *(plain.replace("postgresql:", f"postgresql+{name}:") for name in ("psycopg2", "psycopg"))]
    with serving_tls(db.cluster):
        code = _CODE.format(root=str(ROOT), imports=imports, dsns=dsns)
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.splitlines() == ["psycopg2 True", "psycopg2 True", "psycopg True"]
