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
EXPECTED = ["psycopg2 True", "psycopg2 True", "psycopg True"]


@pytest.fixture(scope="module")
def dsns(db):
    db.cluster.create_role("over_tls")
    plain = db.dsn_of("over_tls") + "?sslmode=require"
    with serving_tls(db.cluster):
        yield [plain, *(plain.replace("postgresql:", f"postgresql+{name}:") for name in ("psycopg2", "psycopg"))]


def test_a_program_may_import_tensorflow_before_the_client(dsns):
    code = _CODE.format(root=str(ROOT), imports="tensorflow, madlib_mop.client", dsns=dsns)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    assert made.stdout.splitlines() == EXPECTED


@pytest.mark.tensorflow
def test_a_program_may_import_tensorflow_after_the_client(dsns, keras, capsys, monkeypatch):
    """The tests' process has done so, for the client imports psycopg2. It imports psycopg only when that is asked for,
    so always after TensorFlow, as in the other test; here, tests may have imported it in another way."""
    modules = list(sys.modules)  # in the order of their imports
    assert modules.index("psycopg2") < modules.index("tensorflow")
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(_CODE.format(root=str(ROOT), imports="madlib_mop.client, tensorflow", dsns=dsns[:2]), {})
    assert capsys.readouterr().out.splitlines() == EXPECTED[:2]
