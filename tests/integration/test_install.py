"""The installation: `make server` and related targets work in any directory and for any user."""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from madlib_mop import __version__
from tests.helpers.clones import Clone, share_setup
from tests.helpers.faults import alive, wait_for

AS_ROOT = os.geteuid() == 0
LONG_NAME = "a clone with spaces in its name, and a name that is longer than the path of a Unix socket may ever be"


@pytest.fixture(scope="module")
def scratch():
    """A directory that all users may enter; removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="mop_install_", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def clone(scratch, state):
    """A clone with a running server, below a directory of its user only; it uses the session's library."""
    (scratch / "private").mkdir(mode=0o700)
    own_state = scratch / "state"
    own_state.mkdir()
    share_setup(state, own_state)
    clone = Clone(scratch / "private" / LONG_NAME, own_state)
    clone.make("server")
    yield clone
    clone.make("clean")


def listening(port: int) -> bool:
    """Return whether a process listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_dsn_prints_a_uri_and_nothing_else(clone):
    done = clone.make("-s", "dsn")
    assert re.fullmatch(r"postgresql://\w+@/madlib_mop\?host=/tmp/[\w.]+&port=\d+\n", done.stdout)
    assert done.stderr == ""
    assert clone.sql("SELECT current_database(), rolsuper FROM pg_roles WHERE rolname = current_user") == "madlib_mop|t"


def test_dsn_of_a_clone_without_a_server_is_an_error_that_says_what_to_run(clone, scratch):
    done = clone.run("make/cluster.sh", "--name", "never_made", "dsn", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "madlib_mop: there is no server yet. Run: make server\n"


@pytest.mark.slow
def test_server_is_idempotent(clone):
    def identity():
        return clone.dsn, clone.sql("SELECT pg_postmaster_start_time()")

    before = identity()
    clone.sql("CREATE TABLE kept AS SELECT 1 AS a")
    clone.make("server")
    assert identity() == before
    clone.make("stop")
    clone.make("stop")
    clone.make("server")
    assert clone.dsn == before[0]
    assert clone.sql("SELECT a FROM kept") == "1"
    clone.sql("DROP TABLE kept")


@pytest.mark.slow
def test_a_script_that_uses_tensorflow_prints_its_own_output_only(clone):
    network = "keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])"
    code = f"import keras, numpy; print(tuple({network}(numpy.ones((1, 2))).shape))"
    done = clone.run("make/python.sh", "-c", code, TF_CPP_MIN_LOG_LEVEL="")
    assert (done.stdout, done.stderr) == ("(1, 1)\n", "")


@pytest.mark.slow
def test_server_has_one_worker_of_jobs_which_stop_ends(clone):
    file = clone.state / "clusters" / "server" / "log" / "work.pid"

    def worker() -> int:
        return int(file.read_text() or 0) if file.exists() else 0

    clone.make("server")
    first = wait_for(worker, 10, "the number of its process")
    clone.make("server")
    assert worker() == first and alive(first)
    clone.make("stop")
    wait_for(lambda: not alive(first), 20, "the end of the worker")
    clone.make("server")
    wait_for(lambda: worker() != first and alive(worker()), 20, "a new worker")


@pytest.mark.one_case
@pytest.mark.parametrize("command", ["report", "watch"])
def test_report_and_watch_want_a_number_and_look_for_it_in_the_private_server(clone, command):
    without = clone.make(command, check=False)
    assert without.returncode != 0 and f"for example: make {command} RUN=1" in without.stderr
    elsewhere = {"MADLIB_MOP_DSN": "host=/nonexistent"}
    unknown = clone.make(command, "RUN=5", check=False, **elsewhere)
    assert unknown.returncode != 0 and re.search("no run (5 that|with this run_id. Received: 5)", unknown.stderr)


@pytest.mark.slow
def test_dash_serves_the_private_server_and_suggests_its_owner(clone):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["make", "dash", f"ARGS=--port {port}"]
    environment = {name: value for name, value in os.environ.items() if name != "ARGS"}
    environment["MOP_STATE"] = str(clone.state)
    dash = subprocess.Popen(
        command, cwd=clone.root, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    try:
        assert dash.stdout.readline() == f"live page: http://127.0.0.1:{port}/ (Ctrl-C ends it)\n"
        wait_for(lambda: listening(port), 30, "the page")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=30) as answer:
            form = answer.read().decode()
        assert f'value="{clone.cluster("owner")}"' in form and "<strong>madlib_mop</strong>" in form
    finally:
        os.killpg(dash.pid, signal.SIGINT)
        dash.communicate(timeout=60)


def test_server_has_the_extension_and_listens_on_the_loopback_address_only(clone):
    assert clone.sql("SELECT count(*) FROM pg_extension WHERE extname IN ('madlib_mop', 'plpython3u')") == "2"
    assert clone.sql("SHOW listen_addresses") == "127.0.0.1"
    assert clone.sql("SHOW client_connection_check_interval") == "500ms"
    columns = "type, database, user_name, address, auth_method"
    rules = clone.sql(f"SELECT {columns} FROM pg_hba_file_rules ORDER BY type DESC")
    assert rules.splitlines() == ["local|{all}|{all}||peer", "host|{all}|{all}|127.0.0.1|scram-sha-256"]


def test_the_systems_postgresql_is_not_touched(clone):
    share = clone.sql("SELECT setting FROM pg_config WHERE name = 'SHAREDIR'")
    assert share.startswith(str(clone.state))
    system = Path((clone.state / "pg_config").read_text().strip())
    extensions = subprocess.run([system, "--sharedir"], stdout=subprocess.PIPE, text=True).stdout.strip()
    ours = clone.state / "pgsql"
    assert not [file for file in Path(extensions, "extension").glob("madlib_mop*") if ours in file.resolve().parents]


def test_the_extensions_files_have_no_placeholder_left(clone):
    share = Path(clone.sql("SELECT setting FROM pg_config WHERE name = 'SHAREDIR'"))
    files = {file.name: file for file in (share / "extension").glob("madlib_mop*")}
    sql = {f"madlib_mop--{__version__}.sql", f"madlib_mop--1.0.0--{__version__}.sql"}
    assert {"madlib_mop.control", *sql} <= set(files)
    for file in files.values():
        assert not re.search(r"@[A-Z_]+@", file.read_text())


def test_what_plpython_imports_is_compiled_for_its_python(clone):
    """Otherwise each session would compile it at its first call: 0.4 s on a busy machine."""
    library = clone.state / "library"
    body = f"""import importlib.util, os, sys; sys.path.insert(0, '{library}/backend'); from mop_backend import call
path = importlib.util.cache_from_source(call.__file__); plpy.notice(path, os.path.exists(path))"""
    psql = (f"{clone.cluster('bindir')}/psql", "-Xq", "-d", clone.dsn, "-c")
    done = clone.run(*psql, f"DO LANGUAGE plpython3u $${body}$$")
    assert f"{library}/backend/mop_backend/__pycache__/call.cpython-" in done.stderr and "True" in done.stderr


def test_the_server_knows_nothing_of_its_users_environment(clone):
    pid = clone.cluster("datadir") + "/postmaster.pid"
    environment = Path("/proc", Path(pid).read_text().split()[0], "environ").read_bytes().split(b"\0")
    names = {entry.split(b"=")[0].decode() for entry in environment if entry}
    shells = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert {name for name in names if not name.startswith(("PG", "LC_"))} <= {"PATH", "HOME"} | shells


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="the owner of the clone and the server's user must be different users")
def test_the_servers_user_can_write_to_its_data_and_log_only(clone):
    find = ["find", "-L", str(clone.state), "-writable", "-prune", "-print"]
    done = clone.run("runuser", "-u", clone.cluster("owner"), "--", *find, check=False)
    server = clone.state / "clusters" / "server"
    assert set(done.stdout.splitlines()) == {str(server / "data"), str(server / "log")}


@pytest.mark.slow
def test_a_swept_socket_directory_is_made_again(clone):
    old = re.search("host=([^&]*)", clone.dsn)[1]
    shutil.rmtree(old)
    clone.make("server")
    assert clone.sql("SELECT 1") == "1"


@pytest.mark.slow
def test_a_port_that_another_took_is_given_up(clone):
    port = int(clone.cluster("port"))
    clone.make("stop")
    with socket.create_server(("127.0.0.1", port)):
        clone.make("server")
        assert int(clone.cluster("port")) != port
    assert clone.sql("SHOW port") == clone.cluster("port")


@pytest.mark.slow
def test_a_server_that_does_not_start_shows_the_end_of_its_log(clone):
    clone.make("stop")
    settings = Path(clone.cluster("datadir")) / "postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "shared_buffers = lots\n")
    try:
        done = clone.make("server", check=False)
    finally:
        settings.write_text(good)
    assert done.returncode != 0
    assert "PostgreSQL did not start" in done.stderr and 'invalid value for parameter "shared_buffers"' in done.stderr
    clone.make("server")


@pytest.mark.slow
def test_changed_sql_replaces_an_extension_without_runs_and_keeps_one_with_rows(clone):
    addition = clone.root / "sql" / "99-test.sql"
    addition.write_text("COMMENT ON SCHEMA madlib_mop IS 'first change';\n")
    comment = "SELECT obj_description('madlib_mop'::regnamespace)"
    try:
        assert "was created again" in clone.make("server").stderr
        assert clone.sql(comment) == "first change"
        clone.sql("INSERT INTO madlib_mop.setting (name, value) VALUES ('test', '1')")
        addition.write_text("COMMENT ON SCHEMA madlib_mop IS 'second change';\n")
        done = clone.make("server")
        assert "the database keeps its version, because these tables have rows: madlib_mop.setting" in done.stderr
        assert clone.sql(comment) == "first change"
        assert clone.sql("DELETE FROM madlib_mop.setting RETURNING value") == "1"
    finally:
        addition.unlink()
        clone.make("server")


@pytest.mark.slow
def test_clean_leaves_nothing_and_spares_what_is_not_ours(scratch, state):
    own_state = scratch / "to_be_cleaned"
    own_state.mkdir()
    share_setup(state, own_state)
    clone = Clone(scratch / "cleaned", own_state)
    clone.make("server")
    port, directory = int(clone.cluster("port")), re.search("host=([^&]*)", clone.dsn)[1]
    assert listening(port)
    clone.make("clean")
    assert not listening(port) and not own_state.exists() and not Path(directory).exists()
    assert (state / "library" / "venv").exists()

    foreign = scratch / "foreign"
    foreign.mkdir()
    clone.state = foreign
    assert "nothing was removed" in clone.make("clean", check=False).stderr
    assert foreign.exists()


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="becomes another user")
def test_an_ordinary_user_runs_the_server_as_himself_with_his_own_state(scratch, state):
    home = scratch / "home of nobody"
    home.mkdir()
    clone = Clone(home / "clone", user="nobody")
    build = clone.root / ".build"
    build.mkdir()
    share_setup(state, build)
    subprocess.run(["chown", "-R", "nobody", home], check=True)
    home.chmod(0o700)
    clone.make("server")
    try:
        assert clone.dsn.startswith("postgresql://nobody@/madlib_mop?")
        assert clone.sql("SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user") == "nobody|t"
        assert Path(clone.cluster("datadir")).owner() == "nobody"
        assert "All checks passed: the installation is complete." in clone.make("doctor").stdout
    finally:
        clone.make("clean")
    assert not build.exists()


class TestDoctor:
    """`madlib-mop doctor` finds problems."""

    @pytest.fixture
    def hba(self, clone):
        """The server's pg_hba.conf, restored at the end."""
        file = Path(clone.cluster("datadir")) / "pg_hba.conf"
        good = file.read_text()
        yield file
        file.write_text(good)
        clone.sql("SELECT pg_reload_conf()")

    def doctor(self, clone):
        done = clone.make("doctor", check=False)
        found = {line[6:28].strip(): line for line in done.stdout.splitlines() if not line.startswith("  ")}
        return done, found

    @pytest.mark.slow
    def test_a_sound_installation_passes(self, clone):
        done, found = self.doctor(clone)
        assert done.returncode == 0, done.stdout
        assert {line[:4].strip() for line in found.values()} <= {"ok", "All"}
        assert "TensorFlow 2." in found["tensorflow"] and "PostgreSQL" in found["server"]

    @pytest.mark.slow
    def test_no_way_in_by_password(self, clone, hba):
        hba.write_text("".join(line for line in hba.read_text().splitlines(True) if "127.0.0.1" not in line))
        clone.sql("SELECT pg_reload_conf()")
        done, found = self.doctor(clone)
        assert done.returncode != 0
        assert found["worker login"].startswith("FAIL") and "no pg_hba.conf entry" in found["worker login"]
        assert f"Add this line to {hba}: host all all 127.0.0.1/32 scram-sha-256" in done.stdout
        assert clone.sql("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'madlib_mop_doctor%'") == "0"

    @pytest.mark.slow
    def test_a_loopback_address_that_is_trusted(self, clone, hba):
        hba.write_text(hba.read_text().replace("scram-sha-256", "trust"))
        clone.sql("SELECT pg_reload_conf()")
        done, found = self.doctor(clone)
        assert found["worker login"].startswith("warn") and "trusts 127.0.0.1" in found["worker login"]

    @pytest.mark.slow
    @pytest.mark.skipif(not AS_ROOT, reason="the doctor and the server's user must be different users")
    def test_no_way_in_for_the_driver(self, clone, hba):
        ident = hba.with_name("pg_ident.conf")
        good = ident.read_text()
        ident.write_text("".join(line for line in good.splitlines(True) if '"postgres"  "postgres"' not in line))
        clone.sql("SELECT pg_reload_conf()")
        try:
            done, found = self.doctor(clone)
        finally:
            ident.write_text(good)
        assert done.returncode != 0
        assert found["catalog login"].startswith("FAIL") and "eer authentication failed" in found["catalog login"]

    @pytest.mark.slow
    def test_a_server_that_is_down(self, clone):
        clone.make("stop")
        try:
            done, found = self.doctor(clone)
        finally:
            clone.make("server")
        assert done.returncode != 0 and found["connection"].startswith("FAIL")

    def test_a_database_without_the_extension(self, clone):
        dsn = clone.dsn.replace("/madlib_mop?", "/postgres?")
        done = clone.make("doctor", check=False, MADLIB_MOP_DSN=dsn)
        assert done.returncode != 0
        assert "CREATE EXTENSION madlib_mop CASCADE" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_install_into_an_existing_server_and_uninstall(scratch, state, clone):
    """An existing server is a second PostgreSQL tree, so that the system's own stays as it is."""
    system = (state / "pg_config").read_text().strip()
    tree = [sys.executable, "make/pgtree.py", system, str(scratch / "existing server")]
    pg_config = Path(clone.run(*tree).stdout.strip()) / "pg_config"
    existing = Clone(scratch / "another clone", scratch / "another state")

    done = existing.make("install", check=False)
    assert "PG_CONFIG is missing" in done.stderr and "PG_CONFIG=" in done.stderr

    existing.make("install", f"PG_CONFIG={pg_config}", f"PYTHON={sys._base_executable}")
    (existing.state / "bindir").parent.mkdir(exist_ok=True)
    (existing.state / "bindir").write_text(str(pg_config.parent))
    existing.cluster("start")
    try:
        database = existing.cluster("dsn", "postgres")
        psql = [str(pg_config.parent / "psql"), "-XAtq", "-d", database, "-c"]
        existing.run(*psql, "CREATE EXTENSION madlib_mop CASCADE")
        library = subprocess.run([pg_config, "--pkglibdir"], stdout=subprocess.PIPE, text=True).stdout.strip()
        doctor = existing.run(f"{library}/madlib_mop/venv/bin/madlib-mop", "doctor", "--dsn", database)
        assert f"{library}/madlib_mop/venv/bin/python" in doctor.stdout
        existing.run(*psql, "DROP EXTENSION madlib_mop")
        existing.make("uninstall", f"PG_CONFIG={pg_config}")
        assert not Path(library, "madlib_mop").exists()
        offered = "SELECT count(*) FROM pg_available_extensions WHERE name = 'madlib_mop'"
        assert existing.run(*psql, offered).stdout.strip() == "0"
    finally:
        existing.cluster("destroy")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not AS_ROOT, reason="makes a user")
def test_everything_from_nothing_as_a_new_user_whose_home_is_closed():
    user = f"mop_test_{secrets.token_hex(3)}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", user], check=True)
    try:
        home = Path(f"~{user}").expanduser()
        home.chmod(0o700)
        clone = Clone(home / "clone", user=user)
        clone.make("server", f"PYTHON={sys._base_executable}")
        try:
            assert clone.dsn.startswith(f"postgresql://{user}@/madlib_mop?")
            assert "All checks passed: the installation is complete." in clone.make("doctor").stdout
        finally:
            clone.make("clean")
    finally:
        subprocess.run(["userdel", "--remove", user], check=True, stderr=subprocess.DEVNULL)
