"""The policy of a run: a query of its owner's, evaluated after metrics, in a session of its own; called by the hopper.

The session is logged in like a reader: as the run's role, with the caller's rights, and without secrets. The query runs
beside the visits, has a time limit, and is evaluated again if metrics came meanwhile. Its rows become commands, checked
and recorded as people's are.

A policy has no memory: its query returns a row again and again. So each row is issued once in a run. What was issued is
read from the record, so this also holds if the driver is replaced.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from madlib_mop.calls import check_storable, find_function, read_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.change import ChangeRow
from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState
from madlib_mop.driver.changes.checks import check_command
from madlib_mop.driver.running.segments import PolicyAnswered, PolicyFailed, Segments
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import Cancelled, InvalidParameter, MopError
from madlib_mop.models.changes import BY_FUNCTION, Stop

ACTIONS = tuple(function for function, change in BY_FUNCTION.items() if change.by_policy)
#: Arguments that have a column of their own.
_COLUMNS = ("mst_key", "reason")
_MAX_ROWS = 1000
_TIMEOUT = "57014"


class PolicyCommands:
    """Issues the commands of a run's policy.

    Parameters
    ----------
    record : Record
    run : RunRow
    session : CallerSession
        The session of the run's call, which checks clones' parameters.
    """

    def __init__(self, record: Record, run: RunRow, session: CallerSession):
        self._record = record
        self._run = run
        self._session = session
        self._issued = {
            _identity(command.command or "", command.arguments)
            for state in ChangeState
            for command in record.commands(run.run_id, state)
            if command.source is ChangeSource.POLICY
        }

    def issue(self, row: Json) -> bool:
        """Record the command of one row of the result; return False if it was issued before.

        Raises
        ------
        InvalidParameter
            If the row has no such action, or arguments that the server cannot store.
        MopError
            The command's error; it is recorded as refused, unless the call was cancelled.
        """
        action, given = _read_row(row)
        identity = _identity(action, given)
        if identity in self._issued:
            return False
        self._issued.add(identity)
        command = ChangeRow.asked(self._run.run_id, action, given, self._run.owner_oid, ChangeSource.POLICY)
        try:
            function = find_function(action)
            function.check_known(given)
            arguments = read_arguments(function, {**given, "run_id": self._run.run_id})
            change, _ = check_command(Call(action, arguments, self._session), self._record, self._run)
        except Cancelled:
            self._issued.discard(identity)
            raise
        except MopError as error:
            self._record.issue(command.as_refused(error.message))
            raise
        self._record.issue(command.checked(change))
        return True


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

    def evaluated(self, event: PolicyAnswered | PolicyFailed) -> bool:
        """Continue after an evaluation; return whether commands were issued."""
        self._is_asked = False
        issued = False
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
            rows = _read_rows(result)
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


def _read_row(row: Json) -> tuple[str, Json]:
    """Return the action of a row, and its arguments without NULLs."""
    check_storable("policy: a row", {name: row.get(name) for name in ("action", "arguments", *_COLUMNS)})
    action = str(row.get("action")).strip().lower()
    if action not in ACTIONS:
        raise InvalidParameter(
            f"policy: action must be one of {', '.join(ACTIONS)}, or NULL for none. Received:"
            f" {row.get('action')!r:.200}"
        )
    arguments = row.get("arguments")
    if not (arguments is None or isinstance(arguments, dict)):
        raise InvalidParameter(f"policy: arguments must be a JSON object. Received: {arguments!r:.200}")
    columns = {name: row.get(name) for name in _COLUMNS if name == "mst_key" or action == Stop.function}
    given = {name: value for name, value in {**(arguments or {}), **columns}.items() if value is not None}
    given.pop("run_id", None)
    return action, given


def _identity(action: str, arguments: Any) -> str:
    """Return what makes two rows the same command; the reason does not count."""
    return json.dumps([action, {name: arguments[name] for name in arguments if name != "reason"}], sort_keys=True)


def _read_rows(result: Any) -> Sequence[Json]:
    """Return the rows of a policy's result.

    Raises InvalidParameter if it is no result of a policy: its code can prepare another statement in its place. Or if
    it has values that cannot be read.
    """
    rows: Any = None
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        rows = json.loads(result)
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise InvalidParameter("its result has values that cannot be read, such as a number of thousands of digits")
    return rows
