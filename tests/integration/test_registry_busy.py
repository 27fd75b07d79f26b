"""An alias that is switched a hundred times a second, and statements that last longer than many switches.

Each statement answers from one version in all its rows, whatever form of predict it has, and none fails.
"""

import struct
import threading
import time

import pytest

from tests.helpers.columns import train_churn
from tests.helpers.inference import User

pytestmark = pytest.mark.slow

ANSWERS = {1: "no", 2: "yes"}
CLASS = "madlib_mop.predict_class('turn@busy', NULL, c)"
#: Each returns the classes that it has seen, and the version that answers in the same statement.
STATEMENTS = {
    "rows read ahead": f"SELECT array_agg(DISTINCT {CLASS}), min(madlib_mop.predict_version('turn@busy'))"
    " FROM customers c",
    "rows that take long": f"SELECT array_agg(DISTINCT p), min(v) FROM (SELECT {CLASS} AS p,"
    " madlib_mop.predict_version('turn@busy') AS v, pg_sleep(0.003) FROM customers c WHERE id <= 60) AS rows",
    "a join that predicts in two places": "SELECT array_agg(DISTINCT p), min(v) FROM (SELECT unnest(ARRAY["
    f"{CLASS}, (SELECT {CLASS.replace('c)', 'd)')} FROM customers d WHERE d.id = c.id)]) AS p,"
    " madlib_mop.predict_version('turn@busy') AS v, pg_sleep(0.003) FROM customers c WHERE id <= 30) AS rows",
    "a view": "SELECT array_agg(DISTINCT p), min(v) FROM scored WHERE id <= 200",
}
CURSOR = (f"DECLARE slow CURSOR FOR SELECT {CLASS}, madlib_mop.predict_version('turn@busy') FROM customers c"
          " WHERE id <= 40", "FETCH 20 FROM slow", "SELECT pg_sleep(0.05)", "FETCH 20 FROM slow")  # fmt: skip


@pytest.fixture(scope="module")
def user(db):
    """A session, and the name turn with two versions: one answers no for each row, the other yes."""
    train_churn(db, 1)
    user = User(db.connect())
    for biases in ((99.0, -99.0), (-99.0, 99.0)):
        bias = struct.pack("<2f", *biases)  # of the last layer
        user.rows(
            "UPDATE churn SET weights_digest = NULL, model_weights = overlay(model_weights PLACING %s::bytea"
            " FROM octet_length(model_weights) - 7)", bias,
        )  # fmt: skip
        user.rows("SELECT madlib_mop.register('turn', 'churn', 1)")
    user.rows("SELECT madlib_mop.set_alias('turn', 'busy', 1); SELECT madlib_mop.set_alias('turn', 'busy', 2)")
    user.rows(f"CREATE VIEW scored AS SELECT id, {CLASS} AS p, madlib_mop.predict_version('turn@busy') AS v"
              " FROM customers c")  # fmt: skip
    yield user
    user.connection.close()


class Asking:
    """Sessions that ask all the time, each its own statement; `failures` says what was wrong."""

    def __init__(self, db, n_sessions: int):
        self.failures: list[str] = []
        self.seen: list[int] = []
        self._stop = threading.Event()
        kinds = [*STATEMENTS, "a cursor"]
        self._threads = [
            threading.Thread(target=self._ask, args=(User(db.connect()), kinds[n % len(kinds)]))
            for n in range(n_sessions)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, session: User, kind: str) -> None:
        try:
            while not self._stop.is_set():
                classes, version = self._fetch(session) if kind == "a cursor" else session.rows(STATEMENTS[kind])[0]
                self.seen.append(version)
                if list(classes) != [ANSWERS[version]]:
                    self.failures.append(f"{kind} had {classes}, but version {version}")
        except Exception as error:
            self.failures.append(f"{kind}: {error!r}")
        finally:
            session.connection.close()

    def _fetch(self, session: User) -> tuple[list[str], int]:
        """Return what a cursor sees: its rows are fetched by several statements, but have the snapshot of one."""
        session.rows("BEGIN")
        rows = [row for statement in CURSOR for row in session.rows(statement) if len(row) == 2]
        session.rows("COMMIT")
        assert len(rows) == 40
        (version,) = {version for _, version in rows}
        return sorted({name for name, _ in rows}), version


def test_no_statement_fails_or_mixes_versions_while_the_alias_is_switched(db, user):
    asking = Asking(db, 8)
    try:
        deadline = time.monotonic() + 90
        while len(asking.seen) < 80 and not asking.failures and time.monotonic() < deadline:
            time.sleep(0.05)  # all sessions have their trainers
        n_before, began, n_switches = len(asking.seen), time.monotonic(), 0
        while time.monotonic() - began < 6:
            n_switches += 1
            user.rows("SELECT madlib_mop.set_alias('turn', 'busy', %s)", 1 + n_switches % 2)
            time.sleep(max(0, began + n_switches / 100 - time.monotonic()))
        rate = n_switches / (time.monotonic() - began)
    finally:
        asking.stop()
    print(f"{rate:.0f} switches a second, {len(asking.seen) - n_before} statements meanwhile")
    assert asking.failures == []
    assert set(asking.seen[n_before:]) == {1, 2}


def test_a_statement_after_a_switch_in_the_same_message_has_the_new_version(user):
    """A client sends several statements at once, and another session switches the alias between two of them."""
    user.rows("SELECT madlib_mop.set_alias('turn', 'busy', 1)")
    with user.connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMP TABLE seen AS SELECT {CLASS} AS p FROM customers c WHERE id = 1;"
            " SELECT madlib_mop.set_alias('turn', 'busy', 2);"
            f" INSERT INTO seen SELECT {CLASS} FROM customers c WHERE id = 1;"
            " SELECT madlib_mop.rollback('turn', 'busy');"
            f" INSERT INTO seen SELECT {CLASS} FROM customers c WHERE id = 1"
        )
    assert user.rows("SELECT p FROM seen") == [("no",), ("yes",), ("no",)]


def test_a_loop_of_one_client_statement_sees_a_switch_of_another_session(db, user):
    user.rows("SELECT madlib_mop.set_alias('turn', 'busy', 1)")
    user.rows(
        "CREATE FUNCTION turn_until(wanted text) RETURNS integer LANGUAGE plpgsql AS $$DECLARE n integer := 0; BEGIN"
        f" WHILE (SELECT {CLASS} FROM customers c WHERE id = 1) <> wanted AND n < 1000 LOOP n := n + 1;"
        " PERFORM pg_sleep(0.02); END LOOP; RETURN n; END$$"
    )
    other = User(db.connect())
    timer = threading.Timer(1.0, other.rows, ["SELECT madlib_mop.set_alias('turn', 'busy', 2)"])
    user.rows(f"SELECT {CLASS} FROM customers c WHERE id = 1")
    timer.start()
    try:
        assert 0 < user.value("SELECT turn_until('yes')") < 1000
    finally:
        timer.join()
        other.connection.close()
