"""The pages of docs/ are correct: the statements of each page run in order, in a database of its own."""

import subprocess
import uuid
from contextlib import closing

import pytest

from tests.helpers.pages import TOUR, every_page, examples
from tests.helpers.plain_keras import assert_keras_reads_them

pytestmark = pytest.mark.timeout(900)  # trainers start and trace slowly on a busy machine


def run_page(cluster, page: str) -> str:
    """Run all SQL of a page with psql, as a reader would; return the output."""
    script = "".join(example.text for example in examples(page, "sql"))
    if page in LARGE:
        script = f"SET madlib_mop.segments = 1;\n{script}"
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


#: Pages with many networks, each of which would be traced once for each segment.
LARGE = ("docs/automl.md", "docs/columns.md", "docs/transfer_learning.md")

# page -> text that the output of its statements must contain, for pages where running is not enough
PRINTED = {
    "docs/automl.md": (
        "the model with the lowest loss is mst_key",
        "| extend",
        "models | same_bits \n--------+-----------\n      6 |         6",
    ),
    "docs/columns.md": ("Key: all values are distinct, and the name is that of a key.", " good \n------\n t\n"),
    "docs/custom_functions.md": (
        "{accuracy,top_2_accuracy,certainty}",
        "custom function 'mistaken' failed in line 3: AttributeError",
        "weighted_error",
    ),
    "docs/model_averaging.md": ("kinds of flowers", "{2,4,6}", "| finished |"),
    "docs/predict.md": ("{accuracy}", "share_right", "p_left", "different \n-----------\n         0\n", "{0."),
    "docs/gpus.md": ("hostname",),
    "docs/exports.md": (
        " is_file \n---------\n t\n",
        " same_bytes \n------------\n t\n",
        " has_section \n-------------\n t\n",
    ),
    "docs/imports.md": (
        " same_weights \n--------------\n t\n",
        " layers_by_order \n-----------------\n               2\n",
        " layers_by_name \n----------------\n              1\n",
        " n_different \n-------------\n           0\n",
        " {accuracy}   | t\n",
    ),
    "docs/registry.md": (
        " deployed \n----------\n t\n",
        " version_now \n-------------\n           1\n",
        " version_after_rollback \n------------------------\n                      2\n",
        "       1 |                  2 | t        | t\n",
    ),
    "docs/keras2.md": ("| trained",),
    "docs/drift.md": (
        "10 % of the rows have a level that no training row has.",
        " age     | large\n city    | large\n",
        " churned | prediction | stable\n",
    ),
    "docs/fused_training.md": (
        "fused training: 5 of 6 configurations train in 2 groups, 1 separately: optimizer Nadam (mst_key 6)",
        " [1, 2, 3]\n [4, 5]\n",
        "      6 |         6",
    ),
    "docs/transfer_learning.md": (
        "       1 | t                | f\n       2 | t                | f\n",
        "     12 | ",  # how many of them used features depends on the processor
        "      2 |         2\n",
        "weights taken from public.first_model (mst_key 1): hidden, more; newly drawn: wide_head, kind",
        " t               |  2444\n",
    ),
}


#: Run by tests/integration/test_demo.py, because it continues the demo.
AFTER_THE_DEMO = "docs/first_steps.md"
#: Statements that need more than one server are run by tests/citus/test_page.py and tests/hosts/test_page.py.
PAGES = [page for page in every_page() if page not in (*TOUR, AFTER_THE_DEMO) and examples(page, "sql")]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_statements_of_a_page_run_and_print_what_it_says(cluster, page):
    printed = run_page(cluster, page)
    for text in PRINTED.get(page, ()):
        assert text in printed, printed[-3000:]


def test_pages_whose_output_is_known_have_statements():
    assert set(PRINTED) <= set(PAGES)
