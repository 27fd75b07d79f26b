"""madlib_mop.predict on a real standby: no writes, and new models of the primary are used as soon as replayed."""

import threading

import numpy as np
import psycopg2
import pytest

from tests.helpers.faults import wait_for
from tests.helpers.inference import User, weights_of
from tests.helpers.standby import Standby, replayed

pytestmark = pytest.mark.slow
#: Returns how often it has predicted the same in one statement of the client.
UNTIL_OTHER = """
CREATE FUNCTION until_other() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    n integer := 0;
    before real[] := (SELECT madlib_mop.predict('kept@champion', NULL, ARRAY[0.5, -1, 2]));
BEGIN
    WHILE (SELECT madlib_mop.predict('kept@champion', NULL, ARRAY[0.5, -1, 2])) = before AND n < 1000 LOOP
        n := n + 1;
        PERFORM pg_sleep(0.02);
    END LOOP;
    RETURN n;
END $$;
"""


def test_predictions_on_a_standby(db, keras):
    layers = keras.layers
    nets = [keras.Sequential([keras.Input((3,)), layers.Dense(2, "softmax")]) for _ in range(2)]
    x = np.array([[0.5, -1, 2]], np.float32)
    primary = User(db.connect())
    primary.write_models("models", {1: nets[0]})
    db.connect("analyst").close()
    primary.rows("SELECT madlib_mop.grant_use('analyst');"
                 " GRANT SELECT ON models, models_info, models_summary TO analyst")  # fmt: skip
    primary.rows("SELECT madlib_mop.register('kept', 'models'); SELECT madlib_mop.register('kept', 'models');"
                 " SELECT madlib_mop.set_alias('kept', 'champion', 1);"
                 " SELECT madlib_mop.set_challenger('kept', 'champion', 2, 1);"
                 " SELECT madlib_mop.grant_model('kept', 'analyst', 'predict')")  # fmt: skip
    standby = Standby(db.cluster)
    call = "SELECT madlib_mop.predict('models', 1, ARRAY[0.5, -1, 2])"
    try:
        standby.start()
        reader = User(standby.connect(db.name, "analyst"))
        assert reader.value("SELECT pg_is_in_recovery()")
        assert np.allclose(reader.value(call), nets[0].predict(x, verbose=0)[0], atol=1e-6)
        registered = call.replace("'models', 1", "'kept@champion', NULL")
        assert reader.value(registered) == reader.value(call)
        assert reader.value("SELECT madlib_mop.predict_version('kept@champion')") == 1
        primary.rows("UPDATE models SET model_weights = %s", weights_of(nets[1]))
        replayed(primary, reader)
        assert np.allclose(reader.value(call), nets[1].predict(x, verbose=0)[0], atol=1e-6)
        writes = "SELECT madlib.madlib_keras_predict('models', 'models', 'mst_key', 'mst_key', 'out', mst_key => 1)"
        refusal = reader.refused(reader.rows, writes)
        assert (refusal.sqlstate, "read-only transaction" in refusal.message) == ("25006", True)
        _switch_during_a_loop(db, primary, standby, reader)
        reader.connection.close()
    finally:
        standby.stop()
        primary.connection.close()


def _switch_during_a_loop(db, primary, standby, reader):
    """A loop in one statement sees the switch of an alias, though a transaction that began earlier still runs and one
    that began later has committed: so the text of the snapshots stays the same."""
    primary.rows("SELECT madlib_mop.register('kept', 'models')")  # another answer
    primary.rows(UNTIL_OTHER)
    earlier, switch = User(db.connect()), User(db.connect())
    earlier.rows("BEGIN; SELECT txid_current()")
    switch.rows("BEGIN; SELECT madlib_mop.set_alias('kept', 'champion', 3)")
    primary.rows("CREATE TABLE later ()")
    replayed(primary, reader)
    seen = []
    loop = threading.Thread(target=lambda: seen.append(reader.value("SELECT until_other()")))
    watch = User(standby.connect(db.name, "analyst"))
    loop.start()
    try:
        sleeps = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = 'analyst'"
        wait_for(lambda: watch.rows(sleeps), what="the loop")
        switch.rows("COMMIT")
        replayed(primary, watch)
        loop.join(6)  # it predicts every 20 ms; later, another transaction may change the text
        has_ended = not loop.is_alive()
    finally:
        loop.join()
        for session in (earlier, switch, watch):
            session.connection.close()
    assert has_ended and seen[0] > 0


def test_predictions_while_a_standby_is_promoted(db, keras):
    """Each answer is right, in a session that goes on; afterwards the server writes."""
    layers = keras.layers
    net = keras.Sequential([keras.Input((3,)), layers.Dense(2, "softmax")])
    primary = User(db.connect())
    primary.rows("DROP TABLE IF EXISTS models, models_info, models_summary")
    primary.write_models("models", {1: net})
    call = "SELECT madlib_mop.predict('models', 1, ARRAY[0.5, -1, 2])"
    expected = primary.value(call)
    standby = Standby(db.cluster)
    answers, errors, until = [], [], threading.Event()

    def predict(session):
        while not until.is_set():
            try:
                answers.append(session.value(call))
            except psycopg2.Error as error:
                errors.append(error)

    try:
        standby.start()
        readers = [User(standby.connect(db.name)) for _ in range(2)]
        threads = [threading.Thread(target=predict, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: len(answers) > 10, what="predictions before")
            standby.promote()
            n = len(answers)
            wait_for(lambda: len(answers) > n + 10, what="predictions after")
        finally:
            until.set()
            for thread in threads:
                thread.join()
        assert errors == [] and all(answer == expected for answer in answers)
        assert not readers[0].value("SELECT pg_is_in_recovery()")
        readers[0].rows("SELECT madlib_mop.register('promoted', 'models')")
        assert readers[1].value(call.replace("'models', 1", "'promoted@1', NULL")) == expected
        for reader in readers:
            reader.connection.close()
    finally:
        standby.stop()
        primary.connection.close()
