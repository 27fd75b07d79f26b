"""Makes the scheduler of a run from the name of a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from madlib_mop.errors import InvalidParameter

from .rules import make_rule
from .scheduler import Scheduler
from .work import ModelWork, Visit, check_works


def make_scheduler(
    schedule: str,
    models: Sequence[ModelWork],
    segment_rows: Mapping[int, int],
    recorded: Iterable[Visit] | None = None,
    n_at_once: int | None = None,
    any_trainer: bool = False,
) -> Scheduler:
    """Make the scheduler of a run, new or resumed.

    Parameters
    ----------
    schedule : str
        A name of `SCHEDULES`, or 'recorded'.
    models : sequence of ModelWork
        All units of the run, those that have nothing left too: ``auto`` counts them.
    segment_rows : mapping of int to int
        Segment to the rows of its shard; the mapping's order is the rotation's order of segments.
    recorded : iterable of Visit, optional
        For 'recorded': the kept visits of a run, in any order. A model makes exactly its recorded visits, up to its
        ``last_epoch``. One whose record ends within an epoch (it had failed) ends there; one without a record makes
        none.
    n_at_once : int, optional
        How many visits can compute at the same time; None if that is not known.
    any_trainer : bool
        Whether the trainer of each segment can hold the rows of all.

    Raises
    ------
    InvalidParameter
        Unknown schedule; no segment; units, indices or visited segments that are twice there or unknown; a record
        with gaps.
    """
    if not segment_rows:
        raise InvalidParameter("a run needs at least one segment, received none", hint="Pack a table that has rows.")
    check_works(models, segment_rows)
    numbers = {segment: number for number, segment in enumerate(segment_rows)}
    return Scheduler(make_rule(schedule, len(models), numbers, recorded), models, segment_rows, n_at_once, any_trainer)
