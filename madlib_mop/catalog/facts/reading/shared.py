"""What all readings share: how statements are run with the viewer's own rights, and parts of statements.

Row-level security decides what a viewer sees, so a reading needs no rights of its own: a run that the role may not see
is like one that does not exist.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: Runs one statement with parameters ``%s``, and returns its rows; for `now`, which sessions of psycopg2 read too.
Fetch = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]

#: The fields of `ModelLine`, in order, of leaderboard ``l`` and model ``m``.
BOARD = """
    l.rank, l.mst_key, l.model_id, l.state, l.state_detail AS detail, l.epoch, m.position, m.last_epoch, m.pinned,
    l.metric_epoch, coalesce(l.comparable, false) AS comparable, l.metric_name, l.validation_metric, l.validation_loss,
    l.training_metric, l.training_loss, l.compile_params, l.fit_params, l.ranked_by"""
#: Which part of run ``r``'s visits is done, in percent, of ``visits_done`` and ``visits_total`` of ``m``: a run whose
#: training is complete is done, also if its last models failed or were stopped.
PERCENT_DONE = """CASE WHEN r.state IN ('trained', 'finished') THEN 100.0 ELSE
    least(100.0, pg_catalog.round(100.0 * m.visits_done / greatest(m.visits_total, 1), 1)) END"""
#: The iteration that the newest weights of model ``m`` are of: an earlier one if its best state was restored.
EPOCH_OF_WEIGHTS = """CASE WHEN (m.best_state ->> 'version')::pg_catalog.int8 = m.state_version
    THEN (m.best_state ->> 'epoch')::pg_catalog.int4 ELSE m.epoch END"""
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
