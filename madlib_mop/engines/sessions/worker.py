"""A worker: the writer and the reader session of one segment. Called by `madlib_mop.driver.running.workers`.

The writer has the trainer and writes the record; it is logged in as the server's own user and touches no relation of
users. If the trainer lacks the rows of a shard, it reports that. Then the reader, which is logged in as the run's
role with the caller's rights, reads them and sends them over a socket (mop_backend.rows), and the task is repeated. The
trainer's figures about the rows are checked before training.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mop_backend.frames import Header

from madlib_mop.engines.sessions.session import (
    LoginTarget,
    Opened,
    Returned,
    SessionState,
    StatementFailure,
    WorkerSession,
)

if TYPE_CHECKING:  # its module can be imported in a backend only
    from mop_backend.shards import Reading

_DO = "SELECT madlib_mop_internal.writer_do(%s)"
_SEND = "SELECT madlib_mop_calls.reader_send(%(address)s, %(query)s, %(key)s, %(n_columns)s, %(at)s)"


@dataclass(frozen=True)
class Answer:
    """A task has ended; ``fields`` is the writer's answer (`mop_backend.writer.Writer.do`)."""

    fields: Header


@dataclass
class _Load:
    """A shard on its way to the trainer."""

    data_set: str
    segment_id: int
    reading: "Reading | None"  # request to the reader; None if no reader is needed
    answer: Header | None = None  # of the writer
    failure: StatementFailure | None = None  # of the reader


class SegmentWorker:
    """The sessions of one segment; they open themselves.

    Parameters
    ----------
    writer, reader : LoginTarget
    reads_here : bool
        Whether a reader will certainly be needed; then it is opened at once.
    on_shard : callable
        Called with data_set (str), segment_id (int) and the trainer's figures about the loaded rows (dict: n_rows,
        n_bytes, fingerprint); raises if the run cannot continue with them.
    renew_login : callable
        Lets the run's role log in again. Called before a reader is opened later: by then its password may have expired.
    """

    def __init__(
        self,
        writer: LoginTarget,
        reader: LoginTarget,
        reads_here: bool,
        on_shard: Callable[[str, int, Header], None],
        renew_login: Callable[[], None],
    ):
        self._reader_target = reader
        self._on_shard = on_shard
        self._renew_login = renew_login
        self._writer = WorkerSession(writer)
        self._reader = WorkerSession(reader) if reads_here else None
        self._opened = False
        self._task: Header | None = None
        self._load: _Load | None = None

    @property
    def sessions(self) -> list[WorkerSession]:
        """Return the sessions to poll."""
        both = (self._writer, self._reader)
        return [s for s in both if s is not None and s.state is not SessionState.BROKEN]

    @property
    def pids(self) -> list[int]:
        """Return the process IDs of the opened sessions."""
        return [s.pid for s in (self._writer, self._reader) if s is not None and s.pid is not None]

    @property
    def busy_pids(self) -> list[int]:
        """Return the process IDs of the sessions with a statement at work."""
        return [s.pid for s in self.sessions if s.pid is not None and s.state is not SessionState.IDLE]

    @property
    def has_task(self) -> bool:
        """Whether it works on a task."""
        return self._task is not None

    @property
    def is_reading(self) -> bool:
        """Whether its task waits for the rows of a shard."""
        return self._load is not None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a task."""
        return self._task is None and self._writer.state is SessionState.IDLE

    def begin(self, task: Header) -> None:
        """Start a task; the worker must be idle."""
        self._task = task
        self._send_task(task)

    def advance(self, session: WorkerSession) -> Opened | Answer | StatementFailure | None:
        """Process the data of one of the sessions; return None while the task is still running.

        If one session is lost, both are closed.
        """
        event = session.advance()
        if event is None:
            return None
        if isinstance(event, StatementFailure) and event.lost:
            self.close()
            return event
        if isinstance(event, Opened):
            return self._session_opened()
        return self._written(event) if session is self._writer else self._read(event)

    def close(self) -> None:
        """Close both sessions."""
        for session in self.sessions:
            session.close()

    def _session_opened(self) -> Opened | None:
        if self._load is not None:  # the reader, opened for this load
            self._begin_load()
            return None
        if self._opened or any(s.state is not SessionState.IDLE for s in self.sessions):
            return None
        self._opened = True
        return Opened()

    def _written(self, event: Returned | StatementFailure) -> Answer | StatementFailure | None:
        if isinstance(event, StatementFailure):
            self._drop_busy_reader()
            self._task = self._load = None
            return event
        fields = json.loads(event.value)
        if self._load is not None:
            self._load.answer = fields
            return self._loaded()
        if fields["outcome"] == "load":
            self._need_rows(fields)
            return None
        self._task = None
        return Answer(fields)

    def _read(self, event: Returned | StatementFailure) -> Answer | StatementFailure | None:
        if isinstance(event, StatementFailure):
            load, reader = self._under_way()
            reader.close()  # also closes its processes on Greenplum segments, which may hold the socket
            load.failure = event
        return self._loaded()

    def _under_way(self) -> tuple[_Load, WorkerSession]:
        """Return the current load of a reader, and that reader."""
        assert self._load is not None and self._reader is not None, "a reader has statements in loads only"
        return self._load, self._reader

    def _need_rows(self, wanted: Header) -> None:
        reading: Reading | None = wanted["reader"]
        self._load = _Load(wanted["data_set"], wanted["segment_id"], reading)
        if reading is not None and (self._reader is None or self._reader.state is SessionState.BROKEN):
            self._renew_login()
            self._reader = WorkerSession(self._reader_target)
        else:
            self._begin_load()

    def _begin_load(self) -> None:
        load, reader_pid = self._load, None
        assert load is not None, "there is a load to begin"
        if load.reading is not None:
            _, reader = self._under_way()
            reader.begin(_SEND, load.reading)
            reader_pid = reader.pid
        place = {"data_set": load.data_set, "segment_id": load.segment_id}
        self._send_task({"do": "load", **place, "reader_pid": reader_pid})

    def _loaded(self) -> Answer | StatementFailure | None:
        """Continue when both sessions have finished their part of a load."""
        load = self._load
        assert load is not None, "there is a load to go on with"
        if load.answer is None:
            return None
        is_read = load.reading is None or self._under_way()[1].state is not SessionState.BUSY
        if not is_read and load.answer["outcome"] in ("done", "unread"):
            return None
        self._drop_busy_reader()
        self._load = None
        if load.answer["outcome"] == "done":
            self._on_shard(load.data_set, load.segment_id, load.answer["shard"])
            assert self._task is not None, "the task that lacked the rows is given again"
            self._send_task(self._task)
            return None
        self._task = None
        if load.answer["outcome"] == "unread":
            error = load.answer["error"]
            return load.failure or StatementFailure(error["sqlstate"], error["message"], lost=False)
        return Answer(load.answer)

    def _drop_busy_reader(self) -> None:
        if self._reader is not None and self._reader.state not in (SessionState.IDLE, SessionState.BROKEN):
            self._reader.close()

    def _send_task(self, task: Header) -> None:
        self._writer.begin(_DO, [json.dumps(task)])
