"""docs/hosts.md is correct: its statements run in order, on a coordinator and three hosts."""

import re
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.conftest import PASSWORD, run
from tests.helpers.hosts import BOSS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"
FENCE = re.compile(r"```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AT_HOSTS = "-- at each host"


def psql(cluster, database: str, script: str) -> str:
    command = [cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn_for(database)]
    done = subprocess.run(command, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_statements_of_the_page(cluster, host_clusters):
    """From three new databases to trained models, and back, as a reader would do it."""
    name = f"page_{uuid.uuid4().hex[:8]}"
    everywhere = (cluster, *host_clusters.values())
    role = f"reader_{uuid.uuid4().hex[:8]}"
    blocks = FENCE.findall(PAGE.read_text())
    text = "\n".join(block for block in blocks if not block.startswith(AT_HOSTS))
    there = "\n".join(block for block in blocks if block.startswith(AT_HOSTS))
    assert there and text
    for host, host_cluster in host_clusters.items():
        address = f"host '{host}.example', dbname 'training'"
        assert address in text
        text = text.replace(address, f"host '127.0.0.1', port '{host_cluster.port}', dbname '{name}'")
    text, there = (
        re.sub(r"\banalyst\b", role, part).replace("'postgres'", f"'{BOSS}'").replace("'...'", f"'{PASSWORD}'")
        for part in (text, there)
    )
    for one in everywhere:
        run(one.connect(), f'CREATE DATABASE "{name}"')
    try:
        for host_cluster in host_clusters.values():
            psql(host_cluster, name, there)
        cluster.create_role(role)
        printed = psql(cluster, name, f"CREATE EXTENSION madlib_mop CASCADE;\n{text}")
    finally:
        for one in everywhere:
            run(one.connect(), f'DROP DATABASE "{name}" WITH (FORCE)')
        for host_cluster in host_clusters.values():
            run(host_cluster.connect(), f"DROP ROLE {role}")
    assert re.search(r"points_packed_seg1 +\| beta", printed), printed
    assert re.search(r"\n +0 \| alpha +\| +\d+\n", printed), printed
    assert printed.count("| trained") == 2
    assert "gamma" in printed
