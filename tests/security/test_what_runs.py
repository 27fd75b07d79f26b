"""Promise 7: no input of a user is executed as code, and no function of ours reads a file for a user."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from madlib_mop.models.keras_layers import (
    ACTIVATIONS,
    CONSTRAINTS,
    INITIALIZERS,
    LAYERS,
    OPERATIONS,
    REGULARIZERS,
)
from tests.helpers.inference import User
from tests.helpers.security.attacks import hold, refusal, refusal_of, user
from tests.helpers.training import load_digits, pack, script
from tests.helpers.unit.dangers import REFUSALS, Marker, dangerous
from tests.helpers.unit.documents import dense, keras_3

ALICE = "alice"
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"
FIT = "SELECT madlib.madlib_keras_fit_multiple_model('train', %s, %s, 1)"
PARAMETERS = {
    "optimizer": "loss='mse', optimizer=__import__('os').system('touch {}')",
    "loss": "loss=open('{}', 'w'), optimizer='Adam()'",
    "loss by module": "loss='os.system', optimizer='Adam()'",
    "metrics": "loss='mse', optimizer='Adam()', metrics=[eval('1')]",
    "text behind": "loss='mse', optimizer='Adam()'; open('{}', 'w')",
    "lambda": "loss=lambda x, y: open('{}', 'w'), optimizer='Adam()'",
    "attribute": "loss='mse', optimizer=Adam.__class__.__base__.__subclasses__()",
}


@pytest.fixture(scope="module")
def bench(db):
    user(db, ALICE)
    load_digits(db, 40, 20)
    db.rows("GRANT SELECT ON ALL TABLES IN SCHEMA public TO alice; GRANT CREATE ON SCHEMA public TO alice")
    pack(db, 1, role=ALICE)
    return db


@pytest.fixture(scope="module")
def marker(db):
    """A file that code from an architecture would create, at a path where the server's user can."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    db.rows(f"COPY (SELECT 1) TO '{directory / 'possible'}'")
    assert (directory / "possible").exists()
    yield Marker(directory / "marker")
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def refused_before_any_work(db, marker, statement: str, parameters: list) -> tuple[str, str]:
    """Assert that alice's call is rejected, records nothing and creates no file; return SQLSTATE and message."""
    n_runs = db.value("SELECT count(*) FROM madlib_mop.run")
    error = refusal_of(db, statement, parameters, ALICE)
    assert db.value("SELECT count(*) FROM madlib_mop.run") == n_runs
    assert not marker.path.exists()
    return error.sqlstate, error.message


def write_configuration(db, name: str, document: dict, compile_params: str) -> str:
    """Write, as alice, a model selection table of one configuration by hand; return its name."""
    script(
        db,
        f"CREATE TABLE {name}_arch (model_id integer, model_arch json, model_weights bytea)",
        f"CREATE TABLE {name} (mst_key integer, model_id integer, compile_params text, fit_params text)",
        f"CREATE TABLE {name}_summary AS SELECT '{name}_arch' AS model_arch_table, NULL::text AS object_table",
        role=ALICE,
    )
    db.rows(f"INSERT INTO {name}_arch VALUES (7, %s, NULL)", [json.dumps(document)], ALICE)
    db.rows(f"INSERT INTO {name} VALUES (1, 7, %s, 'batch_size=8')", [compile_params], ALICE)
    return name


@pytest.mark.parametrize("name", ["Lambda", "allowed class of another module"])
def test_an_architecture_that_would_run_code_is_refused(bench, marker, name):
    table = write_configuration(bench, f"mst_{name.split()[0].lower()}", dangerous(marker)[name], COMPILE)
    sqlstate, message = refused_before_any_work(bench, marker, FIT, ["never", table])
    assert sqlstate in ("0A000", "22P02", "22023")
    assert message.startswith("madlib_keras_fit_multiple_model: model_arch_table: model_id 7: "), message
    assert REFUSALS[name] in message


def test_what_architectures_are_made_of_is_in_the_file():
    """A newly allowed layer appears in review: can it read a file, run code or use the network?"""
    names = {"layer": LAYERS, "operation": OPERATIONS, "initializer": INITIALIZERS, "regularizer": REGULARIZERS}
    names |= {"constraint": CONSTRAINTS, "activation": ACTIVATIONS}
    hold("layers.txt", "".join(f"{kind} {name}\n" for kind, found in names.items() for name in sorted(found)))


@pytest.mark.parametrize("number", range(len(PARAMETERS)), ids=list(PARAMETERS))
def test_parameters_that_look_like_code_are_refused(bench, marker, number):
    compile_params = list(PARAMETERS.values())[number].format(marker.path)
    table = write_configuration(bench, f"mst_p{number}", keras_3(dense()), compile_params)
    sqlstate, message = refused_before_any_work(bench, marker, FIT, ["never", table])
    assert sqlstate in ("22023", "22P02", "0A000")
    assert message.startswith("madlib_keras_fit_multiple_model: model_selection_table: mst_key 1: "), message


def test_a_model_table_written_by_hand_runs_no_code_either(bench, marker):
    class Document:
        """The part of a model that is written into a model table."""

        def get_weights(self):
            return [np.zeros(3, np.float32)]

        def to_json(self):
            return json.dumps(dangerous(marker)["Lambda"])

    alice = User(bench.connect(ALICE))
    alice.write_models("by_hand", {1: Document()})
    for function, arguments in (
        ("madlib_keras_evaluate", "'by_hand', 'train', 'result', mst_key := 1"),
        ("madlib_keras_predict", "'by_hand', 'train_rows', 'id', 'x', 'result', mst_key := 1"),
    ):
        sqlstate, message = refused_before_any_work(bench, marker, f"SELECT madlib.{function}({arguments})", None)
        assert (sqlstate, message.startswith(f"{function}: ")) == ("0A000", True)
    alice.connection.close()


def test_help_gives_our_texts_and_no_other_file(bench):
    connection = bench.connect(ALICE)
    for topic in ("../../../../../../../../etc/hostname", "/etc/hostname", "../commands/help", "", None, ["usage"]):
        error = refusal(connection, "SELECT madlib_mop_calls.call('help', %s, NULL)", [json.dumps({"topic": topic})])
        assert error.sqlstate == "22023"
        assert error.message == f"help: there is no help for this topic. Received: {topic!r}"
    connection.close()


def test_no_module_is_reached_by_a_functions_name(bench):
    connection = bench.connect(ALICE)
    for function in ("os:system", "runs:resume", "..runs", "help:show_help", ""):
        error = refusal(connection, "SELECT madlib_mop_calls.call(%s, '{}', NULL)", [function])
        assert (error.sqlstate, f"there is no command {function!r}" in error.message) == ("0A000", True)
    connection.close()
