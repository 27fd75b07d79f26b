"""The Python client: its sessions keep to one transaction a call, whatever engine, role or failure they meet."""

import threading
import time
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine

from madlib_mop.client import connect
from madlib_mop.errors import InvalidParameter, NotReady
from tests.helpers.customers import customers

DRIVERS = ("postgresql+psycopg2://", "postgresql+psycopg://")
#: What an administrator may have chosen for a role.
TEXT = {
    "IntervalStyle": "sql_standard", "DateStyle": "SQL, DMY", "extra_float_digits": "-15", "bytea_output": "escape",
    "client_encoding": "LATIN1", "TimeZone": "Asia/Kolkata",
}  # fmt: skip
LISTENING = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND query LIKE 'LISTEN %%'"
)


@pytest.fixture(scope="module")
def frame():
    return customers().drop(columns="scores")


@pytest.fixture(scope="module")
def client(db):
    with connect(db.dsn, settings={"segments": 1}) as client:
        yield client


@pytest.fixture(scope="module")
def packed(client, frame):
    return client.pack(frame, "left", table="customers", seed=1)


@pytest.fixture(scope="module")
def configs(client, packed):
    return client.networks(packed, n_configs=1, epochs=1)


@pytest.fixture(scope="module")
def run(client, packed, configs):
    return client.fit(packed, configs, epochs=1, seed=1, progress=False)


@pytest.mark.slow
def test_neither_an_idle_nor_an_ended_listening_session_stops_the_training(db, packed, configs):
    ended = []

    def end_listeners(status):
        if status.visits_done >= 1 and not ended:
            ended.append(db.value(LISTENING, [db.name]))

    separator = "&" if "?" in db.dsn else "?"
    with connect(f"{db.dsn}{separator}options=-c%20idle_session_timeout%3D300", settings={"segments": 1}) as client:
        run = client.fit(packed, configs, epochs=60, seed=1, progress=end_listeners)
        assert run.progress.state == "finished" and ended == [1]


@pytest.mark.slow
def test_keys_of_a_leaderboard_find_runs_and_models(client, run, frame):
    found = client.run(client.runs().index[0])
    assert found.run_id == run.run_id
    board = found.leaderboard()
    by_number = run.model(1).predict(frame)
    assert found.model(board.index[0]).predict(frame).equals(by_number)
    assert found.model(board["training_loss"].idxmin()).predict(frame).equals(by_number)


@pytest.mark.parametrize("url", DRIVERS)
def test_values_of_numpy_and_wrong_values_in_a_query(db, url):
    engine = create_engine(db.dsn.replace("postgresql://", url))
    with connect(engine) as client:
        found = client.query("SELECT %s::float8 AS f, %s::int8 AS i", [np.float64(1.5), np.int64(7)])
        assert found.iloc[0].tolist() == [1.5, 7]
        for values in ([1], [1, 2, 3], [1, object()]):
            with pytest.raises(InvalidParameter, match="the driver of PostgreSQL cannot convert a value"):
                client.query("SELECT %s::text, %s::text", values)
    engine.dispose()


@pytest.mark.parametrize("url", DRIVERS)
def test_columns_of_one_name_and_statements_without_rows(db, url):
    engine = create_engine(db.dsn.replace("postgresql://", url))
    with connect(engine) as client:
        found = client.query("SELECT 1 AS a, 2 AS a")
        assert found.columns.tolist() == ["a", "a"] and found.to_numpy().tolist() == [[1, 2]]
        assert client.query("CREATE TABLE made (i int)").empty
        assert client.query("INSERT INTO made VALUES (%s), (%s)", [1, 2]).empty
        assert client.query("SELECT sum(i) AS n FROM made")["n"].tolist() == [3]
        client.query("DROP TABLE made")
        assert client.query("SELECT '0001-01-01'::timestamp AS t")["t"][0] == datetime(1, 1, 1)  # noqa: DTZ001
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ"])
@pytest.mark.parametrize("url", DRIVERS)
def test_each_call_is_a_transaction_whatever_the_engine_has(db, url, level, run, frame):
    engine = create_engine(db.dsn.replace("postgresql://", url), isolation_level=level)
    with connect(engine, settings={"segments": 3}) as client:
        found = client.query(
            "SELECT current_setting('madlib_mop.segments') AS n, current_setting('transaction_isolation') AS i"
        )
        assert found.iloc[0].tolist() == ["3", "read committed"]
        assert client.run(run.run_id).best().predict(frame).equals(run.best().predict(frame))
    with engine.connect() as connection:  # which the handle leaves as it was
        assert connection.connection.driver_connection.autocommit == (level == "AUTOCOMMIT")
        assert level == "AUTOCOMMIT" or connection.get_isolation_level() == level
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("url", DRIVERS)
def test_values_and_predictions_are_the_same_for_a_role_with_other_text_settings(db, url, client, run, frame):
    db.cluster.create_role("odd_texts")
    for name, value in TEXT.items():
        db.rows(f"ALTER ROLE odd_texts SET {name} = '{value}'")
    db.rows("GRANT CREATE ON SCHEMA public TO odd_texts")
    db.rows("SELECT madlib_mop.grant_use('odd_texts')")
    tables = ", ".join(f'{run.best().table[:-1]}{end}"' for end in ("", "_info", "_summary"))
    db.rows(f"GRANT SELECT ON {tables} TO odd_texts")
    rows = pd.DataFrame({
        "id": [1, 2], "span": [pd.Timedelta(-1, "s"), pd.Timedelta(3, "h")], "city": ["Łódź", "Köln"],
        "number": [0.1 + 0.2, 1 / 3], "raw": [b"\x00\xff", b"a"],
        "at": pd.to_datetime(["2020-02-03 04:05:06.789", "1999-12-31 00:00:00.000"]).tz_localize("UTC"),
    })  # fmt: skip
    with connect(db.dsn_of("odd_texts").replace("postgresql://", url)) as odd:
        name = odd.upload(rows)
        query = f"SELECT extract(epoch FROM span)::float8 AS s, city, number, raw, at FROM {name} ORDER BY id"
        found = odd.query(query)
        assert found["s"].tolist() == [-1.0, 10800.0] and found["city"].tolist() == ["Łódź", "Köln"]
        assert found["number"].tolist() == [0.1 + 0.2, 1 / 3]
        assert [bytes(raw) for raw in found["raw"]] == [b"\x00\xff", b"a"]
        assert found["at"].tolist() == rows["at"].tolist()
        assert found.drop(columns="raw").equals(client.query(query).drop(columns="raw"))
        model = odd.model(run.best().table, 1)
        assert model.predict_proba(frame).to_numpy().tobytes() == run.best().predict_proba(frame).to_numpy().tobytes()
        assert len(odd.runs()) == 0


@pytest.mark.slow
def test_models_of_another_session_are_there_when_its_transaction_has_ended(db, client, packed, configs, frame):
    connection = db.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SET madlib_mop.segments = 1")
        cursor.execute(
            "SELECT madlib.madlib_keras_fit_multiple_model(%s, 'later_models', %s, 1)", [packed.table, configs.table]
        )
        run = client.run(client.runs().index[0])
        assert run.progress.state == "finished"
        with pytest.raises(NotReady, match="is not written yet"):
            run.best()
        began = time.monotonic()
        threading.Timer(1, connection.commit).start()
        assert len(run.wait().best().predict(frame)) == len(frame)
        assert time.monotonic() - began >= 0.9
    connection.close()
    client.query("DROP TABLE later_models, later_models_info, later_models_summary")
