"""Every page of the manual is correct and runs alone: its SQL and Python run in order, in a database of its own."""

import subprocess
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers.pages import AFTER_THE_DEMO, PYTHON_ELSEWHERE, every_page, examples, psql_script
from tests.helpers.plain_keras import assert_keras_reads_them

pytestmark = pytest.mark.timeout(900)  # trainers start and trace slowly on a busy machine


def run_page(cluster, page: str, folder: Path) -> str:
    """Run all SQL and Python of a page with psql, as a reader would; return the output."""
    name = f"docs_{uuid.uuid4().hex[:8]}"
    connection = cluster.connect()
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE madlib_mop_template')
        script = psql_script(page, cluster.dsn_for(name), folder)
        if page in LARGE:
            script = f"SET madlib_mop.segments = 1;\n{script}"
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
    assert done.returncode == 0 and "\nfailed: " not in done.stdout, done.stdout[-3000:]
    return done.stdout


#: Pages with many networks, each of which would be traced once for each segment.
LARGE = ("README.md", "docs/analyst.md", "docs/automl.md", "docs/columns.md")

# page -> text that the output of its statements must contain, for pages where running is not enough
PRINTED = {
    "README.md": (" id | leaves \n",),
    "docs/administration.md": ("max_runs", "trainer_memory_mb"),
    "docs/analyst.md": (" good \n------\n t\n", " importance ", " reasons ", "ensemble_metric"),
    "docs/applications.md": (" sign \n------\n 1\n", " sign \n------\n 0\n", "\nsign 1\n", "| waiting |"),
    "docs/automl.md": (
        "the model with the lowest loss is mst_key",
        "| extend",
        "models | same_bits \n--------+-----------\n      6 |         6",
    ),
    "docs/columns.md": ("Key: all values are distinct, and the name is that of a key.", " good \n------\n t\n"),
    "docs/exactness.md": ("\nsame bits\n",),
    "docs/faster.md": (
        "hostname",
        "fused training: 5 of 6 configurations train in 2 groups, 1 separately: optimizer Nadam (mst_key 6)",
        " [1, 2, 3]\n [4, 5]\n",
        "      6 |         6",
    ),
    "docs/files.md": (
        " is_file \n---------\n t\n",
        " same_bytes \n------------\n t\n",
        " has_section \n-------------\n t\n",
        " same_weights \n--------------\n t\n",
        " layers_by_order \n-----------------\n               2\n",
        " layers_by_name \n----------------\n              1\n",
        " n_different \n-------------\n           0\n",
        " {accuracy}   | t\n",
    ),
    "docs/predict.md": ("{accuracy}", "share_right", "p_left", "different \n-----------\n         0\n", "{0."),
    "docs/registry.md": (
        " deployed \n----------\n t\n",
        " version_now \n-------------\n           1\n",
        " version_after_rollback \n------------------------\n                      2\n",
        "       1 |                  2 | t        | t\n",
        "10 % of the rows have a level that no training row has.",
        " age     | large\n city    | large\n",
        " churned | prediction | stable\n",
    ),
    "docs/runs.md": ("models | same_bits \n--------+-----------\n      3 |         3",),
    "docs/training.md": (
        "       1 | t                | f\n       2 | t                | f\n",
        "      6 | ",  # how many of them used features depends on the processor
        "weights taken from fits.models (mst_key 1): hidden, more; newly drawn: wide_head, kind",
        " t               |  2444\n",
        "kinds of points",
        "{2,4,6}",
        "{accuracy,top_2_accuracy,certainty}",
        "custom function 'mistaken' failed in line 3: AttributeError",
        "weighted_error",
    ),
}


#: The page after the demo is run by test_demo.py. Statements that need more than one server are run by
#: tests/citus/test_page.py and tests/hosts/test_page.py.
PAGES = [
    page
    for page in every_page()
    if page != AFTER_THE_DEMO
    and (examples(page, "sql") or (examples(page, "python") and page not in PYTHON_ELSEWHERE))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_alone_and_print_what_it_says(cluster, page, tmp_path):
    printed = run_page(cluster, page, tmp_path)
    for text in PRINTED.get(page, ()):
        assert text in printed, printed[-3000:]


def test_pages_whose_output_is_known_have_statements():
    assert set(PRINTED) <= set(PAGES)
