"""The lines of a run in the server's log: one at its beginning and one at its end. Called by `whole_runs`.

The driver writes them in its catalog session, so they are also written when the caller's session has ended.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg2
from sqlalchemy.exc import DBAPIError

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.session.stopping import sigterm_delayed

_WRITE = "SELECT madlib_mop_internal.log_line(%s)"


@contextmanager
def logged(record: Record, run: RunRow) -> Iterator[None]:
    """Write the lines of a run before and after a block that trains it and writes its output tables.

    Parameters
    ----------
    record : Record
    run : RunRow
        As it is before the block. If an earlier driver has begun it, it is resumed.
    """
    is_new = run.asked_at is None and run.admitted_at is None and not run.training_s
    _write(record, line(run, "started" if is_new else "resumed"))
    try:
        yield
    finally:
        with sigterm_delayed(), suppress(psycopg2.Error, DBAPIError):  # the server may be gone
            ended = record.run(run.run_id)
            if ended is not None:
                _write(record, line(ended, "ended"))


def line(run: RunRow, what: str) -> str:
    """Return a line about a run.

    Names are JSON strings in ASCII. So a name with a line break or a control character cannot forge another line.

    Parameters
    ----------
    run : RunRow
    what : str
        ``started``, ``resumed`` or ``ended``.

    Returns
    -------
    str
        ``madlib_mop: run 7 ended kind=... owner="..." output="..." state=... seconds=...``; the seconds are those of
        all its drivers.
    """
    owner, output = _quoted(run.owner), _quoted(run.model_output_table)
    values = f"kind={run.kind} owner={owner} output={output} state={run.state} seconds={run.training_s:.3f}"
    return f"madlib_mop: run {run.run_id} {what} {values}"


def _quoted(name: str) -> str:
    return json.dumps(name).replace("\x7f", "\\u007f")  # defence: names-in-the-log = f'"{name}"'


def _write(record: Record, text: str) -> None:
    record.execute(_WRITE, [text])
