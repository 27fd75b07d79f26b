"""Promise 15: what a snapshot copies during a run is whole, whatever is replaced, emptied or dropped meanwhile."""

import os
import threading
import uuid

import psycopg2
import pytest

from madlib_mop.catalog import state_slots
from madlib_mop.catalog.old_snapshots import ServerPolls
from madlib_mop.catalog.state_slots import StateSlots, StoredState, slot_table, sweep_slots
from tests.helpers.direct import record_on
from tests.helpers.faults import BackgroundFit, wait_for
from tests.helpers.security.attacks import record_run, user

pytestmark = pytest.mark.one_session

RUN_ID, KEYS, SIZE = 700, (1, 2), 5 << 18  # of more than a slot's quota
_NEWEST = """
SELECT m.mst_key, m.state_version, count(s.data) FROM madlib_mop.model m
LEFT JOIN madlib_mop.model_state s ON s.run_id = m.run_id AND s.mst_key = m.mst_key AND s.slot = m.state_slot
    AND s.version = m.state_version
WHERE m.run_id = 700 GROUP BY 1, 2 ORDER BY 1
"""
_SLOTS = "SELECT oid::regclass::text FROM pg_class WHERE relname ~ '^model_state_700_' AND relkind = 'r'"
#: Sessions that wait for a lock on a table of states.
_WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation::regclass::text ~ 'model_state'"
_VISIT = """
INSERT INTO madlib_mop.model_state (slot, run_id, mst_key, version, part, data)
SELECT %(slot)s, m.run_id, m.mst_key, m.state_version + 1, 0, pg_catalog.convert_to(repeat('x', %(size)s), 'UTF8')
FROM madlib_mop.model m WHERE m.run_id = %(run)s AND m.mst_key = %(key)s;
DELETE FROM madlib_mop.model_state s USING madlib_mop.model m
WHERE m.run_id = %(run)s AND m.mst_key = %(key)s AND s.run_id = m.run_id AND s.mst_key = m.mst_key
      AND s.slot = m.state_slot AND s.version = m.state_version;
UPDATE madlib_mop.model SET state_slot = %(slot)s, state_version = state_version + 1
WHERE run_id = %(run)s AND mst_key = %(key)s
"""


class Training:
    """A run whose visits the test makes itself, with the slots of a driver."""

    def __init__(self, db, owner: str, size: int = SIZE):
        self.db, self.size = db, size
        self.copies: list[Copy] = []
        self.session = db.connect()
        self.record = record_on(self.session)
        record_run(db, RUN_ID, owner, state="running")
        db.rows("INSERT INTO madlib_mop.model SELECT (m).* FROM (SELECT jsonb_populate_record(m, '{\"mst_key\": 2,"
                " \"ordinal\": 1}') AS m FROM madlib_mop.model m WHERE run_id = %s) m", [RUN_ID])  # fmt: skip
        db.rows("DELETE FROM madlib_mop.model_state WHERE run_id = %s", [RUN_ID])
        assert self.record.lock_run(RUN_ID)
        self.slots = StateSlots(self.record, RUN_ID, [StoredState(key) for key in KEYS])
        self.visit(1)

    def visit(self, n: int) -> None:
        """Visit each model n times."""
        for key in [*KEYS] * n:
            slot = self.slots.begin_write(key)
            with self.record.transaction():
                self.record.execute(_VISIT, {"run": RUN_ID, "slot": slot, "key": key, "size": self.size})
            self.slots.end_write(slot, key, self.size)
            self.slots.empty_dead()

    def copy(self, *arguments, **options) -> "Copy":
        """Begin a copy; the end of the training closes it."""
        self.copies.append(Copy(self.db, *arguments, **options))
        return self.copies[-1]

    def end(self) -> None:
        """Close all sessions, and remove the run."""
        for copy in self.copies:
            copy.close()
        self.drop()
        wait_for(self._is_swept, what="the slots to be dropped: the server may not have ended a copy's session yet")
        self.session.close()

    def _is_swept(self) -> bool:
        sweep_slots(self.record)
        return not self.db.rows(_SLOTS)

    def drop(self) -> None:
        """Remove the run as `drop_run` does."""
        self.record.delete_run(RUN_ID)
        sweep_slots(self.record)
        self.record.unlock_run(RUN_ID)

    @property
    def n_bytes(self) -> int:
        """The size of the run's states on disk."""
        return self.db.value("SELECT coalesce(sum(pg_table_size(oid)), 0)::bigint FROM pg_class WHERE relname LIKE"
                             " 'model\\_state\\_700\\_%%' AND relkind = 'r'")  # fmt: skip

    def empty(self) -> None:
        """Wait until the states that are not needed any more are gone."""
        def is_small():
            self.slots.empty_dead()
            return self.n_bytes <= 3 * len(KEYS) * self.size
        wait_for(is_small, what="the slots to be emptied")  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def polls():
    """Slots that a snapshot has kept are looked at again soon after its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_slots, "_LONGEST_POLL_S", state_slots._FIRST_POLL_S)
        yield


@pytest.fixture
def owner(db):
    return user(db, f"owner_{uuid.uuid4().hex[:8]}")


@pytest.fixture
def training(db, owner):
    training = Training(db, owner)
    yield training
    training.end()


class Copy:
    """A session that copies the record in one snapshot."""

    def __init__(self, db, role: str | None = None, level: str = "REPEATABLE READ"):
        self.connection = db.connect(role)
        self.rows(f"BEGIN ISOLATION LEVEL {level}")

    def rows(self, statement: str) -> list[tuple]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.connection.close()


def versions(copy: Copy) -> list[int]:
    """Return the versions of the states that the snapshot sees; all of them are there."""
    rows = copy.rows(_NEWEST)
    assert [(key, n_parts) for key, _, n_parts in rows] == [(key, 1) for key in KEYS], "a state is missing"
    return [version for _, version, _ in rows]


def end_exports(db) -> None:
    """As if seconds had passed since the last session that exported its snapshot has ended."""
    wait_for(lambda: db.rows("SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_ls_dir('pg_snapshots'))"), what="their end")
    os.utime(db.cluster.datadir / "pg_snapshots", (1, 1))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "SERIALIZABLE READ ONLY DEFERRABLE"])
def test_a_snapshot_keeps_the_states_that_it_sees(db, training, level):
    copy = training.copy(level=level)
    copy.rows("SELECT 1")  # pg_dump reads the catalog first: it has not locked a table yet
    training.visit(4)
    assert versions(copy) == [1, 1]
    copy.close()
    training.empty()


def test_one_snapshot_keeps_no_more_than_the_states_that_it_sees(db, training):
    training.visit(2)
    copy = training.copy()
    copy.rows("SELECT 1")
    training.visit(20)
    training.empty()
    assert versions(copy) == [3, 3]
    copy.close()


def test_an_imported_snapshot_keeps_them_after_its_exporter_has_ended(db, training):
    exporter = training.copy()
    ((name,),) = exporter.rows("SELECT pg_export_snapshot()")
    training.visit(3)
    copy = training.copy()
    copy.rows(f"SET TRANSACTION SNAPSHOT '{name}'")
    exporter.close()
    training.visit(3)
    assert versions(copy) == [1, 1]
    copy.close()
    end_exports(db)
    training.empty()


def test_an_imported_snapshot_keeps_them_though_all_snapshots_have_one_xmin(db, training):
    """A transaction that has written and goes on is the xmin of all later snapshots."""
    writer = training.copy()
    writer.rows("SELECT txid_current()")
    exporter = training.copy()
    ((name,),) = exporter.rows("SELECT pg_export_snapshot()")
    training.visit(3)
    copy = training.copy()
    copy.rows(f"SET TRANSACTION SNAPSHOT '{name}'")
    training.visit(1)
    exporter.close()
    training.visit(3)
    assert versions(copy) == [1, 1]
    copy.close()
    writer.close()
    end_exports(db)
    training.empty()


def test_states_that_were_moved_stay_where_a_snapshot_sees_them(db, owner):
    training = Training(db, owner, size=400 << 10)
    copy = training.copy()
    copy.rows("SELECT 1")
    slots = training.slots
    (old,) = {place.slot for place in slots._places.values()}
    slots._current = None
    for key in KEYS:
        slots._move(key, slots.begin_write(key))
    slots.empty_dead()
    assert training.db.value(f"SELECT count(*) FROM {slot_table(old)}") == 0, "nothing was moved"
    assert versions(copy) == [1, 1]
    training.end()


def test_the_end_of_a_run_drops_no_slot_that_a_snapshot_sees(db, training):
    copy = training.copy()
    copy.rows("SELECT 1")
    training.visit(2)
    training.slots.finish()
    assert versions(copy) == [1, 1]
    copy.close()
    db.rows("UPDATE madlib_mop.run SET state = 'trained' WHERE run_id = %s", [RUN_ID])
    training.record.unlock_run(RUN_ID)
    assert len(db.rows(_SLOTS)) > len(KEYS)

    def is_swept() -> bool:
        sweep_slots(training.record)  # as the next run does at its end
        return len(db.rows(_SLOTS)) == len(KEYS)

    wait_for(is_swept, what="spare slots to be dropped: the server may not have ended the copy's session yet")


@pytest.fixture
def small(db, owner):
    """A run whose states share a slot with replaced ones, which are moved at its end."""
    training = Training(db, owner, size=100 << 10)
    training.visit(3)
    yield training
    training.end()


def test_at_the_end_of_a_run_small_states_are_moved_away_from_replaced_ones(db, small):
    before = small.n_bytes
    assert before > 7 * small.size
    small.slots.finish()
    assert versions(small.copy()) == [4, 4] and small.n_bytes < 3 * small.size
    assert len(db.rows(_SLOTS)) == 1


def test_an_end_that_is_interrupted_leaves_each_state_where_the_record_says(db, small, monkeypatch):
    """As if the driver died: the states of a slot move in one transaction, so all stay; the next driver moves them."""
    before = small.n_bytes
    move, moved = StateSlots._move, []

    def move_one(self, *arguments):
        if moved:
            raise KeyboardInterrupt
        moved.append(arguments)
        move(self, *arguments)

    monkeypatch.setattr(StateSlots, "_move", move_one)
    with pytest.raises(KeyboardInterrupt):
        small.slots.finish()
    monkeypatch.undo()
    copy = small.copy()
    assert versions(copy) == [4, 4]
    copy.close()
    places = db.rows("SELECT mst_key, state_slot FROM madlib_mop.model WHERE run_id = %s", [RUN_ID])
    assert len(places) == 2 and len({slot for _, slot in places}) == 1
    small.slots = StateSlots(small.record, RUN_ID, [StoredState(key, slot, small.size) for key, slot in places])
    small.slots.finish()
    assert versions(small.copy()) == [4, 4] and small.n_bytes < before


@pytest.mark.parametrize(
    "lock", [f"SELECT 1 FROM madlib_mop.model WHERE run_id = {RUN_ID} FOR UPDATE",
             "LOCK TABLE ONLY madlib_mop.model_state IN SHARE MODE"]
)  # fmt: skip
def test_the_end_of_a_run_does_not_wait_until_its_states_can_be_moved(db, small, lock):
    """For the caller's own transaction, it would wait for ever."""
    other = small.copy(level="READ COMMITTED")
    other.rows(lock)
    places = db.rows("SELECT mst_key, state_slot FROM madlib_mop.model WHERE run_id = %s", [RUN_ID])
    small.slots.finish()
    other.close()
    assert db.rows("SELECT mst_key, state_slot FROM madlib_mop.model WHERE run_id = %s", [RUN_ID]) == places
    assert versions(small.copy()) == [4, 4]


def test_a_dump_that_begins_while_states_are_moved_finds_all_that_it_sees(small, monkeypatch):
    dumps = dump_begins_after_each_poll(small, monkeypatch)
    small.slots.finish()
    assert len(dumps) > 1
    for dump in dumps:
        assert versions(dump) == [4, 4]
        for (slot,) in dump.rows(_SLOTS):
            dump.rows(f"LOCK TABLE {slot} IN ACCESS SHARE MODE")


def test_a_sweep_drops_the_slot_that_a_restored_state_was_moved_out_of(db, small):
    """Its row still names that slot as that of its best state."""
    copy = small.copy()
    copy.rows("SELECT 1")
    ((old,),) = db.rows("SELECT DISTINCT state_slot FROM madlib_mop.model WHERE run_id = %s", [RUN_ID])
    db.rows("UPDATE madlib_mop.model SET best_state = jsonb_build_object('slot', state_slot, 'version', state_version)"
            " WHERE run_id = %s", [RUN_ID])  # fmt: skip
    small.slots._current = None
    for key in KEYS:
        small.slots._move(key, small.slots.begin_write(key))
    small.slots.finish()
    copy.close()
    db.rows("UPDATE madlib_mop.run SET state = 'trained' WHERE run_id = %s", [RUN_ID])
    small.record.unlock_run(RUN_ID)
    assert len(db.rows(_SLOTS)) == 2
    wait_for(lambda: sweep_slots(small.record) or len(db.rows(_SLOTS)) == 1, what="the old slot to be dropped")
    assert db.value("SELECT to_regclass(%s) IS NULL", [str(slot_table(old))])


def test_no_session_waits_for_the_lock_of_a_slot(db, training, monkeypatch):
    """A worker of pg_dump --jobs asks, without waiting, for the lock that its leader has."""
    monkeypatch.setattr(state_slots, "_LOCK_TIMEOUT_MS", 30_000)
    leader, worker = training.copy(), training.copy()
    leader.rows("LOCK TABLE madlib_mop.model_state IN ACCESS SHARE MODE")
    slots = [table for (table,) in db.rows(f"{_SLOTS} ORDER BY 1")]

    def train():
        training.visit(4)
        training.empty()

    visits = threading.Thread(target=train)
    visits.start()
    try:
        wait_for(lambda: not visits.is_alive() or db.rows(_WAITS), what="the visits, or a lock that is waited for")
        for slot in slots:
            worker.rows(f"LOCK TABLE {slot} IN ACCESS SHARE MODE NOWAIT")
    finally:
        leader.close()
        worker.close()
        visits.join()


def test_a_slot_is_not_dropped_while_a_session_locks_it(db, training, monkeypatch):
    """A dump that begins meanwhile sees the slot, and locks it later."""
    monkeypatch.setattr(state_slots, "_LOCK_TIMEOUT_MS", 30_000)
    training.visit(3)
    reader = training.copy(level="READ COMMITTED")
    reader.rows("LOCK TABLE madlib_mop.model_state IN ACCESS SHARE MODE")
    end = threading.Thread(target=training.slots.finish)
    end.start()
    wait_for(lambda: not end.is_alive() or db.rows(_WAITS), what="the end of the run, or a lock that is waited for")
    dump = training.copy()
    slots = [table for (table,) in dump.rows(_SLOTS)]
    reader.close()
    end.join()
    for slot in slots:
        dump.rows(f"LOCK TABLE {slot} IN ACCESS SHARE MODE")
    assert len(slots) > len(KEYS) and versions(dump) == [4, 4]


def test_a_dropped_run_is_whole_in_older_snapshots(db, training):
    copy = training.copy()
    copy.rows("SELECT 1")
    training.drop()
    assert db.value("SELECT count(*) FROM madlib_mop.model_state WHERE run_id = %s", [RUN_ID]) == 0
    assert versions(copy) == [1, 1]
    copy.close()


def test_two_sessions_sweep_the_slots_of_a_dropped_run(db, training, monkeypatch):
    """Both list them; what one has dropped is no error of the other, which may be the end of a run."""
    drop_slots, session = state_slots.drop_slots, db.connect()
    other = record_on(session)

    def drop_later(record, numbers, guard):
        if record is not other:
            sweep_slots(other)
        return drop_slots(record, numbers, guard)

    monkeypatch.setattr(state_slots, "drop_slots", drop_later)
    training.record.delete_run(RUN_ID)
    sweep_slots(training.record)
    session.close()
    assert db.rows(_SLOTS) == []


def dump_begins_after_each_poll(training, monkeypatch) -> list[Copy]:
    """Let a dump take its snapshot after each poll of the snapshots, before anything is locked."""
    poll, dumps = ServerPolls.__call__, []

    def poll_and_dump(self):
        found = poll(self)
        dumps.append(training.copy())
        dumps[-1].rows(_SLOTS)
        return found

    monkeypatch.setattr(ServerPolls, "__call__", poll_and_dump)
    return dumps


@pytest.mark.parametrize("way", ["the end of the run", "a sweep", "a dropped run"])
def test_a_dump_that_begins_after_the_last_poll_finds_all_that_it_sees(db, training, monkeypatch, way):
    training.visit(3)
    if way == "a dropped run":
        training.record.delete_run(RUN_ID)
    if way == "a sweep":
        db.rows("UPDATE madlib_mop.run SET state = 'trained' WHERE run_id = %s", [RUN_ID])
        training.record.unlock_run(RUN_ID)
    dumps = dump_begins_after_each_poll(training, monkeypatch)
    training.slots.finish() if way == "the end of the run" else sweep_slots(training.record)
    assert dumps
    for dump in dumps:
        for (slot,) in dump.rows(_SLOTS):
            dump.rows(f"LOCK TABLE {slot} IN ACCESS SHARE MODE")


def test_sessions_that_cannot_see_the_states_keep_none(db, training, owner):
    """Otherwise every role that may connect could fill the disk."""
    other = user(db, f"other_{uuid.uuid4().hex[:8]}")
    for _ in range(6):
        training.copy(other).rows("SELECT 1")
        training.visit(1)
    training.empty()
    of_owner = training.copy(owner)
    of_owner.rows("SELECT 1")
    before = versions(of_owner)
    training.visit(2)
    assert versions(of_owner) == before


def test_a_call_that_trains_keeps_none(db, training, owner):
    """The caller's statement holds a snapshot during the whole run."""
    call = BackgroundFit(db, "SELECT pg_sleep(600)", role=owner)
    db.rows("UPDATE madlib_mop.run SET caller_pid = %s WHERE run_id = %s", [call.pid, RUN_ID])
    wait_for(
        lambda: db.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'", [call.pid]),
        what="the call",
    )
    try:
        training.visit(10)
        training.empty()
    finally:
        db.rows("SELECT pg_terminate_backend(%s)", [call.pid])
        call.join()
    assert isinstance(call.error, psycopg2.Error)
