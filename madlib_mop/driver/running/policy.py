"""The policy of a run: a query of its owner's, evaluated after metrics, in a session of its own.

The session is logged in like a reader: as the run's role, with the caller's rights, and without secrets. The query runs
beside the visits, has a time limit, and is evaluated again if metrics came meanwhile. Its rows become commands
(`changes.policy`). Called by the hopper.
"""

from collections.abc import Callable

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.driver.changes.policy import PolicyCommands, read_rows
from madlib_mop.driver.running.segments import PolicyAnswered, PolicyFailed, Segments
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
    segments : Segments
        They open and end the session.
    tell : callable
        Called with a sentence for the caller.
    """

    def __init__(
        self, plan: PolicyPlan, run_id: int, commands: PolicyCommands, segments: Segments, tell: Callable[[str], None]
    ):
        self._plan = plan
        self._run_id = run_id
        self._commands = commands
        self._segments = segments
        self._tell = tell
        self._is_asked = False  # an evaluation has begun that has no result yet
        self._is_due = False  # other metrics came meanwhile
        self._told: set[str] = set()

    def is_at_work(self) -> bool:
        """Return whether an evaluation is in progress."""
        return self._is_asked

    def metrics_came(self) -> None:
        """Evaluate the policy as soon as possible: new metrics were committed."""
        if self._is_asked:
            self._is_due = True
        else:
            self._ask()

    def evaluated(self, event: PolicyAnswered | PolicyFailed, is_late: bool = False) -> bool:
        """Continue after an evaluation; return whether commands were issued: none if it ``is_late``."""
        self._is_asked = False
        issued = False
        if is_late:
            return False
        if isinstance(event, PolicyFailed):
            self._failed(event)
        else:
            issued = self._issue_all(event.rows)
        if self._is_due:
            self._ask()
        return issued

    def _ask(self) -> None:
        self._is_asked, self._is_due = True, False
        self._segments.ask_policy(self._plan, self._query)

    @property
    def _query(self) -> str:
        return (
            "SELECT coalesce(pg_catalog.json_agg(r.row), '[]')::pg_catalog.text FROM ("
            f"SELECT pg_catalog.row_to_json(p) AS row FROM (\n{self._plan.query}\n) AS p"
            f" WHERE p.action IS NOT NULL LIMIT {_MAX_ROWS}) AS r"
        )

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

    def _failed(self, failure: PolicyFailed) -> None:
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
