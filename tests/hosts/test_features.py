"""Averaging, searches and custom functions on hosts, with the same results as on one server."""

import pytest

from tests.helpers.remote import prepare
from tests.helpers.training import digests, weights

pytestmark = pytest.mark.slow
FUNCTIONS = "functions"
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics='top_3_accuracy'"
GRID = (
    "{'loss': ['categorical_crossentropy'], 'metrics': [['top_3_accuracy']],"
    " 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}"
)


@pytest.fixture(scope="module")
def bench(hosts):
    prepare(hosts)
    hosts.db.rows("SELECT madlib.load_top_k_accuracy_function(%s, 3)", [FUNCTIONS])
    (digest,) = hosts.db.rows(f"SELECT encode(sha256(object), 'hex') FROM madlib.{FUNCTIONS}")[0]
    for at in hosts.at.values():
        at.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('accepted_functions', %s)", [f"0, {digest}"])
    return hosts


def metrics(db, run_id: int) -> list[tuple]:
    """Return all metrics of a run."""
    query = "SELECT mst_key, epoch, data_set, ordinal, name, value FROM madlib_mop.metric WHERE run_id = %s"
    return db.rows(f"{query} ORDER BY 1, 2, 3, 4", [run_id])


def newest(db) -> int:
    """Return the number of the newest run."""
    return db.value("SELECT max(run_id) FROM madlib_mop.run")


def test_custom_functions(bench):
    """The trainers on the hosts compute a custom metric, in their sandboxes."""
    db, found = bench.db, []
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'custom', '{1,2}', ARRAY[%s]::varchar[],"
        " '{\"batch_size=16, epochs=1\"}'::varchar[], %s)",
        [COMPILE, FUNCTIONS],
    )
    for suffix in ("_here", "_2"):
        db.rows(
            f"SELECT madlib.madlib_keras_fit_multiple_model('train{suffix}', 'custom{suffix}', 'custom', 1,"
            f" validation_table := 'valid{suffix}', seed := 4, schedule := 'rotation')"
        )
        found.append((metrics(db, newest(db)), weights(db, f"custom{suffix}")))
    assert found[0] == found[1] and found[0][0]
    assert {row[4] for row in found[0][0]} >= {"top_3_accuracy"}


def test_a_search(bench):
    """Hyperband makes the same decisions on hosts and on one server, from the same metrics."""
    db, found = bench.db, []
    for suffix in ("_here", "_2"):
        db.rows(
            f"SELECT madlib.madlib_keras_automl('train{suffix}', 'search{suffix}', 'arch', 'search{suffix}_mst',"
            " '{1}', %s, %s, 'hyperband', 'R=2, eta=2', random_state := 3, object_table := %s,"
            f" validation_table := 'valid{suffix}')",
            [GRID, "{'batch_size': [16], 'epochs': [1]}", FUNCTIONS],
        )
        found.append((metrics(db, newest(db)), weights(db, f"search{suffix}")))
    assert found[0] == found[1] and found[0][0]


def test_average_and_evaluation_at_hosts(bench):
    """Model averaging: segments train on hosts, the coordinator averages; the same bits as on one server."""
    db, found = bench.db, {}
    for suffix in ("_here", "_2"):
        table = f"averaged{suffix}"
        db.rows(
            f"SELECT madlib.madlib_keras_fit('train{suffix}', '{table}', 'arch', 1, $a$loss='categorical_crossentropy',"
            " optimizer='SGD(lr=0.05)', metrics=['accuracy']$a$, 'batch_size=16, epochs=1', 2,"
            f" validation_table := 'valid{suffix}', seed := 3)"
        )
        found[suffix] = digests(db, newest(db)), metrics(db, newest(db))
    assert found["_2"] == found["_here"]
