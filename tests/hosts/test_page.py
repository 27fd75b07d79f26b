"""docs/hosts.md is correct: its statements run in order, on a coordinator and three hosts."""

import contextlib
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.conftest import PASSWORD, run
from tests.helpers.hosts import BOSS, serving_tls

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
    role = f"reader_{uuid.uuid4().hex[:8]}"
    blocks = FENCE.findall(PAGE.read_text())
    text = "\n".join(block for block in blocks if not block.startswith(AT_HOSTS))
    there = "\n".join(block for block in blocks if block.startswith(AT_HOSTS))
    assert there and text
    with contextlib.ExitStack() as stack:
        files = {host: stack.enter_context(serving_tls(host_cluster)) for host, host_cluster in host_clusters.items()}
        printed = follow(cluster, host_clusters, name, role, there, in_place(text, host_clusters, name, files))
    assert re.search(r"points_packed_seg1 +\| beta", printed), printed
    assert re.search(r"\n +0 \| alpha +\| +\d+\n", printed), printed
    assert printed.count("| trained") == 2
    assert "gamma" in printed


def in_place(text: str, host_clusters, name: str, files) -> str:
    """Return the page's statements with the addresses and certificates of the tests' hosts."""
    for host, host_cluster in host_clusters.items():
        address = f"host '{host}.example', dbname 'training'"
        proof = "sslmode 'verify-full', sslrootcert '/etc/ssl/certs/ca-certificates.crt'"
        begin, found, rest = text.partition(address)
        assert found and proof in rest.splitlines()[1]
        there = f"host '127.0.0.1', port '{host_cluster.port}', dbname '{name}'"
        text = begin + there + rest.replace("/etc/ssl/certs/ca-certificates.crt", str(files[host]), 1)
    return text


def follow(cluster, host_clusters, name: str, role: str, there: str, text: str) -> str:
    """Run the statements for each host and for the coordinator in new databases; return what the latter print."""
    everywhere = (cluster, *host_clusters.values())
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
    return printed
