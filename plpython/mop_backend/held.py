"""The states that this host holds: those of models that were trained here and hop on from here to other hosts.

Called by `mop_backend.segment`, in a session of a role that has no right to these tables. So each step runs in the
function ``segment_as_owner``, with the rights of the extension's owner (`as_owner`); users who call that function find
no step. What is held for one coordinator, another one does not see.

Each state has a table of its own (``held_part_<number>``), which is emptied by TRUNCATE, and then has another state:
so a state that is no longer needed takes no disk from that moment on, without VACUUM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import plpy

from mop_backend.frames import Blob, Json
from mop_backend.seals import digest_of_all

_Found = TypeVar("_Found")
_AS_OWNER = "select madlib_mop_calls.segment_as_owner()"
_NAMED = "coordinator = $1 and run_id = $2 and mst_key = $3 and version = $4"
_FIND = f"select number, lengths from madlib_mop.held_state where {_NAMED} and digest = $5 order by number limit 1"
_BY_TASK = """
update madlib_mop.held_state set held_at = pg_catalog.clock_timestamp()
where coordinator = $1 and run_id = $2 and task = $3 returning number, mst_key, version, digest, lengths, answer
"""
# A place whose table is empty. Rows that another session has just taken are skipped.
_TAKE = """
update madlib_mop.held_state set coordinator = $1, run_id = $2, mst_key = $3, version = $4, digest = $5, lengths = $6,
    task = $7, answer = $8, held_at = pg_catalog.clock_timestamp()
where number = (select number from madlib_mop.held_state where coordinator is null and lengths is null
                order by number limit 1 for update skip locked)
returning number
"""
_NAME_TYPES = ["text", "int8", "int4", "int8"]
_TAKE_TYPES = [*_NAME_TYPES, "text", "int8[]", "text", "text"]
_ADD = "insert into madlib_mop.held_state default values returning number"
_CREATE = """
create table madlib_mop.held_part_{0} (part integer not null, data bytea not null);
alter table madlib_mop.held_part_{0} alter column data set storage external;
alter table madlib_mop.held_part_{0} enable row level security;
select madlib_mop_internal.revoke_default_grants('madlib_mop.held_part_{0}');
alter extension madlib_mop add table madlib_mop.held_part_{0}
"""
# SQLSTATEs of pages and files that cannot be read: damaged, lost, of another owner (42501), on a disk that fails.
_UNREADABLE = re.compile("XX00[012]|58...|42501")
_LET_DAMAGED_GO = "update madlib_mop.held_state set coordinator = null where coordinator = $1 and number = $2"
_LET_GO = f"update madlib_mop.held_state set coordinator = null where {_NAMED}"
_LET_OTHERS_GO = """
update madlib_mop.held_state h set coordinator = null
where h.coordinator = $1 and h.held_at < pg_catalog.to_timestamp($7)
    and (h.run_id <> all ($2) or h.run_id = $3 and not exists (
    select from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6))
        as k (mst_key, version, digest)
    where (k.mst_key, k.version, k.digest) = (h.mst_key, h.version, h.digest)))
"""
# Those that another session empties or takes are its own business.
_TO_EMPTY = """
select number from madlib_mop.held_state where coordinator is null and lengths is not null
order by number for update skip locked
"""
_EMPTIED = "update madlib_mop.held_state set lengths = null, task = null, answer = null where number = $1"

_step: Callable[[], None] | None = None


class StateName(NamedTuple):
    """The name of a state of a coordinator's run."""

    run_id: int
    mst_key: int
    version: int
    digest: str


class HeldState(NamedTuple):
    """A state that is held: the number of its table, the bytes of its parts, and the trainer's answer about it."""

    number: int
    name: StateName
    lengths: list[int]
    answer: str | None = None


def do_step() -> None:
    """Do the step that `as_owner` is called for; called by the function ``segment_as_owner``."""
    global _step
    step, _step = _step, None
    if step is None:  # defence: steps-of-segments
        _refuse("this function reads and writes the states of runs; only the extension calls it")
    step()


def as_owner(step: Callable[[], _Found]) -> _Found:
    """Return the result of a step that has the rights of the extension's owner."""
    global _step
    found: list[_Found] = []
    _step = lambda: found.append(step())  # noqa: E731
    try:
        plpy.execute(_AS_OWNER)
    finally:
        _step = None
    return found[0]


class HeldStates:
    """The states that are held for one coordinator. Each method is a step of `as_owner`.

    Parameters
    ----------
    coordinator : str
        The name by which it is known here.
    """

    def __init__(self, coordinator: str):
        self._coordinator = coordinator

    def find(self, name: StateName) -> HeldState | None:
        """Return a state, or None if it is not held. It stays until the end of the transaction."""
        for row in self._run(_FIND, [*_NAME_TYPES, "text"], *name):
            plpy.execute(f"lock table only madlib_mop.held_part_{int(row['number'])} in access share mode")
            # it may have been let go, and its table emptied, before that lock
            again = self._run(_FIND, [*_NAME_TYPES, "text"], *name)
            if again.nrows() and again[0]["number"] == row["number"]:
                return HeldState(row["number"], name, row["lengths"])
        return None

    def made_by(self, run_id: int, task: str) -> list[HeldState]:
        """Return the states that a request has trained; they count as held from now on."""
        found = self._run(_BY_TASK, ["text", "int8", "text"], run_id, task)
        rows = sorted(found, key=lambda row: row["number"])
        names = [StateName(run_id, row["mst_key"], row["version"], row["digest"]) for row in rows]
        return [HeldState(row["number"], n, row["lengths"], row["answer"]) for row, n in zip(rows, names, strict=True)]

    def parts(self, state: HeldState, n_parts: int | None = None) -> list[bytes] | None:
        """Return the leading parts of a state, by default all; None if it is damaged: it is let go then."""
        found: list[bytes] = []
        for number in range(len(state.lengths))[:n_parts]:
            part = self.read(state, number)
            if part is None:
                return None
            found.append(part)
        if n_parts is None and digest_of_all(found) != state.name.digest:
            self._let_damaged_go(state)
            return None
        return found

    def read(self, state: HeldState, part: int) -> bytes | None:
        """Return a part of a state; None if it is not there, or cannot be read: the state is let go then."""
        query = f"select data from madlib_mop.held_part_{int(state.number)} where part = $1"
        try:
            with plpy.subtransaction():
                rows = plpy.execute(plpy.prepare(query, ["int4"]), [part])
        except plpy.SPIError as error:
            if not _UNREADABLE.fullmatch(error.sqlstate):
                raise
            rows = None
        if rows is None or not rows.nrows():
            self._let_damaged_go(state)
            return None
        data: bytes = rows[0]["data"]
        return data

    def _let_damaged_go(self, state: HeldState) -> None:
        self._run(_LET_DAMAGED_GO, ["text", "int8"], state.number)

    def hold(self, name: StateName, parts: Sequence[Blob], task: str, answer: str) -> None:
        """Store a new state; it is committed with the caller's statement."""
        lengths = [len(part) for part in parts]
        values = (*name, lengths, task, answer)
        taken = self._run(_TAKE, _TAKE_TYPES, *values)
        if not taken.nrows():
            number = int(plpy.execute(_ADD)[0]["number"])
            for statement in _CREATE.format(number).split(";"):
                plpy.execute(statement)
            taken = self._run(_TAKE, _TAKE_TYPES, *values)
        insert = f"insert into madlib_mop.held_part_{int(taken[0]['number'])} (part, data) values ($1, $2)"
        plan = plpy.prepare(insert, ["int4", "bytea"])
        for part, data in enumerate(parts):
            plpy.execute(plan, [part, bytes(data)])

    def let_go(self, run_id: int, states: Sequence[Sequence[int]]) -> None:
        """Let states go that no record needs any more: pairs of mst_key and version."""
        for mst_key, version in states:
            self._run(_LET_GO, _NAME_TYPES, run_id, mst_key, version)
        _empty()

    def keep_only(self, run_id: int, states: Sequence[StateName], runs: Sequence[int], before: float) -> None:
        """Let all states go but these of a run, those of other runs that are still recorded, and those that are held
        since that time, in seconds since 1970: the record that named the others is older."""
        columns = [list(column) for column in zip(*(name[1:] for name in states), strict=True)] or [[], [], []]
        types = ["text", "int8[]", "int8", "int4[]", "int8[]", "text[]", "float8"]
        self._run(_LET_OTHERS_GO, types, list(runs), run_id, *columns, before)
        _empty()

    def _run(self, query: str, types: Sequence[str], *values: Json) -> Any:
        return plpy.execute(plpy.prepare(query, list(types)), [self._coordinator, *values])


def _empty() -> None:
    """Empty the tables of states that were let go, but not those that a session is reading: they are for next time."""
    for row in plpy.execute(_TO_EMPTY):
        table = f"madlib_mop.held_part_{int(row['number'])}"
        try:
            with plpy.subtransaction():
                plpy.execute(f"lock table only {table} in access exclusive mode nowait")
                plpy.execute(f"truncate {table}")
                plpy.execute(plpy.prepare(_EMPTIED, ["int8"]), [row["number"]])
        except plpy.SPIError as error:
            if error.sqlstate != "55P03":
                raise


def _refuse(message: str) -> NoReturn:
    plpy.error(message, sqlstate="42501")
