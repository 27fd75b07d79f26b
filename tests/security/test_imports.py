"""A file that is not what it says is refused before anything of it is run, and imports give nobody more rights."""

import pickle
import tempfile
from pathlib import Path

import pytest

from tests.helpers.archives import HDF5, Entry, keras_archive, zip_of
from tests.helpers.imports import saved
from tests.helpers.inference import User
from tests.helpers.registry import number_net
from tests.helpers.security.attacks import refusal_of, user
from tests.helpers.security.hostile_files import HOSTILE
from tests.helpers.unit.dangers import REFUSALS, Marker, dangerous
from tests.helpers.unit.documents import dense, keras_3, layer

OWNER, OTHER = "owner_of_imports", "other_of_imports"
MODEL, VERSION = "SELECT madlib_mop.import_model('hostile', %s)", "SELECT madlib_mop.import_version('hostile', %s)"
WEIGHTS = "SELECT madlib_mop.import_weights('target', 1, %s)"
#: A member that says that it has 1 MB, and has 60.
LYING = Entry("config.json", bytes(60_000_000), deflated=True, size=1 << 20)


@pytest.fixture(scope="module")
def bench(db, keras):
    for role in (OWNER, OTHER):
        user(db, role)
    owner = User(db.connect(OWNER))
    owner.rows(f"SET search_path = {OWNER}")
    owner.rows("SELECT madlib_mop.import_model('target', %s)", saved(number_net(keras, 1)))
    owner.connection.close()
    db.rows(f"ALTER ROLE {OWNER} SET search_path = {OWNER}; ALTER ROLE {OTHER} SET search_path = {OTHER}")
    return db


@pytest.fixture(scope="module")
def marker():
    """A file that code from an import would create, at a path where the server's user can."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    yield Marker(directory / "marker")
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def deep(marker):
    document = keras_3(layer("Lambda", name="evil", function=marker.lambda_config))
    for name in ("third", "second", "first"):
        document = keras_3(document, name=name)
    return keras_archive(document)


def files(marker):
    """Return the files of the promise, by name, with a part of the error."""
    return {
        "a pickle as .keras": (pickle.dumps(marker), "the file is a pickle, which can run any code; it was not opened"),
        "a pickle as weights": (keras_archive(weights=pickle.dumps(marker)), "model.weights.h5: the file is a pickle"),
        "a zip with ../": (keras_archive(None, Entry("../../etc/cron.d/x", b"x")), "is a path that leaves the archive"),
        "a zip with a link": (keras_archive(None, Entry("README", b"/etc", mode=0o120777)), "is a link"),
        "zeros that are said": (
            zip_of(Entry("config.json", bytes(60_000_000), deflated=True)), "more than 100 times",
        ),
        "zeros that are not said": (
            zip_of(LYING, Entry("model.weights.h5", HDF5)),
            "more bytes than the archive says",
        ),
        "a Lambda three models deep": (deep(marker), "Lambda is not allowed: it contains Python code"),
    }  # fmt: skip


NAMES = list(files(Marker("x")))


def refused(bench, marker, statement, file):
    error = refusal_of(bench, statement, [file], OWNER)
    assert not marker.path.exists()
    assert bench.value("SELECT count(*) FROM madlib_mop.registered_model WHERE name = 'hostile'") == 0
    assert bench.value(f"SELECT to_regclass('{OWNER}.hostile')") is None
    return error


@pytest.mark.one_case
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_what_it_says_is_refused(bench, marker, name):
    file, text = files(marker)[name]
    for statement in (MODEL, VERSION):
        error = refused(bench, marker, statement, file)
        assert text in error.message and error.sqlstate in ("0A000", "22P02"), error


@pytest.mark.parametrize("name", ["Lambda", "allowed class of another module"])
def test_no_architecture_of_a_file_runs_code(bench, marker, name):
    for function, statement in (("import_model", MODEL), ("import_version", VERSION)):
        error = refused(bench, marker, statement, keras_archive(dangerous(marker)[name]))
        assert error.message.startswith(f"{function}: config.json: ") and REFUSALS[name] in error.message, error


@pytest.mark.parametrize("name", ["external link", "objects"])
def test_hostile_weights_are_refused(bench, marker, name):
    file, text = HOSTILE[name]
    before = bench.value(f"SELECT sha256(model_weights) FROM {OWNER}.target")
    assert text in refused(bench, marker, WEIGHTS, file).message
    assert text in refused(bench, marker, MODEL, keras_archive(keras_3(dense(3)), weights=file)).message
    assert bench.value(f"SELECT sha256(model_weights) FROM {OWNER}.target") == before


def test_tables_are_changed_with_the_rights_of_the_caller(bench, keras):
    file = saved(number_net(keras, 2))
    for statement in (f"import_model('{OWNER}.target', %s)", f"import_weights('{OWNER}.target', 1, %s)",
                      f"import_model('{OWNER}.new', %s)"):  # fmt: skip
        error = refusal_of(bench, f"SELECT madlib_mop.{statement}", [file], OTHER)
        assert error.sqlstate in ("42501", "42P01"), error
    bench.rows(f"GRANT USAGE ON SCHEMA {OWNER} TO {OTHER}; GRANT SELECT ON {OWNER}.target TO {OTHER}")
    error = refusal_of(bench, f"SELECT madlib_mop.import_weights('{OWNER}.target', 1, %s)", [file], OTHER)
    assert error.sqlstate == "42501", error


def test_a_name_of_another_role_gets_no_version(bench, keras):
    file = saved(number_net(keras, 2))
    assert bench.rows("SELECT madlib_mop.import_version('mine', %s)", [file], OWNER) == [(1,)]
    error = refusal_of(bench, "SELECT madlib_mop.import_version('mine', %s)", [file], OTHER)
    assert (error.sqlstate, error.message) == (
        "42501", "import_version: register: mine is a registered model of another role",
    )  # fmt: skip
    assert bench.value("SELECT last_version FROM madlib_mop.registered_model WHERE name = 'mine'") == 1


def test_without_grant_use_nobody_imports(bench, keras):
    nobody = "nobody_of_imports"
    bench.cluster.create_role(nobody)
    file = saved(number_net(keras, 2))
    for statement in (MODEL, VERSION, WEIGHTS):
        assert refusal_of(bench, statement, [file], nobody).sqlstate == "42501"


def test_a_role_that_may_predict_imports_nothing(bench, keras):
    predicts = "predicts_of_imports"
    bench.cluster.create_role(predicts)
    bench.rows("SELECT madlib_mop.grant_model('mine', %s, 'predict')", [predicts])
    file = saved(number_net(keras, 2))
    for statement in (MODEL, VERSION, WEIGHTS):
        assert refusal_of(bench, statement, [file], predicts).sqlstate == "42501"
