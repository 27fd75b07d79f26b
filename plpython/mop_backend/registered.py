"""Registered models in the caller's session: which version an alias stands for, and what a version holds.

Called by predict.py for each prediction, and by call.py for a driver. The look-up is a query with the caller's rights
and in the snapshot of the calling statement. The content of a version is read with the rights of the extension's owner,
by the function madlib_mop_calls._read_version, so a role that may predict need not be able to read the weights. That
function takes the version from this module's memory and leaves the content there. Users' SQL cannot reach this memory:
only superusers create functions in PL/Python.
"""

from __future__ import annotations

from typing import NamedTuple

import plpy

from mop_backend.call import CallError
from mop_backend.frames import Blob, Header
from mop_backend.registered_names import ModelName, UnreadableName, read_name
from mop_backend.rights import Moment

# One row if the caller may use the name; the columns of the version are NULL if there is none.
# The rights are those of madlib_mop_calls._model_right, without its cost.
_LOOK_UP = """
select {found}.version_id::text as version_id, {found}.version,
       pg_has_role(r.owner::oid, {right}) or exists (
           select from madlib_mop.model_grant g where g.name = r.name and g.privilege in ('predict', 'deploy')
               and pg_has_role(g.role::oid, {right})) as may_predict,
       {challenger}
from madlib_mop.registered_model r {join}
where r.name = $1
"""
_RIGHT = "case when current_setting('server_version_num')::int4 >= 160000 then 'USAGE, SET' else 'MEMBER' end"
_BY_ALIAS = _LOOK_UP.format(
    found="a",
    right=_RIGHT,
    challenger="c.challenger_id, c.version_id::text as challenger, c.version as challenger_version, c.share,"
    " c.max_rows",
    join="left join madlib_mop.model_alias a on a.name = r.name and a.alias = $2"
    " left join madlib_mop.model_challenger c on c.name = a.name and c.alias = a.alias",
)
_BY_VERSION = _LOOK_UP.format(
    found="v",
    right=_RIGHT,
    challenger="null::int8 as challenger_id",
    join="left join madlib_mop.model_version v on v.name = r.name and v.version = $2",
)
_ALIASES = (
    "select coalesce(string_agg(alias, ', ' order by alias), 'no aliases') as known from"
    " madlib_mop.model_alias where name = $1"
)
_VERSIONS = (
    "select coalesce(string_agg(version::text, ', ' order by version), 'no versions') as known from"
    " madlib_mop.model_version where name = $1"
)
_CONTENT = (
    "select document, case when $2 then weights end as weights from madlib_mop.version_content where"
    " version_id = $1"
)
_NO_REGISTRY = "42P01"  # undefined table: on Greenplum, there is no registry


class Challenger(NamedTuple):
    """A version that predicts beside that of an alias."""

    challenger_id: int
    version_id: str
    version: int
    share: float
    max_rows: int


class Found(NamedTuple):
    """A version that the caller may predict with.

    Attributes
    ----------
    name : ModelName
        As the caller wrote it.
    version_id : str
        Identifies it for ever; a version's content does not change.
    version : int
    challenger : Challenger or None
        Of the alias.
    """

    name: ModelName
    version_id: str
    version: int
    challenger: Challenger | None

    def of_challenger(self) -> Found | None:
        """Return the version of the challenger, which the caller may use as the alias itself; None without one."""
        if self.challenger is None:
            return None
        name = ModelName(self.name.name, None, self.challenger.version)
        return Found(name, self.challenger.version_id, self.challenger.version, None)

    @property
    def of_version(self) -> ModelName:
        """The name of the version, whatever the alias stands for later."""
        return ModelName(self.name.name, None, self.version)


class Content(NamedTuple):
    """What a version holds: a JSON document, and the weights if they were requested."""

    document: str
    weights: bytes | None


_plans: dict[str, plpy.Plan] = {}
_wanted: tuple[str, bool] | None = None  # the version that _read_version is to read, and whether its weights too
_content: Content | None = None


def look_up(text: str, function: str) -> Found:
    """Return the version that a name stands for in the snapshot of the calling statement.

    Parameters
    ----------
    text : str
        As written by the caller.
    function : str
        For messages.

    Raises
    ------
    CallError
        If the name cannot be read, there is no such version, or the caller may not predict with it.
    """
    try:
        name = read_name(text)
    except UnreadableName as error:
        raise CallError(f"{function}: {error}", "22P02", hint=error.hint) from None
    value: object
    query, kind, value = _BY_VERSION, "int4", name.version
    if name.version is None:
        query, kind, value = _BY_ALIAS, "text", name.alias
    try:
        rows = plpy.execute(_plan(query, "text", kind), [name.name, value])
    except plpy.SPIError as error:
        if error.sqlstate != _NO_REGISTRY:
            raise
        raise CallError(f"{function}: there is no registry of models on this server", "0A000") from None
    if not rows.nrows():
        raise CallError(
            f"{function}: there is no registered model of this name that you may use. Received: {text!r}",
            "22023",
            hint="SELECT name, version FROM madlib_mop.model_version;",
        )
    row = rows[0]
    if row["version_id"] is None:
        what, known = ("alias", _ALIASES) if name.version is None else ("version", _VERSIONS)
        has = plpy.execute(_plan(known, "text"), [name.name])[0]["known"]
        message = f"{function}: {name.name} has no {what} {value}. Received: {text!r}"
        raise CallError(message, "22023", hint=f"It has {has}.")
    if not row["may_predict"]:
        raise CallError(
            f"{function}: you may see registered model {name.name}, but not predict with it",
            "42501",
            hint=f"Its owner can let you: SELECT madlib_mop.grant_model('{name.name}', 'your_role', 'predict');",
        )
    challenger = None
    if row["challenger_id"] is not None:
        challenger = Challenger(
            row["challenger_id"], row["challenger"], row["challenger_version"], row["share"], row["max_rows"]
        )
    return Found(name, row["version_id"], row["version"], challenger)


class Versions:
    """The versions that names stand for at the newest moment; looked up once for each statement, if that is certain."""

    def __init__(self) -> None:
        self._moment: Moment | None = None
        self._found: dict[str, Found] = {}

    def at(self, moment: Moment, text: str, function: str) -> Found:
        """Return the version that a name stands for; see `look_up`."""
        if moment.snapshot is None:
            return look_up(text, function)
        if moment != self._moment:
            self._moment = moment
            self._found.clear()
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = look_up(text, function)
        return found


def read_content(found: Found, with_weights: bool) -> Content:
    """Return what a version holds. Raises CallError if it has no content."""
    global _wanted, _content
    _wanted = (found.version_id, with_weights)
    try:
        plpy.execute(_plan("select madlib_mop_calls._read_version()"))
        content = _content
    finally:
        _wanted = _content = None
    if content is None:
        raise CallError(
            f"version {found.version} of {found.name.name} has no content",
            "55000",
            hint="Register the model again with madlib_mop.register.",
        )
    return content


def read_wanted() -> None:
    """Read the content of the version that `read_content` asks for; the body of madlib_mop_calls._read_version."""
    global _content
    if _wanted is None:
        return
    version_id, with_weights = _wanted
    rows = plpy.execute(_plan(_CONTENT, "uuid", "bool"), [version_id, with_weights])
    _content = Content(rows[0]["document"], rows[0]["weights"]) if rows.nrows() else None


def for_driver(header: Header) -> tuple[Header, list[Blob]]:
    """Return the answer to a driver that asks for a registered model: its version, its document, and its weights."""
    found = look_up(header["model"], header["function"])
    content = read_content(found, header["with_weights"])
    answer = {"name": found.name.name, "version": found.version, "document": content.document}
    return answer, [] if content.weights is None else [content.weights]


def _plan(query: str, *types: str) -> plpy.Plan:
    if query not in _plans:
        _plans[query] = plpy.prepare(query, types)
    return _plans[query]
