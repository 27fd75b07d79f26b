"""Which runs train at once: each driver asks before it opens its sessions; mixed into `Record`.

A run whose driver is alive is admitted (column ``admitted_at``) or waits (``asked_at``). The next run is one of the
role with the fewest admitted runs; among these, of the role whose last admission was longest ago; then the run that has
waited longest.
"""

from dataclasses import dataclass

from sqlalchemy import func, select, update

from madlib_mop.catalog import tables as t
from madlib_mop.catalog.drivers import IS_LOCK_OF_RUN, RunDrivers
from madlib_mop.catalog.run_locks import LOCK_CLASS
from madlib_mop.catalog.sessions.lock_holders import end_holders

#: Drivers of waiting runs listen here.
ADMISSION_CHANNEL = "madlib_mop_admission"
_NO_RUN = 0  # the advisory lock of the drivers' class that a driver holds while it asks
_LOCK = "l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = %s::pg_catalog.int8 AND l.objid = 0"
_QUEUE = f"""
WITH live AS (
    SELECT r.run_id, r.owner, r.asked_at, r.admitted_at, r.paused_by FROM madlib_mop.run r
    JOIN pg_catalog.unnest(%(locks)s::pg_catalog.int8[]) d (lock_number) ON {IS_LOCK_OF_RUN}
), active AS (
    SELECT owner, count(*) AS n FROM live WHERE admitted_at IS NOT NULL AND paused_by IS NULL AND run_id <> %(run_id)s
    GROUP BY owner
)
SELECT (SELECT coalesce(sum(n), 0) FROM active)::pg_catalog.int8, coalesce(array(
    SELECT l.run_id FROM live l LEFT JOIN active a ON a.owner = l.owner
    LEFT JOIN (SELECT owner, max(admitted_at) AS at FROM madlib_mop.run GROUP BY owner) last ON last.owner = l.owner
    WHERE l.admitted_at IS NULL AND l.asked_at IS NOT NULL
    ORDER BY coalesce(a.n, 0), last.at NULLS FIRST, l.asked_at, l.run_id), ARRAY[]::pg_catalog.int8[])
"""  # noqa: E501
_FREE_CONNECTIONS = """
SELECT current_setting('max_connections')::pg_catalog.int8
       - current_setting('superuser_reserved_connections')::pg_catalog.int8
       - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""


@dataclass(frozen=True)
class Queue:
    """The runs when a driver has asked.

    Attributes
    ----------
    n_active : int
        Admitted runs, other than this one and paused ones.
    n_before : int
        Waiting runs that come before this one.
    free_connections : int
        Of the server.
    """

    n_active: int
    n_before: int
    free_connections: int


class RunAdmission(RunDrivers):
    """The admission of runs; mixed into `Record`."""

    def ask(self, run_id: int) -> None:
        """Begin to wait."""
        values = {"asked_at": func.clock_timestamp(), "admitted_at": None}
        self._do(update(t.run).where(t.run.c.run_id == run_id).values(**values))

    def admit(self, run_id: int, limit: int, n_connections: int, fits: bool) -> Queue | None:
        """Admit a run if it is its turn; return None then, otherwise what it waits for.

        Parameters
        ----------
        run_id : int
        limit : int
            Number of runs that train at once.
        n_connections : int
            Connections that the run needs.
        fits : bool
            Whether there is memory for it. A run that is alone is admitted without.
        """
        end_holders(self.raw, _LOCK, [LOCK_CLASS])
        with self.transaction():
            self._scalar(select(func.pg_advisory_xact_lock(LOCK_CLASS, _NO_RUN)))
            ((n_active, waiting),) = self.execute(_QUEUE, {"run_id": run_id, "locks": self.driver_locks()})
            free = self.free_connections()
            n_before = waiting.index(run_id) if run_id in waiting else 0
            has_room = n_active < limit and fits and free >= n_connections
            if n_before or (n_active and not has_room):
                return Queue(n_active, n_before, free)
            self.mark_admitted(run_id)
        return None

    def free_connections(self) -> int:
        """Return how many more sessions the server accepts."""
        ((free,),) = self.execute(_FREE_CONNECTIONS)
        return int(free)

    def data_directory(self) -> str:
        """Return the server's data directory."""
        ((path,),) = self.execute("SELECT pg_catalog.current_setting('data_directory')")
        return str(path)

    def mark_admitted(self, run_id: int) -> None:
        """Admit a run without asking."""
        self.set_run(run_id, admitted_at=func.clock_timestamp())

    def give_place_back(self, run_id: int) -> None:
        """Let a run that has a driver count neither as one that trains nor as one that waits."""
        self.set_run(run_id, asked_at=None, admitted_at=None)

    def wake_waiting(self) -> None:
        """Wake the drivers of waiting runs: a run has ended."""
        self._scalar(select(func.pg_notify(ADMISSION_CHANNEL, "")))

    def listen_for_admission(self) -> None:
        """Subscribe to the ends of runs."""
        with self.raw.cursor() as cursor:
            cursor.execute(f"LISTEN {ADMISSION_CHANNEL}")
