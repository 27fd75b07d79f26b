"""The row of a change of a run's models: who decided on it, and what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from madlib_mop.catalog.rows.base import Json, Row, column
from madlib_mop.catalog.rows.states import ChangeSource, ChangeState
from madlib_mop.models.changes import BY_FUNCTION, Change, read_change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow(Row):
    """A change: a row of `madlib_mop.change`. Those with a ``command`` are the commands of people and policies.

    Attributes
    ----------
    change_id : int
        0 in a row that is not recorded yet.
    run_id : int
    source : ChangeSource
    change : str
        The word of a class of `models.changes`.
    work : dict
        JSON, as that class writes it.
    event, number : int or None
        Of a search: the ordinal of the event that it decided on, and the number of the decision, from 1.
    command : str or None
        Name of the SQL function, such as ``stop_model``; None if the driver decided.
    arguments : dict
        Of the command as given, JSON, by name; without run_id.
    issued_by : int, str or None
        The oid of a role; its name in a row that was read. None if the driver decided.
    issued_at, settled_at : datetime or None
    state : ChangeState
    detail : str or None
    ordinal : int or None
        The place of an obeyed command among those of its run, from 0.
    mst_keys : list of int or None
        The models that it changed or added.
    visits : dict of str to list of int
        By mst_key: epoch and position of the newest committed visit when it was applied.
    """

    change_id: int = 0
    run_id: int
    source: ChangeSource = column(ChangeSource)
    change: str
    work: Json = field(default_factory=dict)
    event: int | None = None
    number: int | None = None
    command: str | None = None
    arguments: Json = field(default_factory=dict)
    issued_by: int | str | None = None
    issued_at: datetime | None = None
    state: ChangeState = column(ChangeState, default=ChangeState.PENDING)
    detail: str | None = None
    ordinal: int | None = None
    mst_keys: Sequence[int] | None = None
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    settled_at: datetime | None = None

    @classmethod
    def asked(
        cls, run_id: int, function: str, arguments: Json, issued_by: int, source: ChangeSource = ChangeSource.PERSON
    ) -> Self:
        """Return the row of a command, which is not checked yet."""
        word = BY_FUNCTION[function].word
        return cls(
            run_id=run_id, source=source, change=word, command=function, arguments=arguments, issued_by=issued_by
        )

    @classmethod
    def made(
        cls, run_id: int, source: ChangeSource, change: Change, mst_keys: Sequence[int],
        visits: Mapping[str, Sequence[int]], event: int | None = None, number: int | None = None,
    ) -> Self:  # fmt: skip
        """Return the row of a change that the driver makes in the same transaction."""
        return cls(
            run_id=run_id, source=source, change=change.word, work=change.as_json(), event=event, number=number,
            state=ChangeState.OBEYED, mst_keys=list(mst_keys), visits=visits,
        )  # fmt: skip

    def as_refused(self, why: str) -> Self:
        """Return the row of a command that was refused at once."""
        return replace(self, state=ChangeState.REFUSED, detail=why)

    def checked(self, change: Change) -> Self:
        """Return the row of a command with what the driver applies."""
        return replace(self, work=change.as_json())

    def read(self) -> Change:
        """Return the change."""
        return read_change(self.change, self.work)

    def as_row(self) -> dict[str, Any]:
        """Return the columns of a new row; the server assigns its number and times."""
        columns = Row.as_row(self)
        return {name: columns[name] for name in columns if name not in ("change_id", "issued_at", "settled_at")}
