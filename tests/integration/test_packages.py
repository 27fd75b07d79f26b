"""`make/packages.sh` on a machine without PostgreSQL, with fake programs first on the PATH."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.helpers.clones import Clone, share_setup


@pytest.fixture(scope="module")
def scratch():
    """A directory that all users may enter; removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="mop_packages_", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def clone(scratch, state):
    """A clone without a server; it uses the session's library."""
    own_state = scratch / "state"
    own_state.mkdir()
    share_setup(state, own_state)
    return Clone(scratch / "clone", own_state)


AS = "[ $1 = -u ] && echo {} || echo someone"


@pytest.fixture
def packages(clone, scratch, monkeypatch):
    """Return a function that runs the script with fake programs and returns its output and their recorded calls."""
    monkeypatch.setattr(clone, "state", Path("/nonexistent"))
    programs = Path(tempfile.mkdtemp(dir=scratch))

    def run(**scripts):
        for name, script in scripts.items():
            file = programs / name.replace("_", "-")
            file.write_text(f'#!/bin/sh\nCALLS="{programs}/calls"\n{script}\n')
            file.chmod(0o755)
        (programs / "calls").touch()
        path = f"{programs}:/usr/bin:/bin"
        done = clone.run("make/packages.sh", check=False, PATH=path, MOP_PG_GLOB="/nonexistent/*")
        return done, (programs / "calls").read_text().splitlines()

    return run


def test_without_rights_one_message_names_the_command(packages):
    done, calls = packages(id=AS.format(1000), sudo="exit 1", apt_get='echo "$*" >>"$CALLS"')
    (message,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout, calls) == (1, "", [])
    assert "sudo apt-get update && sudo apt-get install" in message
    assert re.search(r" postgresql-\d+ postgresql-plpython3-\d+$", message)


@pytest.mark.parametrize("user, by_sudo", [(0, False), (1000, True)])
def test_with_rights_they_are_installed(packages, user, by_sudo):
    sudo = 'shift; [ "$1" = true ] || echo sudo >>"$CALLS"; exec "$@"'
    done, calls = packages(id=AS.format(user), sudo=sudo, apt_get='echo "$*" >>"$CALLS"')
    assert ("sudo" in calls) == by_sudo
    update, install = (call for call in calls if call != "sudo")
    assert update.startswith("update")
    assert re.search(r"^install --yes .*postgresql-(\d+) postgresql-plpython3-\1\b", install)
    assert "still missing after the installation: postgresql-" in done.stderr


def test_nothing_is_asked_of_apt_when_nothing_is_missing(clone, packages, state):
    note = 'echo "$*" >>"$CALLS"'
    clone.state = state
    done, calls = packages(sudo=note, apt_get=note)
    assert (done.returncode, done.stderr, calls) == (0, "", [])


def test_a_pg_config_that_is_none_is_an_error(clone):
    done = clone.run("make/packages.sh", check=False, PG_CONFIG="/nonexistent/pg_config")
    assert done.stderr == "madlib_mop: PG_CONFIG=/nonexistent/pg_config is not a program.\n"


@pytest.mark.parametrize("header", ["gp_segment_config.h", "gp_segment_configuration.h"])
def test_greenplum_6_is_refused_in_one_line(clone, scratch, header):
    directory = Path(tempfile.mkdtemp(dir=scratch))
    (directory / "catalog").mkdir()
    (directory / "catalog" / header).touch()
    pg_config = directory / "pg_config"
    answers = f'case $1 in --version) echo "PostgreSQL 9.4.26" ;; --includedir-server) echo {directory} ;; esac'
    pg_config.write_text(f"#!/bin/sh\n{answers}\n")
    pg_config.chmod(0o755)
    done = clone.make("install", f"PG_CONFIG={pg_config}", check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and done.returncode != 0
    assert said[0].startswith(f"madlib_mop: PG_CONFIG={pg_config} is a Greenplum before 7 (PostgreSQL 9.4.26)")
