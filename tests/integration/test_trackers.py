"""`madlib-mop tensorboard`, `mlflow` and `optuna`: runs of the record, with ordinary logins, read by these programs."""

import json
import os
import shlex
import shutil
from contextlib import closing

import numpy as np
import optuna
import psycopg2
import pytest

from madlib_mop.errors import InsufficientPrivilege, InvalidParameter, MopError, NotReady
from madlib_mop.trainer.data.parts import TensorSpec
from madlib_mop.trainer.data.state import count_forward_parts, encode_state
from tests.helpers.commands import in_background
from tests.helpers.commands import run as madlib_mop
from tests.helpers.faults import wait_for
from tests.helpers.inference import User
from tests.helpers.invented import HOSTILE, invent_run
from tests.helpers.pages import examples
from tests.helpers.registry import write_numbers
from tests.helpers.security.attacks import user
from tests.helpers.trackers import accumulator, call_here, empty_mlflow, files_below, name_output, recorded, scalars

pytestmark = pytest.mark.one_session

OWNER, VIEWER, STRANGER = "owner_of_tracked", "viewer_of_tracked", "stranger_to_tracked"
PAGE = "docs/trackers.md"


@pytest.fixture(scope="module")
def lab(db, keras):
    """A finished run of four models, whose owner lets another role see it."""
    for role in (OWNER, STRANGER):
        user(db, role)
    db.cluster.create_role(VIEWER)
    db.rows(f"SELECT madlib_mop.grant_read('{VIEWER}', '{OWNER}')")
    db.run_id = invent_run(db, owner=OWNER)
    db.rows(
        "UPDATE madlib_mop.model SET weights_digest = repeat('ab', 32), hyper_parameters = jsonb_build_object("
        "'architecture', 1, 'optimizer', 'Adam', 'learning_rate', 0.001 * mst_key, 'batch_size', 16) WHERE run_id = %s",
        [db.run_id],
    )
    with closing(db.connect(OWNER)) as connection:
        owner = User(connection)
        owner.rows(f"SET search_path = {OWNER}")
        write_numbers(owner, keras, "numbers", [1.0, 2.0, 3.0, 4.0])
    name_output(db, db.run_id, OWNER, "numbers")
    return db


@pytest.fixture(scope="module")
def made_store(tmp_path_factory):
    """An empty database of MLflow, which takes seconds to make."""
    return empty_mlflow(tmp_path_factory.mktemp("mlflow"))


@pytest.fixture
def call(lab, tmp_path, monkeypatch, capsys):
    """Return a function that calls `madlib-mop` in this process, in a directory of its own, and returns the output."""
    monkeypatch.chdir(tmp_path)
    return lambda *words, role=OWNER: call_here(capsys, lab.dsn_of(role), *words)


@pytest.mark.parametrize("role", [OWNER, VIEWER])
def test_tensorboard_reads_the_metrics_of_the_record(lab, call, tmp_path, role):
    assert call("tensorboard", lab.run_id, "logs", role=role) == f"logs/run_{lab.run_id}"
    for data_set, folder in (("training", "train"), ("validation", "validation")):
        read = scalars(tmp_path / f"logs/run_{lab.run_id}/model_3/{folder}")
        expected = recorded(lab, lab.run_id, 3, data_set)
        assert read == {f"epoch_{name}": points for name, points in expected.items()} and len(read) == 2


@pytest.mark.slow
def test_the_command_is_a_process_that_prints_one_line(lab, tmp_path):
    done = madlib_mop(lab, "tensorboard", str(lab.run_id), str(tmp_path / "logs"), dsn=lab.dsn_of(OWNER))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{tmp_path}/logs/run_{lab.run_id}\n")
    unknown = madlib_mop(lab, "optuna", "999999", "--storage", "a.journal", dsn=lab.dsn_of(OWNER), cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.splitlines() == [
        "madlib-mop: there is no run 999999 that this role may see",
        "  madlib-mop runs lists the runs that it may see.",
    ]


@pytest.mark.slow
def test_the_commands_of_the_page_run(lab, call, tmp_path, made_store):
    shutil.copy(made_store, tmp_path / "mlflow.db")
    lines = [line for example in examples(PAGE, "sh") for line in example.text.splitlines() if line.strip()]
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "madlib-mop" and "7" in words
        own = [word for word in words if word != "--histograms"]  # an invented run has no weights
        call(*(str(lab.run_id) if word == "7" else word for word in own))
    assert len(lines) == 8
    assert {"logs", "mlflow.db", "studies.db", "studies.journal"} <= set(os.listdir(tmp_path))


@pytest.mark.slow
def test_mlflow_reads_the_run_and_a_second_call_adds_nothing(lab, call, tmp_path, made_store):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{shutil.copy(made_store, tmp_path / 'mlflow.db')}"
    words = ("mlflow", lab.run_id, "--tracking-uri", uri, "--experiment", "flowers")
    number = call(*words, "--models", "none", role=VIEWER)
    assert call(*words) == number, "the owner updates what the viewer has written"
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("flowers").experiment_id])
    models = {int(run.data.tags["madlib_mop.mst_key"]): run for run in runs if run.info.run_id != number}
    assert [run.info.run_id for run in runs].count(number) == 1 and len(runs) == 5 and set(models) == {1, 2, 3, 4}
    assert models[3].data.params["learning_rate"] == "0.003"
    history = client.get_metric_history(models[3].info.run_id, "val_loss")
    expected = recorded(lab, lab.run_id, 3, "validation")["loss"]
    assert [(m.step, m.timestamp / 1000, m.value) for m in history] == expected
    (parent,) = [run for run in runs if run.info.run_id == number]
    identifier = lab.value("SELECT system_identifier::text FROM pg_control_system()")
    assert parent.data.tags["madlib_mop.system_identifier"] == identifier
    assert [artifact.path for artifact in client.list_artifacts(number)] == ["model", "report.html"]
    path = client.download_artifacts(number, "report.html")
    with open(path) as file:
        assert "<title>" in (report := file.read()) and str(lab.run_id) in report


def test_optuna_reads_the_run(lab, call):
    name = call("optuna", lab.run_id, "--storage", "sqlite:///studies.db", role=VIEWER)
    study = optuna.load_study(study_name=name, storage="sqlite:///studies.db")
    assert name == f"run {lab.run_id} of {lab.name}" and study.direction.name == "MAXIMIZE"
    ranked = lab.rows(
        "SELECT mst_key, validation_metric FROM madlib_mop.leaderboard WHERE run_id = %s ORDER BY rank", [lab.run_id]
    )
    trials = sorted(study.trials, key=lambda trial: -trial.value)
    assert [(trial.user_attrs["mst_key"], trial.value) for trial in trials] == ranked
    assert [sorted(trial.intermediate_values) for trial in trials] == [[1, 2]] * 4


WORDS = {
    "tensorboard": ("logs",),
    "mlflow": ("--tracking-uri", "sqlite:///mlflow.db"),
    "optuna": ("--storage", "studies.journal"),
}


@pytest.mark.parametrize("program", WORDS)
def test_a_run_of_others_is_like_one_that_is_not_there(lab, call, program):
    messages = []
    for run_id in (lab.run_id, 999_999):
        with pytest.raises(InvalidParameter) as raised:
            call(program, run_id, *WORDS[program], role=STRANGER)
        messages.append(raised.value.message.replace(str(run_id), "N"))
    assert messages == ["there is no run N that this role may see"] * 2


@pytest.mark.parametrize("program", WORDS)
@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=str)
def test_a_run_without_metrics_is_one_error(lab, call, tmp_path, program, follow):
    run_id = invent_run(lab, owner=OWNER, state="failed" if follow else "running")
    lab.rows("DELETE FROM madlib_mop.metric WHERE run_id = %s", [run_id])
    with pytest.raises(InvalidParameter, match=f"run {run_id} has no metrics; it is ") as raised:
        call(program, run_id, *WORDS[program], *follow)
    assert ("--follow waits for them" in raised.value.hint) == (not follow)
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("tensorboard", "{run}", "/proc/nowhere"), InvalidParameter, "/proc/nowhere cannot be written"),
        (("tensorboard", "{run}", "/dev/null"), InvalidParameter, "DIR must be a directory. /dev/null is not one"),
        (("mlflow", "{run}"), InvalidParameter, "--tracking-uri is missing"),
        (("mlflow", "{run}", "--tracking-uri", "sqlite:////no/such.db"), NotReady, "--tracking-uri cannot be reached"),
        (("mlflow", "{run}", "--tracking-uri", "http://a:pw@localhost"), InvalidParameter, "must not have a password"),
        (("optuna", "{run}"), InvalidParameter, "--storage is missing"),
        (("optuna", "{run}", "--storage", "/no/such.journal"), NotReady, "--storage cannot be reached"),
        (("optuna", "{run}", "--storage", "mysql://a:pw@127.0.0.1/x"), InvalidParameter, "must not have a password"),
        (("optuna", "99999999999999999999", "--storage", "a.journal"), MopError, "out of range"),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_error(lab, call, words, kind, message):
    with pytest.raises(kind) as raised:
        call(*(str(lab.run_id) if word == "{run}" else word for word in words))
    assert message in raised.value.message and "pw" not in raised.value.message and "\n" not in raised.value.message


def test_a_password_in_the_variable_is_used_and_not_printed(lab, call, monkeypatch):
    monkeypatch.setenv("OPTUNA_STORAGE", "postgresql+psycopg2://ann:a-secret@127.0.0.1:1/x")
    with pytest.raises(NotReady, match="--storage cannot be reached") as raised:
        call("optuna", lab.run_id)
    assert "a-secret" not in f"{raised.value.message}{raised.value.hint}"


@pytest.mark.slow
def test_a_login_that_fails_is_one_error(lab, tmp_path):
    done = madlib_mop(lab, "tensorboard", "1", str(tmp_path), dsn="host=127.0.0.1 port=1 dbname=x")
    assert done.returncode == 1 and done.stderr.startswith("madlib-mop: cannot log in: ")
    assert "Traceback" not in done.stderr and files_below(tmp_path) == set()


def write_state(lab, run_id: int, mst_key: int) -> list[np.ndarray]:
    """Write a training state of two weight variables in several parts; return them."""
    weights = [np.arange(700, dtype=np.float32).reshape(7, 100), np.full(4, 0.5, np.float32)]
    values = {"weights": weights, "variables": [], "optimizer": [np.zeros((7, 100), np.float32)]}
    specs = {group: [TensorSpec(a.shape, a.dtype.name) for a in arrays] for group, arrays in values.items()}
    parts = encode_state(specs, lambda group, index: values[group][index], part_bytes=2048)
    assert len(parts) > count_forward_parts(parts) > 1
    lab.rows("CREATE TABLE madlib_mop.state_of_a_test PARTITION OF madlib_mop.model_state FOR VALUES IN (987)")
    for number, part in enumerate(parts):
        lab.rows(
            "INSERT INTO madlib_mop.model_state (slot, run_id, mst_key, version, part, data)"
            " VALUES (987, %s, %s, 5, %s, %s)",
            [run_id, mst_key, number, psycopg2.Binary(bytes(part))],
        )
    lab.rows(
        "UPDATE madlib_mop.model SET state_slot = 987, state_version = 5, forward_parts = %s"
        " WHERE run_id = %s AND mst_key = %s",
        [count_forward_parts(parts), run_id, mst_key],
    )
    return weights


def test_histograms_have_the_final_weights_for_members_of_the_owner_s_role(lab, call, tmp_path):
    from tensorboard.util import tensor_util

    run_id = invent_run(lab, owner=OWNER)
    weights = write_state(lab, run_id, 2)
    call("tensorboard", run_id, "logs", "--histograms")
    events = accumulator(tmp_path / f"logs/run_{run_id}/model_2")
    for number, array in enumerate(weights):
        (event,) = events.Tensors(f"weights_{number}")
        buckets = tensor_util.make_ndarray(event.tensor_proto)
        assert event.step == 2 and buckets[:, 2].sum() == array.size
        assert (buckets[0, 0], buckets[-1, 1]) == (array.min(), array.max())
    others = accumulator(tmp_path / f"logs/run_{run_id}/model_1").Tags()["tensors"]
    assert not [tag for tag in others if tag.startswith("weights")]
    with pytest.raises(InsufficientPrivilege, match=f"The owner of run {run_id} is {OWNER}"):
        call("tensorboard", run_id, "others", "--histograms", role=VIEWER)
    assert not (tmp_path / "others").exists()


def tell(lab, run_id: int) -> None:
    lab.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])


def test_a_followed_run_is_written_as_it_goes_on_and_until_it_ends(lab, tmp_path):
    run_id = invent_run(lab, owner=OWNER, state="running")
    lab.rows("DELETE FROM madlib_mop.metric WHERE run_id = %s", [run_id])
    process = in_background(lab, "tensorboard", str(run_id), str(tmp_path), "--follow", dsn=lab.dsn_of(OWNER))
    folder = tmp_path / f"run_{run_id}" / "model_1"
    wait_for(lambda: list(folder.glob("events*")), what="the first files")  # before there are metrics
    for epoch in (1, 2):
        lab.rows(
            "INSERT INTO madlib_mop.metric (run_id, mst_key, epoch, data_set, ordinal, name, value, elapsed_s)"
            " VALUES (%s, 1, %s, 'training', 0, 'loss', 0.5, 1)",
            [run_id, epoch],
        )
        tell(lab, run_id)
        steps = list(range(1, epoch + 1))

        def is_written(steps=steps):
            is_there = (folder / "train").is_dir()
            return is_there and [step for step, *_ in scalars(folder / "train").get("epoch_loss", [])] == steps

        wait_for(is_written, what="the metric of the iteration")
    lab.rows("UPDATE madlib_mop.run SET state = 'finished', ended_at = now() WHERE run_id = %s", [run_id])
    tell(lab, run_id)
    printed, errors = process.communicate(timeout=4)  # without the notification, it would look after five seconds
    assert (process.returncode, errors, printed) == (0, "", f"{tmp_path}/run_{run_id}\n")


@pytest.mark.slow
def test_a_session_that_is_lost_is_one_error_and_a_second_call_goes_on(lab, tmp_path):
    run_id = invent_run(lab, owner=OWNER, state="running")
    storage = str(tmp_path / "studies.journal")
    process = in_background(lab, "optuna", str(run_id), "--storage", storage, "--follow", dsn=lab.dsn_of(OWNER))
    wait_for(lambda: os.path.exists(storage) and os.path.getsize(storage) > 5000, what="the trials")
    lab.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND datname = current_database()"
        " AND application_name = 'madlib-mop'",
        [OWNER],
    )
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed) == (1, "") and "Traceback" not in errors
    assert errors.startswith("madlib-mop: the connection to the server was lost")
    lab.rows("UPDATE madlib_mop.run SET state = 'finished', ended_at = now() WHERE run_id = %s", [run_id])
    lab.rows("UPDATE madlib_mop.model SET state = 'trained' WHERE run_id = %s", [run_id])
    done = madlib_mop(lab, "optuna", str(run_id), "--storage", storage, dsn=lab.dsn_of(OWNER))
    assert (done.returncode, done.stderr) == (0, "")
    backend = optuna.storages.journal.JournalFileBackend(storage)
    study = optuna.load_study(study_name=done.stdout.strip(), storage=optuna.storages.JournalStorage(backend))
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 4


@pytest.mark.parametrize("program", WORDS)
def test_hostile_names_of_the_record_stay_in_the_directory(lab, call, tmp_path, program, made_store):
    run_id = invent_run(lab, n_models=1, owner=OWNER, output=HOSTILE, source="../../../etc/passwd", detail=HOSTILE)
    lab.rows(
        "UPDATE madlib_mop.metric SET name = CASE ordinal WHEN 0 THEN '../../up' ELSE %s END WHERE run_id = %s",
        [HOSTILE, run_id],
    )
    lab.rows(
        "UPDATE madlib_mop.model SET hyper_parameters = %s WHERE run_id = %s",
        [json.dumps({HOSTILE: HOSTILE, "../../up": 1}), run_id],
    )
    directory = tmp_path / "a" / "b" / "c"
    directory.mkdir(parents=True)
    os.chdir(directory)
    words = WORDS[program]
    if program == "mlflow":
        uri = f"sqlite:///{shutil.copy(made_store, directory / 'mlflow.db')}"
        words = ("--tracking-uri", uri, "--models", "none")
    printed = call(program, run_id, *words)
    assert "\x1b" not in printed
    found = files_below(tmp_path)
    assert found and all(name.startswith("a/b/c/") for name in found)
    assert not [name for name in found if "<" in name or "\x1b" in name or "passwd" in name]
