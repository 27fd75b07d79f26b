"""docs/citus.md is correct: its statements run in order, on a cluster without our extension."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from psycopg2.extensions import parse_dsn

from tests.conftest import PASSWORD
from tests.helpers.citus import ANALYST, NEEDS_CITUS, URI, fresh_cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "citus.md"
FENCE = re.compile(r"```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = [*NEEDS_CITUS, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_statements_of_the_page():
    """From a new cluster to trained models, as a reader would do it."""
    page = PAGE.read_text()
    login = parse_dsn(URI)
    text = "\n".join(FENCE.findall(page))
    text = text.replace("'postgres', '...'", f"'{login['user']}', '{login['password']}'").replace(
        "'...'", f"'{PASSWORD}'"
    )
    text = re.sub(r"\banalyst\b", ANALYST, text)
    with fresh_cluster() as cluster:
        psql = [shutil.which("psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.db.dsn()]
        done = subprocess.run(psql, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
        servers = {server for (server,) in cluster.db.rows("SELECT server FROM madlib_mop.hosts")}
        assert len(servers) == len(cluster.at)
        assert {s for (s,) in cluster.db.rows("SELECT place FROM madlib_mop.segment")} == servers
        assert cluster.db.value("SELECT count(*) FROM point_models") == 2
    assert done.stdout.count("(600 rows)") == 2  # at the nodes, and at the coordinator
