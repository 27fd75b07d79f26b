"""The fork servers' sockets are in the data directory; an OS user who takes their place gets no requests."""

import os
import pathlib
import re
import signal
import stat
import subprocess
import threading
import time

import numpy as np
import psycopg2
import pytest
from mop_backend.keras_backends import USUAL

from tests.helpers.faults import children, forkservers, wait_for
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.unit.trainer import BACKEND
from tests.unit.trainer.test_sockets import as_root, impostor

PREDICT = "SELECT madlib_mop.predict('models', 1, ARRAY[1, 2]::real[])"


@pytest.fixture(scope="module")
def models(db, keras):
    """A database with a model of two inputs."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    user = User(db.connect())
    user.write_models("models", {1: model}, ModelTable(dependent=[Dependent(values=list("abc"))]))
    user.connection.close()
    return db


def abstract_names(db) -> list[str]:
    """Return the abstract sockets with the name of the database's server."""
    names = [line.split()[-1] for line in pathlib.Path("/proc/net/unix").read_text().splitlines()]
    return [name for name in names if name.startswith(f"@madlib_mop.{db.cluster.server_pid}.")]


def one_call(db) -> tuple[int, int]:
    """Predict in a session of its own; return the process of the backend and the parent of its trainer."""
    session = User(db.connect())
    assert len(session.value(PREDICT)) == 3
    (trainer,) = children(session.connection.info.backend_pid, "madlib_mop.trainer")
    parent = int(pathlib.Path(f"/proc/{trainer}/stat").read_text().rpartition(")")[2].split()[1])
    backend = session.connection.info.backend_pid
    session.connection.close()
    return backend, parent


def socket_of(children: str, directory: pathlib.Path) -> str:
    """Return the name of the socket of a kind of fork server: trainers have the tests' backend."""
    end = "" if children == "drivers" or BACKEND == USUAL else f".{BACKEND}"
    of_this_kind = re.compile(rf"madlib_mop\.\d+\.{children}\.[0-9a-f]+{re.escape(end)}")
    (name,) = (path.name for path in directory.iterdir() if of_this_kind.fullmatch(path.name))
    return name


@pytest.fixture
def directory(models):
    """The socket's directory, after a first call; its ownership is restored after the test."""
    one_call(models)
    directory = models.cluster.datadir / "pg_stat_tmp" / "madlib_mop"
    yield directory
    directory.chmod(0o700)


def test_it_lies_in_a_directory_of_the_servers_user_alone(models, directory):
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert directory.stat().st_uid == models.cluster.datadir.stat().st_uid
    assert socket_of("trainers", directory).startswith(f"madlib_mop.{models.cluster.server_pid}.")
    assert not abstract_names(models)


def test_a_base_backup_leaves_it_out(models, directory):
    with open(models.cluster.datadir / "pg_hba.conf", "a") as rules:
        rules.write("local replication all peer map=owner\n")
    models.rows("SELECT pg_reload_conf()")
    backup = models.cluster.datadir.parent / "backup"
    words = ["-D", backup, "-d", models.cluster.dsn, "-X", "none", "-c", "fast"]
    subprocess.run([models.cluster.bindir / "pg_basebackup", *words], check=True)
    assert (backup / "PG_VERSION").exists() and not list((backup / "pg_stat_tmp").iterdir())


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("full", [False, True])
def test_an_impostor_gets_nothing_and_predict_goes_on_with_a_trainer_of_its_own(models, directory, full):
    """The server uses an abstract name if the directory is not its own; and its fork server has ended."""
    name = socket_of("trainers", directory)
    directory.chmod(0o777)
    for process in forkservers(models):
        os.kill(process, signal.SIGKILL)
    with impostor(name, full):
        backend, parent = one_call(models)
        assert parent == backend  # started, not forked
        assert not forkservers(models)


@pytest.mark.slow
@as_root
def test_a_call_that_an_impostor_keeps_waiting_can_be_cancelled(models, directory):
    name = socket_of("trainers", directory)
    directory.chmod(0o777)
    for process in forkservers(models):
        os.kill(process, signal.SIGKILL)
    session = User(models.connect())
    with impostor(name, full=True):
        canceller = threading.Timer(0.5, session.connection.cancel)
        canceller.start()
        started = time.monotonic()
        with pytest.raises(psycopg2.errors.QueryCanceled):
            session.value(PREDICT)
        assert time.monotonic() - started < 5
        canceller.join()
    assert np.isfinite(session.value(PREDICT)).all()
    session.connection.close()


@pytest.mark.one_case
@as_root
@pytest.mark.parametrize("full", [False, True])
def test_an_impostor_gets_no_call(models, directory, full):
    """Calls go on with drivers that are started, not forked."""
    session = User(models.connect())
    session.value("SELECT madlib_mop.version()")  # starts the fork server of drivers
    session.value("SELECT madlib_mop.version()")
    name = socket_of("drivers", directory)
    directory.chmod(0o777)
    for process in forkservers(models, "mop drivers"):  # one may listen at the abstract name since an earlier test
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not forkservers(models, "mop drivers"), what="their end")
    with impostor(name, full):
        assert session.value("SELECT madlib_mop.version()")
        assert not forkservers(models, "mop drivers")
    session.connection.close()
