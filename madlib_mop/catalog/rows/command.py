"""The row of a command: one call of a steering function, and what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from madlib_mop.catalog.rows.base import Json, Row, column
from madlib_mop.catalog.rows.states import CommandState


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow(Row):
    """A command: a row of `madlib_mop.steering_command`.

    Attributes
    ----------
    command_id : int
        0 in a command that is not recorded yet.
    run_id : int
    command : str
        Name of the SQL function, such as ``stop_model``.
    arguments : dict
        As given, JSON, by name; without run_id.
    work : dict
        JSON for `models.changes.read_change`.
    source : str
        ``person`` or ``policy``.
    issued_by : int or str
        The oid of a role; its name in a row that was read.
    issued_at, settled_at : datetime or None
    state : CommandState
    detail : str or None
    ordinal : int or None
        The place of an obeyed command among those of its run, from 0.
    mst_keys : list of int or None
        The models that it changed or added.
    visits : dict of str to list of int
        By mst_key: epoch and position of the newest committed visit when it was obeyed.
    """

    command_id: int = 0
    run_id: int
    command: str
    arguments: Json = field(default_factory=dict)
    work: Json = field(default_factory=dict)
    source: str = "person"
    issued_by: int | str
    issued_at: datetime | None = None
    state: CommandState = column(CommandState, default=CommandState.PENDING)
    detail: str | None = None
    ordinal: int | None = None
    mst_keys: Sequence[int] | None = None
    visits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    settled_at: datetime | None = None

    def as_refused(self, why: str) -> Self:
        """Return the row of a command that was refused at once."""
        return replace(self, state=CommandState.REFUSED, detail=why)

    def with_work(self, work: Json) -> Self:
        """Return the row with what the driver applies."""
        return replace(self, work=work)

    def as_row(self) -> dict[str, Any]:
        """Return the columns of a new row; the server assigns its number and times."""
        columns = Row.as_row(self)
        return {name: columns[name] for name in columns if name not in ("command_id", "issued_at", "settled_at")}
