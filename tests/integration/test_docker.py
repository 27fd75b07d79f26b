"""docker/ without a container: the effects of its scripts on a server, and the existence of the files that it names."""

import re
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
WORD = f"secret {uuid.uuid4().hex}"
SECRET = f"it's '{WORD}' \\ of \"theirs\""
PASSWORD_FILES = ("MOP_PASSWORD_FILE", "MOP_HOST_PASSWORD_FILE", "MOP_HOST_SUPERUSER_PASSWORD_FILE")
COMPOSE = ["compose.yaml", "compose.hosts.yaml"]


def run_script(name: str, db, tmp_path, **variables) -> subprocess.CompletedProcess:
    """Run a script of docker/ as in a container's first start, with a superuser's login to one of our servers."""
    file = tmp_path / "password"
    file.write_text(SECRET)
    environment = {"PATH": f"{db.cluster.bindir}:/usr/bin:/bin", "MOP_DSN": db.dsn}
    environment |= dict.fromkeys(PASSWORD_FILES, str(file))
    return subprocess.run([DOCKER / name], env={**environment, **variables}, capture_output=True, text=True)


@pytest.fixture
def role(db):
    name = f"role of docker {uuid.uuid4().hex[:6]}"
    yield name
    db.rows(f'DROP OWNED BY "{name}"')
    db.rows(f'DROP ROLE "{name}"')
    db.rows("ALTER SYSTEM RESET client_connection_check_interval")


def test_a_new_server_has_the_extension_and_a_role_that_may_use_it_and_log_in(db, role, tmp_path):
    import psycopg2

    db.rows("DROP EXTENSION madlib_mop CASCADE")
    done = run_script("init-server.sh", db, tmp_path, MOP_USER=role)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with psycopg2.connect(
        host="127.0.0.1", port=db.cluster.port, dbname=db.name, user=role, password=SECRET
    ) as session, session.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT madlib.madlib_keras_fit_multiple_model('usage')")
        cursor.execute("SELECT has_database_privilege(%s, 'CREATE')", [db.name])
        assert cursor.fetchone() == (True,)
    session.close()
    assert WORD not in db.cluster.log_tail(200)


def test_a_coordinator_gets_a_server_and_mappings_for_each_host(db, tmp_path):
    """The hosts' passwords reach the mappings unchanged, and are in no output and no log."""
    if not db.rows("SELECT 1 FROM pg_proc WHERE pronamespace = 'madlib_mop'::regnamespace AND proname = 'add_host'"):
        pytest.skip("madlib_mop.add_host is not there")
    done = run_script("init-coordinator.sh", db, tmp_path, MOP_HOST_USER="segments",
                      MOP_HOSTS="alpha=127.0.0.1:1 beta=127.0.0.1:1")  # fmt: skip
    assert done.returncode != 0 and "alpha" in done.stderr, "nobody is at port 1, and add_host says so"
    assert db.rows(
        "SELECT srvname, srvoptions @> ARRAY['host=127.0.0.1', 'port=1', 'dbname=madlib_mop'] FROM pg_foreign_server"
    ) == [("alpha", True)], "and no further host is told of"
    ((options,),) = db.rows("SELECT umoptions FROM pg_user_mapping")
    assert options == ["user=postgres", f"password={SECRET}"]
    assert WORD not in done.stdout + done.stderr + db.cluster.log_tail(200)


@pytest.mark.parametrize("script", ["init-server.sh", "init-coordinator.sh"])
def test_a_missing_password_ends_a_script_before_it_does_anything(db, tmp_path, script):
    files = dict.fromkeys(PASSWORD_FILES, str(tmp_path / "nowhere"))
    done = run_script(script, db, tmp_path, MOP_USER="nobody_made_this", MOP_HOST_USER="s", MOP_HOSTS="a=b:1", **files)
    assert done.returncode != 0 and "cannot read" in done.stderr and "nowhere" in done.stderr
    assert db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'nobody_made_this'") == []
    assert db.rows("SELECT 1 FROM pg_foreign_server WHERE srvname = 'a'") == []


def test_a_server_without_hosts_is_left_alone(db, tmp_path):
    done = run_script("init-coordinator.sh", db, tmp_path, MOP_DSN="port=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", COMPOSE)
def test_what_a_compose_file_names_is_there(name):
    compose = yaml.safe_load((DOCKER / name).read_text())
    for service in compose["services"].values():
        assert service["init"] is True, "the server must not be process 1, which adopts what its backends leave behind"
        (build,) = {(s["build"]["context"], s["build"]["dockerfile"]) for s in compose["services"].values()
                    if s["image"] == service["image"] and "build" in s}  # fmt: skip
        assert ((DOCKER / build[0]).resolve() / build[1]).is_file()
        assert {secret["file"] for secret in compose["secrets"].values()} >= {
            f"./secrets/{secret}" for secret in service.get("secrets", ())
        }
        assert {mount.partition(":")[0] for mount in service["volumes"]} <= set(compose["volumes"])
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        for key, value in service.get("environment", {}).items():
            if key.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], key
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "not open to the world"


@pytest.mark.parametrize("name", COMPOSE)
def test_variables_of_the_compose_files_are_those_that_the_scripts_read(name):
    read = set(re.findall(r"\bMOP_\w+", "".join(file.read_text() for file in DOCKER.glob("init-*.sh"))))
    services = yaml.safe_load((DOCKER / name).read_text())["services"].values()
    assert {key for s in services for key in s.get("environment", ()) if key.startswith("MOP_")} <= read


def test_the_coordinator_names_every_host_and_its_role_there():
    services = yaml.safe_load((DOCKER / "compose.hosts.yaml").read_text())["services"]
    environment = services.pop("coordinator")["environment"]
    assert len(services) == 3
    assert environment["MOP_HOSTS"].split() == [f"{name}={name}:5432" for name in services]
    for host in services.values():
        assert host["environment"]["MOP_USER"] == environment["MOP_HOST_USER"]
        assert host["environment"]["MOP_PASSWORD_FILE"] == environment["MOP_HOST_PASSWORD_FILE"]
        superusers = host["environment"]["POSTGRES_PASSWORD_FILE"]
        assert superusers == environment["MOP_HOST_SUPERUSER_PASSWORD_FILE"]


def test_the_worker_of_jobs_runs_the_library_of_the_image_and_waits_for_the_server():
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    worker, server, text = services["work"], services["server"], (DOCKER / "Dockerfile").read_text()
    assert "HEALTHCHECK" in text and worker["depends_on"] == {"server": {"condition": "service_healthy"}}
    program, command, *_ = worker["entrypoint"]
    assert f"PG_CONFIG={Path(program).parents[4]}/bin/pg_config" in text and command == "work"
    sockets = {mount for mount in server["volumes"] if mount.endswith(":/var/run/postgresql")}
    assert sockets == set(worker["volumes"]), "the worker logs in over the server's socket, as its owner"


def test_what_the_dockerfile_copies_and_runs_is_there():
    text = (DOCKER / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert re.search(r"make -C \S+ (\w+)", text)[1] in targets
    executable = [file for file in DOCKER.glob("*.sh") if file.stat().st_mode & 0o100]
    assert executable and executable == list(DOCKER.glob("*.sh"))


def test_secrets_are_drawn_once_and_only_their_owner_enters(tmp_path):
    for folder in ("docker", "make"):
        (tmp_path / folder).mkdir()
        for file in (ROOT / folder).glob("*.*"):
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    draw = ["bash", tmp_path / "make" / "docker.sh", "secrets"]
    subprocess.run(draw, check=True, capture_output=True)
    secrets = tmp_path / "docker" / "secrets"
    drawn = {file.name: file.read_text() for file in secrets.iterdir()}
    named = {name for c in COMPOSE for name in yaml.safe_load((DOCKER / c).read_text())["secrets"]}
    assert set(drawn) == named and len(set(drawn.values())) == len(named)
    assert secrets.stat().st_mode & 0o077 == 0
    subprocess.run(draw, check=True, capture_output=True)
    assert {file.name: file.read_text() for file in secrets.iterdir()} == drawn
    assert "docker/secrets/" in (ROOT / ".gitignore").read_text().split()
    assert "docker/secrets" in (ROOT / ".dockerignore").read_text().split()


def test_a_coordinator_ends_with_the_hosts_role_and_no_superusers_login(db, role, tmp_path):
    """A replacement of add_host records the login that it would have used, which shows the order of the steps."""
    db.rows("DROP EXTENSION IF EXISTS madlib_mop CASCADE")
    db.rows("DROP EXTENSION IF EXISTS postgres_fdw CASCADE")
    db.rows("DROP SCHEMA IF EXISTS madlib_mop CASCADE")
    db.rows("CREATE SCHEMA madlib_mop")
    db.rows("CREATE TABLE madlib_mop.added (server name, login text[])")
    db.rows(
        "CREATE FUNCTION madlib_mop.add_host(server name) RETURNS void LANGUAGE sql AS $$ INSERT INTO madlib_mop.added"
        " SELECT server, umoptions FROM pg_user_mappings WHERE srvname = server $$"
    )
    db.rows(f'CREATE ROLE "{role}"')
    done = run_script(
        "init-coordinator.sh", db, tmp_path, MOP_HOST_USER="segments", MOP_USER=role, MOP_HOSTS="alpha=a:1 beta=b:2"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    superuser = ["user=postgres", f"password={SECRET}"]
    assert db.rows("SELECT * FROM madlib_mop.added ORDER BY 1") == [("alpha", superuser), ("beta", superuser)]
    mappings = db.rows("SELECT srvname, usename::text, umoptions FROM pg_user_mappings ORDER BY 1, 2")
    assert len(mappings) == 4 and {user for _, user, _ in mappings} == {role, db.cluster.superuser}
    assert all(options == ["user=segments", f"password={SECRET}"] for _, _, options in mappings)
    assert WORD not in db.cluster.log_tail(200)


def test_the_server_does_not_inherit_the_superuser_s_password(tmp_path):
    """The base image's entrypoint runs ``postgres`` by the PATH with POSTGRES_PASSWORD set; ours removes it."""
    server = tmp_path / "postgres"
    server.write_text('#!/bin/sh\necho "arguments: $*"\nenv\n')
    server.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "MOP_BINDIR": str(tmp_path), "POSTGRES_PASSWORD": SECRET}
    done = subprocess.run([DOCKER / "postgres.sh", "-c", "port=1"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "arguments: -c port=1" in done.stdout, done.stderr
    assert WORD not in done.stdout and "POSTGRES_PASSWORD" not in done.stdout


def test_the_image_starts_the_server_by_the_script_that_removes_the_password():
    assert "COPY docker/postgres.sh /usr/local/bin/postgres\n" in (DOCKER / "Dockerfile").read_text()
