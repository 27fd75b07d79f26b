"""The advisory lock that a run's driver holds, by which others see that the run is at work."""

#: "mop": the class of the lock.
LOCK_CLASS = 0x6D6F70


def lock_number(run_id: int) -> int:
    """Return a run's number in its driver's advisory lock: ``objid`` in pg_locks, which has 32 bits and is never 0.

    Runs whose numbers differ by a multiple of 4,294,967,295 share a lock.
    """
    return (run_id - 1) % 0xFFFFFFFF + 1
