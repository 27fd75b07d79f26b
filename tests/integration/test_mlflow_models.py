"""`madlib-mop mlflow` with models: MLflow's own functions load them, and they predict what the database predicts."""

import re
import shutil
from contextlib import closing

import numpy as np
import pytest

from madlib_mop.client import connect
from madlib_mop.errors import MopError
from madlib_mop.trackers import exported
from madlib_mop.trackers.following import RunSession
from tests.helpers.columns import train_churn
from tests.helpers.commands import in_background
from tests.helpers.exports import networks
from tests.helpers.faults import wait_for
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.invented import invent_run
from tests.helpers.pages import examples
from tests.helpers.registry import number_net, write_numbers
from tests.helpers.security.attacks import user as make_user
from tests.helpers.trackers import call_here, empty_mlflow, name_output, status_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OWNER, VIEWER, READER, LANDLORD = "owner_of_logged", "viewer_of_logged", "reader_of_logged", "landlord_of_logged"


@pytest.fixture(scope="module")
def made_store(tmp_path_factory):
    """An empty database of MLflow, which takes seconds to make."""
    return empty_mlflow(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def uri(made_store, tmp_path, monkeypatch):
    """The address of an empty database, in the directory of the test; MLflow's own functions use it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", found := f"sqlite:///{shutil.copy(made_store, tmp_path / 'mlflow.db')}")
    return found


@pytest.fixture
def client(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


@pytest.fixture(scope="module")
def user(db, keras):
    with closing(db.connect()) as connection:
        yield User(connection)


@pytest.fixture(scope="module")
def churn(db, user):
    """A run of ordinary columns with NULLs, levels, dates and decimals, and its rows as a frame."""
    user.run_id = train_churn(db, 1).run_id
    with connect(db.dsn) as database:
        user.frame = database.query("SELECT * FROM customers ORDER BY id")
    user.frame["age"] = user.frame["age"].astype("Int64")
    return user


@pytest.fixture(scope="module")
def owned(db, keras):
    """A run of a role of its own, with two models, which another role may see."""
    for role in (OWNER, READER):
        make_user(db, role)
    db.cluster.create_role(VIEWER)
    for role in (VIEWER, READER):
        db.rows(f"SELECT madlib_mop.grant_read('{role}', '{OWNER}')")
    with closing(db.connect(OWNER)) as connection:
        owner = User(connection)
        owner.rows(f"SET search_path = {OWNER}")
        write_numbers(owner, keras, "numbers", [1.0, 2.0])
        owner.rows(f"GRANT USAGE ON SCHEMA {OWNER} TO {READER};"
                   f" GRANT SELECT ON numbers, numbers_info, numbers_summary TO {READER}")  # fmt: skip
    db.run_id = invent_run(db, n_models=2, owner=OWNER)
    name_output(db, db.run_id, OWNER, "numbers")
    return db


def files_of(client, run_id: str) -> set[str]:
    return {file.path.rpartition("/")[2] for file in client.list_artifacts(run_id, "model")}


def test_rows_of_a_frame_are_predicted_as_rows_of_the_table(churn, db, capsys, uri, client):
    import mlflow

    number = call_here(capsys, db.dsn, "mlflow", churn.run_id)
    assert files_of(client, number) >= {"MLmodel", "model.keras", "preprocessor.json", "signature.json", "README.md"}
    model = mlflow.pyfunc.load_model(f"runs:/{number}/model")
    classes = [c for (c,) in churn.rows("SELECT madlib_mop.predict_class('churn', 1, c) FROM customers c ORDER BY id")]
    assert model.predict(churn.frame).tolist() == classes
    expected = np.array([row for (row,) in churn.rows(
        "SELECT madlib_mop.predict('churn', 1, c) FROM customers c ORDER BY id")], np.float32)  # fmt: skip
    found = model.predict(churn.frame, params={"method": "outputs"})
    assert np.array_equal(found["churned"], expected)
    proba = model.predict(churn.frame, params={"method": "predict_proba"})
    assert list(proba.columns) == ["no", "yes"] and np.array_equal(proba.to_numpy(), expected)
    odd = churn.frame.head(3).assign(city="Atlantis", tier=None, age=None)  # columns without values
    churn.rows("CREATE TEMP VIEW odd AS SELECT id, NULL::integer AS age, income, NULL::text AS tier, 'Atlantis'::text"
               " AS city, active, joined, seen FROM customers ORDER BY id LIMIT 3")  # fmt: skip
    assert model.predict(odd).tolist() == [
        c for (c,) in churn.rows("SELECT madlib_mop.predict_class('churn', 1, o) FROM odd o ORDER BY id")
    ]


def test_bad_rows_are_errors(churn, db, capsys, uri):
    import mlflow

    number = call_here(capsys, db.dsn, "mlflow", churn.run_id)
    model = mlflow.pyfunc.load_model(f"runs:/{number}/model")
    with pytest.raises(Exception, match="age"):
        model.predict(churn.frame.drop(columns="age"))
    with pytest.raises(Exception, match="column 'age'"):
        model.predict(churn.frame.assign(age="old"))
    with pytest.raises(Exception, match="method must be one of predict, predict_proba, outputs. Received: 'close'"):
        model.predict(churn.frame, params={"method": "close"})


def test_the_network_is_loaded_by_mlflow_keras_and_each_model_is_there_with_all(churn, db, capsys, uri, client):
    import mlflow

    number = call_here(capsys, db.dsn, "mlflow", churn.run_id, "--models", "all")
    (child,) = client.search_runs([client.get_run(number).info.experiment_id],
                                  f"tags.`mlflow.parentRunId` = '{number}'")  # fmt: skip
    weights = churn.value("SELECT model_weights FROM churn")
    for run_id in (number, child.info.run_id):
        network = mlflow.keras.load_model(f"runs:/{run_id}/model")
        assert b"".join(w.astype(np.float32).tobytes() for w in network.get_weights()) == bytes(weights)


@pytest.mark.parametrize("name", ["dense", "inputs_and_outputs", "embedding"])
def test_arrays_are_predicted_as_in_the_database(db, user, keras, capsys, uri, name):
    import mlflow

    network = networks(keras)[name]
    dependent = [Dependent(f"y{i}", values=None, vartype="real[]") for i in range(network.n_outputs)]
    facts = ModelTable(
        compile_params="loss='mse', optimizer='sgd'", metrics_type=None, loss_type="mse",
        independent=[f"x{i}" for i in range(len(network.xs))], dependent=dependent, normalizing_const=2.0,
    )  # fmt: skip
    user.write_models(name, {1: network.model}, facts)
    name_output(db, run_id := invent_run(db, n_models=1), "public", name)
    db.rows(f'UPDATE madlib_mop.run SET owner = (SELECT relowner FROM pg_class WHERE oid = \'"{name}"\'::regclass)'
            " WHERE run_id = %s", [run_id])  # fmt: skip
    model = mlflow.pyfunc.load_model(f"runs:/{call_here(capsys, db.dsn, 'mlflow', run_id)}/model")
    specs = model.metadata.get_input_schema().inputs
    xs = [(2 * x).astype(spec.type) for spec, x in zip(specs, network.xs, strict=True)]
    data = xs[0] if len(xs) == 1 else {spec.name: x for spec, x in zip(specs, xs, strict=True)}
    found = model.predict(data, params={"method": "outputs"})
    slots = ", ".join(["madlib_mop.array_bytes(CAST(%s AS real[]))"] * len(xs))
    expected = user.value(f"SELECT madlib_mop.predict(%s, 1, ARRAY[{slots}])", name, *[x.tolist() for x in xs])
    assert np.array_equal(np.concatenate(list(found.values()), axis=1), np.array(expected, np.float32))


def test_the_table_of_another_role_is_not_read_without_a_request(owned, capsys, uri, client):
    """The owner of the run has put a view in the place of its table: its code would run as a superuser."""
    owned.rows(f"CREATE TABLE {OWNER}.caught (name name); GRANT INSERT ON {OWNER}.caught TO PUBLIC")
    with closing(owned.connect(OWNER)) as connection:
        User(connection).rows(
            f"SET search_path = {OWNER}; CREATE FUNCTION catch() RETURNS boolean LANGUAGE plpgsql AS"
            f" $$BEGIN INSERT INTO {OWNER}.caught VALUES (current_user); RETURN true; END$$;"
            " CREATE VIEW trap AS SELECT * FROM numbers WHERE catch();"
            " CREATE TABLE trap_info AS TABLE numbers_info; CREATE TABLE trap_summary AS TABLE numbers_summary"
        )
    name_output(owned, run_id := invent_run(owned, n_models=2, owner=OWNER), OWNER, "trap")
    owned.rows(f"TRUNCATE {OWNER}.caught")
    status, number, line = status_here(capsys, owned.dsn, "mlflow", run_id)
    assert status == 0 and owned.rows(f"SELECT * FROM {OWNER}.caught") == []
    assert line == (
        f"madlib-mop: no model is written: {OWNER}.trap belongs to role {OWNER}, whose code could run when it is read."
        " --models best reads it"
    )
    assert [file.path for file in client.list_artifacts(number)] == ["report.html"]


@pytest.fixture
def lent(owned):
    """Tables of OWNER in the schema of another role, LANDLORD, who may drop them; the run and OWNER's session."""
    owned.rows(f"DROP SCHEMA IF EXISTS {LANDLORD} CASCADE")
    make_user(owned, LANDLORD)
    owned.rows(f"GRANT ALL ON SCHEMA {LANDLORD} TO {OWNER}")
    with closing(owned.connect(OWNER)) as connection:
        for suffix in ("", "_info", "_summary"):
            User(connection).rows(f"CREATE TABLE {LANDLORD}.lent{suffix} AS TABLE {OWNER}.numbers{suffix}")
    name_output(owned, run_id := invent_run(owned, n_models=2, owner=OWNER), LANDLORD, "lent")
    with RunSession(owned.dsn_of(OWNER), run_id) as session:
        yield session


def replace_lent(db, name: str) -> None:
    """Put a view of LANDLORD in the place of a table in their schema."""
    with closing(db.connect(LANDLORD)) as connection:
        User(connection).rows(
            f"SET search_path = {LANDLORD}; DROP TABLE {name}; CREATE VIEW {name} AS SELECT 1 AS mst_key;"
            f" GRANT SELECT ON {name} TO {OWNER}"
        )


@pytest.mark.parametrize("name", ["lent", "lent_info", "lent_summary"])
def test_what_was_replaced_after_the_table_was_found_is_not_read(lent, owned, name):
    record = lent.read()
    table = lent.output_table(record.run, of_others=False)
    assert lent.export(table, record.models[0])
    replace_lent(owned, name)
    expected = f"{LANDLORD}.{name} belongs to role {LANDLORD}, whose code could run when it is read."
    for read in (lambda: lent.export(table, record.models[0]), lambda: lent.output_table(record.run, of_others=False)):
        with pytest.raises(MopError, match=re.escape(expected)):
            read()


@pytest.mark.parametrize("name", ["lent", "lent_info", "lent_summary"])
def test_what_is_exported_cannot_be_replaced_meanwhile(lent, owned, name, monkeypatch):
    """The owner of the schema drops a table between the check and the export."""
    record = lent.read()
    table = lent.output_table(record.run, of_others=False)
    check, outcomes = exported._check_own, []

    def check_and_drop(*arguments):
        check(*arguments)
        with closing(owned.connect(LANDLORD)) as connection:
            with pytest.raises(Exception) as caught:
                User(connection).rows(f"SET lock_timeout = '200ms'; DROP TABLE {LANDLORD}.{name}")
            outcomes.append(getattr(caught.value, "pgcode", None))

    monkeypatch.setattr(exported, "_check_own", check_and_drop)
    assert lent.export(table, record.models[0]) and outcomes == ["55P03"]


def test_a_table_in_a_schema_that_others_may_rename_is_not_read(lent, owned):
    record = lent.read()
    owned.rows(f"DO $$BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {LANDLORD}', current_database()); END$$")
    try:
        with pytest.raises(MopError, match=f"schema {LANDLORD} can be renamed by role {LANDLORD}, whose code"):
            lent.output_table(record.run, of_others=False)
        assert lent.export(lent.output_table(record.run, of_others=True), record.models[0]), "on request it is"
    finally:
        owned.rows(
            f"DO $$BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM {LANDLORD}', current_database()); END$$"
        )


def test_one_who_may_see_the_run_but_not_export_gets_the_rest_and_one_line(owned, capsys, uri, client):
    for words, expected in (((), 0), (("--models", "best"), 1)):
        status, number, line = status_here(capsys, owned.dsn_of(VIEWER), "mlflow", owned.run_id, *words)
        assert status == expected and len(line.splitlines()) == 1 and "Traceback" not in line
        assert [file.path for file in client.list_artifacts(number)] == ["report.html"]
    assert line.startswith("madlib-mop: model ") and "permission denied for" in line
    status, number, line = status_here(
        capsys, owned.dsn_of(READER), "mlflow", owned.run_id, "--models", "best"
    )
    assert (status, line) == (0, "") and "MLmodel" in files_of(client, number), "with the right to read the table"


def test_weights_of_another_run_are_not_written(owned, keras, capsys, uri, client):
    from tests.helpers.inference import weights_of

    owned.rows(f"CREATE TABLE {OWNER}.again AS TABLE {OWNER}.numbers; CREATE TABLE {OWNER}.again_info AS TABLE"
               f" {OWNER}.numbers_info; CREATE TABLE {OWNER}.again_summary AS TABLE {OWNER}.numbers_summary")
    for table in ("again", "again_info", "again_summary"):
        owned.rows(f"ALTER TABLE {OWNER}.{table} OWNER TO {OWNER}")
    name_output(owned, run_id := invent_run(owned, n_models=2, owner=OWNER), OWNER, "again")
    owned.rows(f"UPDATE {OWNER}.again SET model_weights = %s", [weights_of(number_net(keras, 9.0))])
    status, number, line = status_here(capsys, owned.dsn_of(OWNER), "mlflow", run_id)
    best = owned.value("SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = %s AND rank = 1", [run_id])
    assert (status, line) == (
        0,
        f"madlib-mop: model {best} is not written: {OWNER}.again has other weights than the run: it was written again",
    )  # fmt: skip
    assert files_of(client, number) == set()


@pytest.mark.parametrize("run_state", ["failed", "running"])
def test_a_run_without_an_output_table_says_so(owned, capsys, uri, run_state):
    run_id = invent_run(owned, owner=OWNER, state=run_state)
    status, _, line = status_here(capsys, owned.dsn_of(OWNER), "mlflow", run_id)
    word = "the run is failed, and has no output table"
    word = "none is trained, and the run is running" if run_state == "running" else word
    assert (status, line) == (0, f"madlib-mop: no model is written: {word}")
    run_id = invent_run(owned, owner=OWNER)
    name_output(owned, run_id, OWNER, "numbers")
    owned.rows("UPDATE madlib_mop.run SET plan = '{\"output\": {\"schema\": \"gone\", \"name\": \"gone\"}}'"
               " WHERE run_id = %s", [run_id])  # fmt: skip
    _, _, line = status_here(capsys, owned.dsn_of(OWNER), "mlflow", run_id)
    assert line == (
        f"madlib-mop: no model is written: {OWNER}.numbers is not there: it was dropped, or its transaction has not"
        " ended"
    )


def test_a_followed_run_waits_for_the_output_table(owned, uri, client, tmp_path):
    """A run is finished before the transaction that wrote its output table ends."""
    with closing(owned.connect(OWNER)) as connection:
        owner = User(connection)
        owner.rows(f"SET search_path = {OWNER}")
        for suffix in ("", "_info", "_summary"):
            owner.rows(f"CREATE TABLE later{suffix} AS TABLE numbers{suffix}")
        run_id = invent_run(owned, n_models=2, owner=OWNER, state="running")
        name_output(owned, run_id, OWNER, "later")
        owner.rows("ALTER TABLE later RENAME TO hidden")
        process = in_background(owned, "mlflow", str(run_id), "--follow", dsn=owned.dsn_of(OWNER), cwd=tmp_path)
        experiment = wait_for(lambda: client.get_experiment_by_name("madlib_mop"), what="the experiment")
        owned.rows("UPDATE madlib_mop.model SET state = 'trained' WHERE run_id = %s", [run_id])
        owned.rows("UPDATE madlib_mop.run SET state = 'finished', ended_at = now() WHERE run_id = %s", [run_id])
        owned.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])

        def report():
            runs = client.search_runs([experiment.experiment_id], f"tags.`madlib_mop.run_id` = '{run_id}'")
            return runs and client.list_artifacts(runs[0].info.run_id)

        wait_for(report, what="the report")
        owner.rows("ALTER TABLE hidden RENAME TO later")
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "") and "MLmodel" in files_of(client, printed.strip())


def test_a_table_whose_name_must_be_quoted(owned, keras, capsys, uri, client):
    with closing(owned.connect(OWNER)) as connection:
        owner = User(connection)
        owner.rows(f'SET search_path = {OWNER}')
        for suffix in ("", "_info", "_summary"):
            owner.rows(f'CREATE TABLE "odd name@1{suffix}" AS TABLE numbers{suffix}')
    run_id = invent_run(owned, n_models=1, owner=OWNER)
    name_output(owned, run_id, OWNER, "numbers")
    owned.rows("UPDATE madlib_mop.run SET plan = jsonb_set(plan, '{output,name}', '\"odd name@1\"') WHERE run_id = %s",
               [run_id])  # fmt: skip
    assert "MLmodel" in files_of(client, call_here(capsys, owned.dsn_of(OWNER), "mlflow", run_id))


def test_the_model_of_madlib_keras_fit_has_no_key(owned, keras, capsys, uri, client):
    with closing(owned.connect(OWNER)) as connection:
        owner = User(connection)
        owner.rows(f"SET search_path = {OWNER}")
        owner.write_one_model("one", number_net(keras, 3.0), ModelTable(
            compile_params="loss='mse', optimizer='sgd'", metrics_type=None, loss_type="mse",
            dependent=[Dependent("y", "real")]))  # fmt: skip
    run_id = invent_run(owned, n_models=1, owner=OWNER)
    owned.rows(
        "UPDATE madlib_mop.run SET plan = %s WHERE run_id = %s",
        [f'{{"output": {{"schema": "{OWNER}", "name": "one"}}}}', run_id],
    )
    number = call_here(capsys, owned.dsn_of(OWNER), "mlflow", run_id)
    assert "MLmodel" in files_of(client, number)


def test_the_python_of_the_page_runs(churn, db, capsys, uri):
    (example,) = examples("docs/trackers.md", "python")
    names = {"run_id": call_here(capsys, db.dsn, "mlflow", churn.run_id), "customers": churn.frame}
    exec(compile(example.text, "docs/trackers.md", "exec"), names)
    assert set(names["classes"]) == {"no", "yes"} and len(names["network"].get_weights()) > 2
