"""The pages of docs/ say nothing untrue: the statements of each run in their order, in a database of the page's own."""

import re
import subprocess
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.test_readme import ELSEWHERE, FENCE
from tests.plain_keras import assert_keras_reads_them

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = pytest.mark.timeout(900)  # trainers start and trace slowly on a busy machine


def run_page(cluster, page: str) -> str:
    """Run all SQL of a page through psql, as a reader would; give what it printed."""
    text = (DOCS / page).read_text()
    script = "".join(m[3] for m in FENCE.finditer(text) if m[2] == "sql" and m[1] != ELSEWHERE)
    name = f"docs_{uuid.uuid4().hex[:8]}"
    connection = cluster.connect()
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE madlib_mop_template')
        psql = [cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn_for(name)]
        try:
            done = subprocess.run(
                psql, input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )  # fmt: skip
            with closing(cluster.connect(name)) as of_page:
                assert_keras_reads_them(of_page)
        finally:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    connection.close()
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


# page: what must be in what its statements print, where there is more to hold than that they run
PAGES = {
    "automl.md": (
        "the best model is mst_key",
        "| extend",
        "models | same_bits \n--------+-----------\n      6 |         6",
    ),
    "custom_functions.md": (
        "{accuracy,top_2_accuracy,certainty}",
        "custom function 'mistaken' failed in line 3: AttributeError",
        "weighted_error",
    ),
    "madlib.md": (),  # a table, no statements
    "model_averaging.md": ("kinds of flowers", "{2,4,6}", "| finished |"),
    "predict.md": ("{accuracy}", "share_right", "p_left", "different \n-----------\n         0\n", "{0."),
    "gpus.md": ("hostname",),
    "citus.md": (),  # its statements need a Citus cluster: tests/citus/test_page.py
    "greenplum.md": (),  # its statements need a Greenplum: tests/greenplum
    "hosts.md": (),  # its statements need hosts: tests/hosts/test_page.py
    "keras2.md": ("| trained",),
    "fused_training.md": (
        "fused training: 5 of 6 configurations train in 2 groups, 1 apart: optimizer Nadam (mst_key 6)",
        " [1, 2, 3]\n [4, 5]\n",
        "      6 |         6",
    ),
    "transfer_learning.md": (
        "       1 | t                | f\n       2 | t                | f\n",
        "     12 |            12\n",
        "      2 |         2\n",
        "weights taken from public.first_model (mst_key 1): hidden, more; drawn anew: wide_head, kind",
        " t               |  2444\n",
    ),
}


@pytest.mark.parametrize("page", sorted(file.name for file in DOCS.glob("*.md")))
def test_the_statements_of_a_page_run_and_print_what_it_says(cluster, page):
    printed = run_page(cluster, page)
    for text in PAGES.get(page, ()):
        assert text in printed, printed[-3000:]


def test_links_of_the_pages_lead_somewhere():
    for file in DOCS.glob("*.md"):
        for link in re.findall(r"\]\(([^)]*)\)", file.read_text()):
            assert link.startswith(("http", "#")) or (file.parent / link.partition("#")[0]).exists(), (file.name, link)
