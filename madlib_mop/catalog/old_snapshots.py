"""Decides whether a snapshot of another session may still see a replaced state; used by `state_slots`.

TRUNCATE and DROP TABLE free disk at once, but no snapshot protects against them: a dump whose snapshot is older than a
commit that replaced a state would find the row of the model, and no state. So a slot is emptied only when no such
snapshot is left. A server does not show what a snapshot sees. But it shows which sessions hold one, so the driver polls
again and again, and numbers its polls: a snapshot that is there at poll `k` and was not there at poll `k - 1` was taken
between the two. It does not see what was replaced before poll `k - 1`, nor what was written after poll `k`.

- An imported snapshot is older than the transaction that imports it. While a session exports one, a snapshot that is
  new to the driver may be as old as any known one with the same xmin.
- A standby with `hot_standby_feedback` holds one xmin for all its snapshots. So it may see all states that were
  replaced by a transaction from this xmin on. Without `hot_standby_feedback`, nothing protects dumps from a standby.
- A slot's table is dropped only if the last poll is still true at the end of that transaction (`SnapshotPoll.guard`).
- These sessions do not count: sessions of runs, sessions whose current call trains, sessions of roles that may not see
  the run's states, and autovacuum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.drivers import DRIVER_LOCKS, IS_LOCK_OF_RUN
from madlib_mop.catalog.record_session import RecordSession

_XIDS = 1 << 32
_RECENT_S = 2  # the server returns the time of the directory's change in whole seconds
_HOLDERS = """
    SELECT pg_catalog.json_build_array(
        pg_catalog.concat_ws(' ', a.pid, a.backend_start, a.xact_start, a.backend_xmin),
        a.backend_xmin::pg_catalog.text::pg_catalog.int8, a.xact_start IS NULL,
        coalesce(a.wait_event = 'SafeSnapshot', false)) AS holder
    FROM pg_catalog.pg_stat_activity a
    WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid() AND a.pid <> ALL (%(callers)s)
          AND (a.datname = pg_catalog.current_database() OR a.datname IS NULL)
          AND a.backend_type NOT LIKE 'autovacuum %%'
          AND a.application_name !~ '^madlib_mop (driver|writer of|reader of|segment of)'
          AND (a.usesysid IS NULL OR %(owner)s::pg_catalog.int8 IS NULL OR EXISTS (
              SELECT FROM pg_catalog.pg_roles o
              WHERE (o.rolsuper  -- defence: snapshots-of-others = WHERE (true
                     OR o.rolbypassrls OR o.oid = %(owner)s::pg_catalog.oid)
                    AND pg_catalog.pg_has_role(a.usesysid, o.oid, 'MEMBER')))
    UNION ALL
    SELECT pg_catalog.json_build_array('slot ' || s.slot_name, s.xmin::pg_catalog.text::pg_catalog.int8, true, false)
    FROM pg_catalog.pg_replication_slots s WHERE s.xmin IS NOT NULL
"""
_POLL = f"""
SELECT pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot()) %% {_XIDS},
       coalesce(array({_HOLDERS}), ARRAY[]::pg_catalog.json[])
"""
#: Fails if there is a snapshot that a poll has not found, or if one was exported since.
_GUARD = f"""
DO $guard$ BEGIN
    IF EXISTS (SELECT FROM ({_HOLDERS}) h WHERE h.holder ->> 0 <> ALL (%(known)s::pg_catalog.text[]))
       OR (SELECT s.modification <> %(changed)s FROM pg_catalog.pg_stat_file('pg_snapshots') s) THEN
        RAISE object_in_use USING MESSAGE = 'a session has just taken a snapshot';
    END IF;
END $guard$
"""
# Apart from the list: Greenplum plans no subquery on its segments within one that refers to other queries.
_ROLES = f"""
SELECT (SELECT r.owner::pg_catalog.oid::pg_catalog.int8 FROM madlib_mop.run r WHERE r.run_id = %s), coalesce(array(
    SELECT r.caller_pid FROM madlib_mop.run r JOIN ({DRIVER_LOCKS}) d ON {IS_LOCK_OF_RUN}
    WHERE r.caller_pid IS NOT NULL), ARRAY[]::pg_catalog.int4[])
"""
_EXPORTS = """
SELECT s.modification, pg_catalog.clock_timestamp() - s.modification < pg_catalog.make_interval(secs => %s),
       EXISTS (SELECT FROM pg_catalog.pg_ls_dir('pg_snapshots'))
FROM pg_catalog.pg_stat_file('pg_snapshots') s
"""


#: A statement, with its parameters.
Guard = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class SnapshotHolder:
    """What holds a snapshot: a transaction or a standby.

    Attributes
    ----------
    key : str
        The same as long as the snapshot is the same.
    xmin : int
        The oldest transaction that was running when the snapshot was taken.
    holds_many : bool
        Whether there may be other snapshots with a later xmin.
    is_preliminary : bool
        Whether the snapshot may be replaced by a later one.
    """

    key: str
    xmin: int
    holds_many: bool = False
    is_preliminary: bool = False


@dataclass(frozen=True)
class SnapshotPoll:
    """The result of one poll of the server's snapshots.

    Attributes
    ----------
    next_xid : int
        All transactions that had ended before the poll are lower.
    holders : sequence of SnapshotHolder
    has_exports : bool
        Whether a session exports its snapshot.
    is_moving : bool
        Whether a session has begun or stopped to export one since the last poll: the list of holders may be incomplete.
    guard : Guard
        A statement that fails with ObjectInUse if a snapshot was taken since this poll.
    """

    next_xid: int
    holders: Sequence[SnapshotHolder] = ()
    has_exports: bool = False
    is_moving: bool = False
    guard: Guard = ("SELECT 1", {})


@dataclass(frozen=True)
class _Taken:
    """When a snapshot was taken: after poll ``after``, whose list was complete, and before poll ``before``."""

    holder: SnapshotHolder
    after: int
    before: int


class OldSnapshots:
    """The snapshots of other sessions, from poll to poll.

    Parameters
    ----------
    poll : callable
        Polls the server.

    Attributes
    ----------
    n_polls : int
        How often the driver has polled. What happens now happens after poll ``n_polls`` and before the next one.
    next_xid : int
        That of the last poll.
    guard : Guard
        That of the last poll.
    """

    def __init__(self, poll: Callable[[], SnapshotPoll]):
        self._poll = poll
        self.n_polls = 0
        self._known: dict[str, _Taken] = {}
        self._waiting: list[_Taken] = []
        self._is_moving = True
        self._last_complete = 0
        self.next_xid = 0
        self.guard: Guard

    def poll(self) -> None:
        """Poll again."""
        poll = self._poll()
        self.n_polls += 1
        after_all = self._last_complete
        may_be_imported = poll.has_exports or poll.is_moving
        oldest: dict[int, int] = {}  # xmin -> the oldest known snapshot with it
        for taken in self._known.values():
            oldest[taken.holder.xmin] = min(taken.after, oldest.get(taken.holder.xmin, taken.after))
        known = dict(self._known) if poll.is_moving else {}
        for holder in poll.holders:
            was = self._known.get(holder.key)
            after = oldest.get(holder.xmin, after_all) if may_be_imported else after_all
            known[holder.key] = was if was and was.holder == holder else _Taken(holder, after, self.n_polls)
        # a session that waits for a safe snapshot may take another one after this poll
        self._waiting = [taken for taken in known.values() if taken.holder.is_preliminary]
        self._known = {key: taken for key, taken in known.items() if not taken.holder.is_preliminary}
        if not poll.is_moving:
            self._last_complete = self.n_polls
        self._is_moving, self.next_xid, self.guard = poll.is_moving, poll.next_xid, poll.guard

    def may_see(self, written: int, replaced: int, next_xid: int) -> bool:
        """Return whether a snapshot may see something that was replaced before the last poll.

        Parameters
        ----------
        written : int
            Number of polls when its transaction had not yet ended.
        replaced : int
            Number of polls when the transaction that replaced it had ended.
        next_xid : int
            Of a poll after that.
        """
        if self._is_moving:
            return True
        return any(
            _precedes(taken.holder.xmin, next_xid)
            if taken.holder.holds_many
            else taken.after <= replaced and written < taken.before
            for taken in (*self._known.values(), *self._waiting)
        )


class ServerPolls:
    """Polls the snapshots of a server whose holders may see the states of a run.

    Parameters
    ----------
    record : RecordSession
    run_id : int or None
        None: of all runs.
    callers : sequence of int
        Process numbers of sessions that do not count.
    """

    def __init__(self, record: RecordSession, run_id: int | None, callers: Sequence[int] = ()):
        self._record = record
        self._run_id, self._callers = run_id, list(callers)
        self._changed: object = None

    def __call__(self) -> SnapshotPoll:
        ((owner, training),) = self._record.execute(_ROLES, [self._run_id])
        # Before the exports: a change of them while the holders are read is then noticed.
        who = {"owner": owner, "callers": [*self._callers, *training]}
        ((next_xid, found),) = self._record.execute(_POLL, who)
        ((changed, is_recent, has_exports),) = self._record.execute(_EXPORTS, [_RECENT_S])
        is_moving = is_recent or (self._changed is not None and changed != self._changed)
        self._changed = changed
        holders = [SnapshotHolder(*row) for row in found]
        guard = _GUARD, {**who, "known": [holder.key for holder in holders], "changed": changed}
        return SnapshotPoll(next_xid, holders, has_exports, is_moving, guard)


def _precedes(a: int, b: int) -> bool:
    """Return whether a transaction number is before another one; they are counted modulo 2^32."""
    return (b - a) % _XIDS < _XIDS // 2 and a != b
