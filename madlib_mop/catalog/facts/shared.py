"""What all modules that read facts share: how statements are run with the viewer's own rights, and parts of statements.

Row-level security decides what a viewer sees, so a reading needs no rights of its own: a run that the role may not see
is like one that does not exist.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

#: Runs one statement with parameters ``%s``, and returns its rows; for `now`, which sessions of psycopg2 read too. What
#: reports read too has columns with different names, and times as seconds since 1970.
Fetch = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

#: The fields of `ModelLine`, in order, of leaderboard ``l`` and model ``m``.
BOARD = """
    l.rank, l.mst_key, l.model_id, l.state, l.state_detail AS detail, l.epoch, m.position, m.last_epoch, m.pinned,
    l.metric_epoch, coalesce(l.comparable, false) AS comparable, l.metric_name, l.validation_metric, l.validation_loss,
    l.training_metric, l.training_loss, l.compile_params, l.fit_params, l.ranked_by, l.baseline"""
#: Whether run ``r`` waits for its turn to train.
WAITS = "r.state = 'running' AND r.asked_at IS NOT NULL AND r.admitted_at IS NULL"
#: The iteration that the newest weights of model ``m`` are of: an earlier one if its best state was restored.
EPOCH_OF_WEIGHTS = """CASE WHEN (m.best_state ->> 'version')::pg_catalog.int8 = m.state_version
    THEN (m.best_state ->> 'epoch')::pg_catalog.int4 ELSE m.epoch END"""
#: The segment whose trainer made a visit ``x``.
TRAINER_OF_VISIT = "coalesce((x.timing ->> 'trainer')::pg_catalog.int4, x.segment_id)"
#: Seconds of visits ``x``: those of a fused group train at once, and each has its share of the time.
SECONDS_OF_VISITS = """sum(pg_catalog.date_part('epoch', x.ended_at - x.started_at)
    / coalesce((x.timing ->> 'fused')::pg_catalog.float8, 1))"""


class FactsReader(Protocol):
    """Runs SELECT statements as the viewer.

    They return only numbers, texts, booleans, NULL and arrays of these: all readers give the same values for them.
    """

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of one statement.

        Parameters
        ----------
        statement : str
            With ``$1`` ... parameters, each with a cast to its type: ``$1::pg_catalog.int8``.
        *values
            Texts and numbers, and None for NULL. An array is a text such as ``{1,2}``.

        Raises
        ------
        MopError
            The server's error.
        """

    def fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of one statement with parameters ``%s``; see `Fetch`. It raises as `rows` does."""

    @property
    def lost(self) -> Collection[int]:
        """The runs that had no process before the row of a run is read; see `now.lost_runs`."""


def array(values: Iterable[int]) -> str:
    """Return numbers as the text of an array."""
    return "{" + ",".join(map(str, values)) + "}"


def moment(at: float) -> datetime:
    """Return a time in seconds since 1970 as a datetime in UTC."""
    return datetime.fromtimestamp(at, UTC)
