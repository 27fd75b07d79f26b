"""No session of ours runs a function, an operator, a type or a view that the owner of a database has put on the path.

The owner of the database has set the search_path of all logins: a schema with a trap for each name of pg_catalog comes
first. The trap counts. So this reads all statements of these sessions: a statement that names something without its
schema, in a session whose path is not pinned, is counted.
"""

import signal

import pandas as pd
import pytest
from sqlalchemy import create_engine

from madlib_mop.client import connect
from madlib_mop.errors import MopError
from tests.conftest import Database
from tests.helpers.commands import run
from tests.helpers.dash import serving
from tests.helpers.faults import wait_for
from tests.helpers.invented import invent_run
from tests.helpers.jobs import JobWorker
from tests.helpers.security.attacks import record_run, recorded_plan, user
from tests.helpers.training import one_thread, script
from tests.security.test_columns import LINEAR

pytestmark = pytest.mark.slow

MALLORY, ALICE = "mallory_of_the_path", "alice_of_the_path"
TRAPS = r"""
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SEQUENCE evil.calls;
GRANT USAGE ON SEQUENCE evil.calls TO PUBLIC;
CREATE FUNCTION evil.spy(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM nextval('evil.calls');
    RAISE LOG 'trap % for %', what, current_user;
    RETURN true;
END $$;
DO $do$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.spy(%L); RETURN %s; END $f$',
            proname, pg_get_function_identity_arguments(oid), pg_get_function_result(oid), proname || '()',
            CASE WHEN NOT proretset THEN 'NULL' END)
        FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
        UNION ALL
        SELECT format('CREATE FUNCTION evil.operator_%1$s(%2$s) RETURNS %3$s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.spy(%4$L);'
            ' RETURN NULL; END $f$; CREATE OPERATOR evil.%5$s (FUNCTION = evil.operator_%1$s%6$s, RIGHTARG = %7$s)', oid,
            concat_ws(', ', nullif(oprleft, 0)::regtype, oprright::regtype), oprresult::regtype, oid::regoperator, oprname,
            ', LEFTARG = ' || nullif(oprleft, 0)::regtype, oprright::regtype)
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprright <> 0
        UNION ALL
        SELECT format('CREATE FUNCTION evil.step(state bigint, v %s) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.spy(%L);'
            ' RETURN 1; END $f$', kind, 'an aggregate')
        FROM unnest('{integer, bigint, double precision, numeric, text, timestamptz, boolean}'::regtype[]) kind
        UNION ALL
        SELECT format('CREATE AGGREGATE evil.%I(%s) (SFUNC = evil.step, STYPE = bigint, INITCOND = 0)', name, kind)
        FROM unnest('{integer, bigint, double precision, numeric, text, timestamptz, boolean}'::regtype[]) kind,
             unnest('{count, sum, avg, min, max, bool_and, bool_or, array_agg, json_agg}'::text[]) name
        UNION ALL
        SELECT 'CREATE FUNCTION evil.step(state bigint) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.spy(''count(*)'');'
            ' RETURN 1; END $f$; CREATE AGGREGATE evil.count(*) (SFUNC = evil.step, STYPE = bigint, INITCOND = 0)'
        UNION ALL
        SELECT format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%1$I WHERE evil.spy(%L)', relname, relname)
        FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')
        UNION ALL
        SELECT format('CREATE DOMAIN evil.%I AS pg_catalog.%1$I CHECK (evil.spy(%L))', typname, 'type ' || typname)
        FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A'
    LOOP
        BEGIN
            EXECUTE command;
        EXCEPTION WHEN OTHERS THEN NULL; -- pseudo-types and the like
        END;
    END LOOP;
END $do$;
"""  # noqa: E501


class OwnPath(Database):
    """The database, for the queries of these tests, whose own sessions have the usual path."""

    def connect(self, role: str | None = None, autocommit: bool = True):
        """Open a psycopg2 connection."""
        connection = super().connect(role, autocommit)
        with connection.cursor() as cursor:
            cursor.execute("SET search_path = public")
        return connection


@pytest.fixture(scope="module")
def hostile(db):
    """A database of mallory's with a run of a superuser's."""
    db = OwnPath(db.cluster, db.name)
    for role in (MALLORY, ALICE):
        user(db, role)
    run_id = invent_run(db, owner=db.cluster.superuser, output="ours.models", source="ours.packed")
    plan = recorded_plan("ours", "models", '"ours"."packed"')
    record_run(db, 4711, db.cluster.superuser, "failed", plan=plan)
    script(
        db,
        "CREATE SCHEMA ours; CREATE TABLE ours.rows AS SELECT g * 1.5 AS a, g % 5 * 2.5 AS b, g * 0.5 AS y"
        " FROM generate_series(1, 60) g",
        f'ALTER DATABASE "{db.name}" OWNER TO {MALLORY}',
    )
    script(db, TRAPS, f'ALTER DATABASE "{db.name}" SET search_path = evil, pg_catalog, public', role=MALLORY)
    yield db, run_id
    db.rows(f'ALTER DATABASE "{db.name}" OWNER TO {db.cluster.superuser}')


@pytest.fixture
def trapped(hostile):
    """The database and the run; fails if a trap was sprung."""
    db, run_id = hostile
    before = calls(db)
    yield db, run_id
    sprung = [line for line in db.cluster.log_tail(300).splitlines() if "LOG:  trap" in line]
    assert calls(db) == before, sprung


def calls(db) -> tuple:
    """Return the state of the counter of traps that were sprung."""
    return db.rows("SELECT last_value, is_called FROM evil.calls")[0]


def test_the_traps_are_set(hostile):
    db, _ = hostile
    statements = (
        "SELECT count(*)",
        "SELECT current_setting('port')",
        "SELECT 1 FROM pg_settings",
        "SELECT 'a' || 'b'::pg_catalog.text",
        "SELECT CAST('a' AS text)",
        "SELECT max(n) FROM pg_catalog.generate_series(1, 2) n",
        "SELECT pg_catalog.current_database() = 'x'",
        "SELECT set_config('a.b', 'c', false)",
    )
    for statement in statements:
        before = calls(db)
        connection = Database.connect(db)
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()
        assert calls(db) != before, statement


COMMANDS = {
    "doctor": ("doctor",),
    "runs": ("runs",),
    "watch": ("watch", "{run}", "--once"),
    "watch as JSON": ("watch", "{run}", "--json"),
    "report": ("report", "{run}", "--output", "{dir}/report.html"),
    "simulate": ("simulate", "--run", "{run}"),
    "cancel": ("cancel", "{run}"),
    "resume": ("resume", "4711", "--set", "segments=1"),
    "replay": ("replay", "4711", "ours.again"),
    "export": ("export", "ours.models", "--mst-key", "1", "--output", "{dir}"),
    "card": ("card", "ours.models", "--mst-key", "1"),
    "import": ("import", "{dir}/nothing.keras", "--table", "ours.networks"),
    "drift": ("drift", "ours.models", "ours.rows", "--mst-key", "1"),
    "tensorboard": ("tensorboard", "{run}", "{dir}"),
    "optuna": ("optuna", "{run}", "--storage", "{dir}/journal.log"),
    "fit": ("fit", "ours.rows", "ours.out", "ours.mst", "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_springs_no_trap(trapped, command, tmp_path):
    db, run_id = trapped
    words = [word.format(run=run_id, dir=tmp_path) for word in COMMANDS[command]]
    (tmp_path / "nothing.keras").write_bytes(b"nothing")
    ended = run(db, *words)
    assert "Usage:" not in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


def test_a_call_in_sql_and_its_sessions_spring_no_trap(trapped):
    """Driver, catalog session, readers and writers: from rows to predictions, by a superuser."""
    db, _ = trapped
    connection = Database.connect(db)
    with connection.cursor() as cursor:
        for statement, values in (
            ("SELECT madlib_mop.pack_columns('ours.rows', 'ours.table', 'y', seed => 1)", None),
            ("SELECT madlib.load_keras_model('ours.linear', %s)", [LINEAR]),
            ("SELECT madlib.load_model_selection_table('ours.linear', 'ours.mst', '{1}',"
             " '{\"optimizer=''adam'', loss=''mse''\"}', '{batch_size=32}')", None),
            ("SELECT madlib.madlib_keras_fit_multiple_model('ours.table', 'ours.trained', 'ours.mst', 1)", None),
            ("SELECT madlib_mop.predict_number('ours.trained', 1, r) FROM ours.rows r LIMIT 1", None),
            ("SELECT madlib_mop.predict('ours.trained', 1, r) FROM (SELECT a, b FROM ours.rows) r LIMIT 1", None),
            ("SELECT madlib_mop.register('ours', 'ours.trained')", None),
            ("SELECT madlib_mop.set_alias('ours', 'newest', 1)", None),
            ("SELECT madlib_mop.predict_number('ours', r) FROM ours.rows r LIMIT 1", None),
            ("SELECT madlib_mop.predict('ours', r) FROM (SELECT a, b FROM ours.rows) r LIMIT 1", None),
        ):  # fmt: skip
            cursor.execute(statement, values)
    connection.close()


@pytest.mark.parametrize(("statement", "end"), [("SELECT 1", "finished"), ("TABLE nowhere", "failed")])
@pytest.mark.parametrize("role", [ALICE, None], ids=["alice", "superuser"])
def test_a_job_worker_springs_no_trap(trapped, role, statement, end):
    """Nor does the session of a job, which has the path of the session that submitted it."""
    db, _ = trapped
    connection = Database.connect(db, role)
    with connection.cursor() as cursor, JobWorker(db) as worker:
        cursor.execute("SELECT madlib_mop.submit(%s)", [statement])
        state = f"SELECT state FROM madlib_mop.job WHERE job_id = {cursor.fetchone()[0]}"
        wait_for(lambda: db.value(state) in ("finished", "failed"), what="the job", log=lambda: worker.log)
        assert db.value(state) == end, worker.log
        worker.stop(signal.SIGTERM)
    connection.close()


def test_the_live_page_springs_no_trap(trapped):
    db, run_id = trapped
    with serving(db) as dash:
        browser = dash.browser(ALICE)
        for page in ("/", "/jobs", f"/runs/{run_id}"):
            browser.get(page)


DRIVERS = ("postgresql+psycopg2", "postgresql+psycopg")


@pytest.mark.parametrize("driver", ["libpq", *DRIVERS])
def test_the_python_client_springs_no_trap(trapped, driver, tmp_path):
    """Each statement of the client's own, of the driver and of SQLAlchemy: from a login to a deployed model."""
    one_thread()
    db, run_id = trapped
    name = f"ours.{driver.partition('+')[2] or driver}"
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5, 4.5] * 15, "b": list("abcd") * 15, "y": [0.5, 1.0, 1.5, 2.0] * 15})
    with connect(db.dsn.replace("postgresql", driver) if driver in DRIVERS else db.dsn) as client:
        packed = client.pack(frame, "y", table=f"{name}_rows", packed=f"{name}_packed", seed=1)
        assert not packed.describe().empty
        configs = client.configurations([LINEAR], compile="optimizer='adam', loss='mse'", fit="batch_size=32",
                                        table=f"{name}_configs")  # fmt: skip
        assert len(configs) == len(configs.frame()) == 1
        configs = client.networks(packed, n_configs=1, epochs=1, table=f"{name}_proposed")
        run = client.fit(packed, configs, epochs=1, models=f"{name}_models", seed=1, progress=False)
        assert run.progress.state == "finished"
        for read in (run.leaderboard, run.metrics, run.visits, client.runs, client.registry):
            read()
        model = run.best()
        assert len(model.predict(frame)) == len(model.predict(packed.source, key="a")) == 60
        model.drift(frame)
        model.card()
        model.export(tmp_path)
        model.to_keras()
        version = model.register(name.partition(".")[2], baseline=packed)
        version.deploy("champion", reason="test")
        assert len(client.registered(f"{name.partition('.')[2]}@champion").predict(frame)) == 60
        version.history()
        job = client.submit(packed, configs, 1, models=f"{name}_of_job")
        assert job.state == "waiting" and len(job.frame()) == 1
        job.cancel()
        client.run(run_id).leaderboard()
        for handle in (packed, configs):
            handle.drop()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_engine_of_the_persons_keeps_its_path_and_names_are_found_on_it(hostile, driver, level):
    """Also after an error, and in the person's own statements."""
    db, _ = hostile
    engine = create_engine(db.dsn.replace("postgresql", driver), isolation_level=level)
    with engine.connect() as connection:
        path = connection.exec_driver_sql("SHOW search_path").scalar_one()
        assert path == "evil, pg_catalog, public"
    before = calls(db)
    with connect(engine) as client:
        rows = client.upload(pd.DataFrame({"id": [1]}))
        assert rows.startswith('"evil".')
        assert client.query("SHOW search_path").iloc[0, 0] == path
        with pytest.raises(MopError, match="there is no table nowhere"):
            client.model("nowhere")
        with pytest.raises(MopError):
            client.query("SELECT nothing")
        assert client.query("SHOW search_path").iloc[0, 0] == path
        client.query("SET search_path = ours, public")
        assert client.query("SHOW search_path").iloc[0, 0] == "ours, public"
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW search_path").scalar_one() == "ours, public"
    assert calls(db) == before
    engine.dispose()
