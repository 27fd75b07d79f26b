"""The policy of a run: a query of its owner's, evaluated after metrics, in a session of its own.

The session is logged in like a reader: as the run's role, with the caller's rights, and without secrets. The query runs
beside the visits, has a time limit, and is evaluated again if metrics came meanwhile. Its rows become commands
(`changes.policy`). Called by the hopper.
"""

from collections.abc import Callable

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.changes.policy import PolicyCommands, read_rows
from madlib_mop.driver.running.workers import Workers
from madlib_mop.engines.sessions.session import Opened, Returned, SessionState, StatementFailure, WorkerSession
from madlib_mop.errors import Cancelled, MopError

_MAX_ROWS = 1000
_TIMEOUT = "57014"


class Policy:
    """The policy of a run that trains.

    Parameters
    ----------
    plan : PolicyPlan
    run_id : int
    commands : PolicyCommands
    workers : Workers
        Opens, polls and ends the session.
    tell : callable
        Called with a sentence for the caller.
    """

    def __init__(
        self, plan: PolicyPlan, run_id: int, commands: PolicyCommands, workers: Workers, tell: Callable[[str], None]
    ):
        self._plan = plan
        self._run_id = run_id
        self._commands = commands
        self._workers = workers
        self._tell = tell
        self._session: WorkerSession | None = None
        self._is_due = False
        self._is_asked = False  # an evaluation has begun that has no result yet
        self._told: set[str] = set()

    def is_at_work(self) -> bool:
        """Return whether an evaluation is in progress or due; one that a pause has ended begins again."""
        is_open = self._is_due or self._is_asked
        if is_open and self._session is not None and self._session.state is SessionState.BROKEN:
            self.metrics_came()
        busy = self._session is not None and self._session.state not in (SessionState.IDLE, SessionState.BROKEN)
        return busy or self._is_due

    def metrics_came(self) -> None:
        """Evaluate the policy as soon as possible: new metrics were committed."""
        self._is_due = True
        if self._session is None or self._session.state is SessionState.BROKEN:
            self._session = self._workers.open_policy_session(self._plan, self._query)
        elif self._session.state is SessionState.IDLE:
            self._begin()

    def advance(self) -> bool:
        """Process the data of the session; return whether commands were issued."""
        assert self._session is not None, "only an opened session is polled"
        event = self._session.advance()
        issued = False
        self._is_asked = self._is_asked and not isinstance(event, Returned | StatementFailure)
        if isinstance(event, StatementFailure):
            self._failed(event)
        elif isinstance(event, Returned):
            issued = self._issue_all(event.value)
        if isinstance(event, Opened | Returned | StatementFailure) and self._session.state is SessionState.IDLE:
            self._begin()
        return issued

    @property
    def _query(self) -> str:
        return (
            "SELECT coalesce(pg_catalog.json_agg(r.row), '[]')::pg_catalog.text FROM ("
            f"SELECT pg_catalog.row_to_json(p) AS row FROM (\n{self._plan.query}\n) AS p"
            f" WHERE p.action IS NOT NULL LIMIT {_MAX_ROWS}) AS r"
        )

    def _begin(self) -> None:
        if self._is_due and self._session is not None:
            self._is_due, self._is_asked = False, True
            self._session.begin(f"EXECUTE policy ({self._run_id})", [])

    def _issue_all(self, result: object) -> bool:
        try:
            rows = read_rows(result)
        except MopError as error:
            self._tell_once(f"the policy failed: {error.message}")
            return False
        return any([self._issue(row) for row in rows])

    def _issue(self, row: dict[str, object]) -> bool:
        try:
            return self._commands.issue(row)
        except Cancelled:
            raise
        except MopError as error:
            self._tell_once(error.message)
            return False

    def _failed(self, failure: StatementFailure) -> None:
        """Tell an error; the policy is evaluated again after the next metrics."""
        if failure.lost:
            self._is_due = False
        if failure.sqlstate == _TIMEOUT:
            hint = f"SET madlib_mop.policy_timeout_s allows more than {self._plan.timeout_s} seconds"
            self._tell_once(f"the policy took too long: {hint}")
        else:
            self._tell_once(f"the policy failed: {failure.message}")

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)
