"""Runs that are steered while they train: their visits wait at gates, so that nothing moves while a test looks."""

from collections.abc import Sequence

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, newest_run, wait_for
from tests.helpers.training import ALIKE, digests

N_MODELS, N_SEGMENTS, N_EPOCHS, SEED = len(ALIKE), 2, 3, 11
RUN = f"""
SELECT madlib.madlib_keras_fit_multiple_model('train', '{{table}}', 'mst', {N_EPOCHS}, validation_table => 'valid',
    metrics_compute_frequency => 1, seed => {SEED}, schedule => 'rotation')
"""

# Visits of models 1 and 2, one on each segment, wait at a gate: in its epoch nothing of the run moves. At the gate -2,
# their second visits of epoch 2 wait. Other models stay with the trainer that has their graph, and could end before
# these two have come to the gate, so each of their visits that is ahead waits for them, for a second at most: they may
# need its trainer.
GATES = """
INSERT INTO madlib_mop.setting VALUES ('trainer_idle_s', '0');  -- else other models end before the two are at the gate
CREATE TABLE public.gate (epoch integer);
CREATE FUNCTION public.before_gate(run bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT count(*) FROM madlib_mop.model m
    WHERE m.run_id = run AND m.mst_key <= 2 AND m.state IN ('waiting', 'training')
    AND (m.epoch, m.position) < ((SELECT nullif(min(abs(epoch)) - 1, 0) FROM public.gate), 2)
$$;
CREATE FUNCTION public.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.mst_key > 2 THEN
        FOR nap IN 1 .. 100 LOOP
            EXIT WHEN NEW.epoch < (SELECT min(abs(epoch)) FROM public.gate) OR public.before_gate(NEW.run_id) = 0;
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN NEW;
    END IF;
    WHILE EXISTS (
        SELECT FROM public.gate g WHERE g.epoch = NEW.epoch OR NEW.position = 2 AND g.epoch = -NEW.epoch
    ) LOOP PERFORM pg_sleep(0.01); END LOOP;
    RETURN NEW;
END
$$;
CREATE TRIGGER wait_at_gate BEFORE INSERT ON madlib_mop.visit FOR EACH ROW EXECUTE FUNCTION public.wait_at_gate();
"""


class Steered:
    """A run whose visits wait at gates: each is the first visits of models 1 and 2 in an epoch."""

    def __init__(self, db, table: str, gates: Sequence[int] = (), statement: str = RUN, at_gate: int = N_SEGMENTS):
        self.db = db
        self._at_gate = at_gate
        self._gates = list(gates)
        for epoch in gates:
            db.rows("INSERT INTO gate VALUES (%s)", [epoch])
        before = newest_run(db) or 0
        self.call = BackgroundFit(db, statement.format(table=table))
        self.run_id = wait_for(
            lambda: (run := newest_run(db) or 0) > before and run, what="the run", log=lambda: self.call.error
        )
        if gates:
            self._reach()

    def open_gate(self) -> None:
        """Let the run go on to the next gate."""
        epoch = self._gates.pop(0)
        self.db.rows("DELETE FROM gate WHERE epoch = %s", [epoch])
        if self._gates:
            passed = (abs(epoch), 2 if epoch < 0 else 1)
            wait_for(lambda: max(self.model(key, "epoch, position") for key in (1, 2)) >= passed, what="visits")
            self._reach()

    def _reach(self) -> None:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
            " AND public.before_gate(%s) = 0"
        )
        asleep = 0
        while asleep < 3:  # between two naps a session is awake
            wait_for(lambda: self.db.value(waiting, [self.run_id]) == self._at_gate, what="the gate")
            asleep += 1

    def steer(self, function: str, *arguments, **named):
        """Call a steering function of this run; return its result."""
        names = "".join(f", {name} => %s" for name in named)
        statement = f"SET statement_timeout = '60s'; SELECT madlib_mop.{function}(%s{', %s' * len(arguments)}{names})"
        return self.db.value(statement, [self.run_id, *arguments, *named.values()])

    def finish(self) -> int:
        """Open all gates, and wait until the run has ended; return its number."""
        while self._gates:
            self.open_gate()
        self.call.succeed()
        return self.run_id

    def model(self, mst_key: int, columns: str):
        """Return columns of a model."""
        (row,) = self.db.rows(
            f"SELECT {columns} FROM madlib_mop.model WHERE run_id = %s AND mst_key = %s", [self.run_id, mst_key]
        )
        return row if len(row) > 1 else row[0]


def refusal(run: Steered, function: str, *arguments, **named) -> str:
    """Return the message of a refused command."""
    with pytest.raises(psycopg2.Error) as raised:
        run.steer(function, *arguments, **named)
    assert "Traceback" not in str(raised.value)
    return raised.value.diag.message_primary


def replayed(db, run_id: int, table: str) -> dict[int, str]:
    """Replay a run; return the digests of the replay."""
    db.rows("SELECT madlib_mop.replay(%s, %s)", [run_id, table])
    return digests(db, newest_run(db))
