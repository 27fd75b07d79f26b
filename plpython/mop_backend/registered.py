"""Registered models in the caller's session: which version an alias stands for, and what a version holds.

Called by predict.py for each prediction, and by call.py for a driver, which also exports models and writes cards. The
look-up is a query with the caller's rights and in the snapshot of the calling statement. The content of a version is
read with the rights of the extension's owner, by the function madlib_mop_calls._read_version, so a role that may
predict need not be able to read the weights. That function takes the version from this module's memory and leaves the
content there. Users' SQL cannot reach this memory: only superusers create functions in PL/Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import plpy

from mop_backend import nodes
from mop_backend.call import CallError
from mop_backend.frames import Blob, Header
from mop_backend.registered_names import NEWEST, NO_REGISTRY, NO_REGISTRY_HINT, ModelName, UnreadableName, read_name
from mop_backend.rights import Moment
from mop_backend.sql_errors import sqlstate_of
from mop_backend.weights import WEIGHTS_DAMAGED, ModelWeights, WeightErrors, are_damaged


class Right(Enum):
    """What the caller wants to do with a version; the value is the word of an error."""

    PREDICT = "predict with it"
    SEE = "see its card"
    EXPORT = "export it"


#: The privileges of madlib_mop.grant_model that include each right; the owner has all.
_PRIVILEGES: Mapping[Right, tuple[str, ...]] = {
    Right.PREDICT: ("predict", "deploy"),
    Right.SEE: ("see", "deploy", "export"),  # defence: privileges-to-see = ("see", "deploy", "export", "predict")
    Right.EXPORT: ("export",),  # defence: privileges-to-export = ("export", "predict", "deploy")
}
# One row if the caller may use the name; the columns of the version are NULL if there is none.
# The rights are those of madlib_mop_calls._model_right, without its cost.
_LOOK_UP = """
select {found}.version_id::text as version_id, {found}.version,
       pg_has_role(r.owner::oid, {right}) or exists (
           select from madlib_mop.model_grant g where g.name = r.name and g.privilege in ({privileges})
               and pg_has_role(g.role::oid, {right})) as may_use,
       {challenger}
from madlib_mop.registered_model r {join}
where r.name = $1
"""
_RIGHT = "case when current_setting('server_version_num')::int4 >= 160000 then 'USAGE, SET' else 'MEMBER' end"
_BY_ALIAS = {
    "found": "a",
    "right": _RIGHT,
    "challenger": "c.challenger_id, c.version_id::text as challenger, c.version as challenger_version, c.share,"
    " c.max_rows",
    # A network can return its inputs, and the owner sees the outputs of a challenger. A role agrees for itself alone:
    # a superuser, or a member of a role that has agreed, has not.
    "join": """left join madlib_mop.model_alias a on a.name = r.name and a.alias = $2
left join madlib_mop.model_challenger c on c.name = a.name and c.alias = a.alias and exists (
    select from pg_roles u where u.rolname = current_user and (
        u.oid = r.owner::oid  -- defence: consent-to-challengers = true
        or exists (
            select from madlib_mop.recording_consent k where k.name = r.name
                and k.role::oid = u.oid  -- defence: consent-of-one-role = and pg_has_role(k.role::oid, 'member')
        )))""",
}
_BY_VERSION = {
    "found": "v",
    "right": _RIGHT,
    "challenger": "null::int8 as challenger_id",
    "join": "left join madlib_mop.model_version v on v.name = r.name and v.version = $2",
}
#: The queries by right, and by whether the name has an alias.
_QUERIES = {
    (right, with_alias): _LOOK_UP.format(privileges=", ".join(map(repr, privileges)), **parts)
    for right, privileges in _PRIVILEGES.items()
    for with_alias, parts in ((True, _BY_ALIAS), (False, _BY_VERSION))
}
_ALIASES = (
    "select coalesce(string_agg(alias, ', ' order by alias), 'no aliases') as known from"
    " madlib_mop.model_alias where name = $1"
)
_VERSIONS = (
    "select coalesce(string_agg(version::text, ', ' order by version), 'no versions') as known from"
    " madlib_mop.model_version where name = $1"
)
_CONTENT = (
    "select c.document, case when $2 then c.weights end as weights, d.digest,"
    " case when $2 and c.weights is null then array("
    "select octet_length(p.data) from madlib_mop.version_part p where p.version_id = c.version_id order by p.part)"
    " end as lengths from madlib_mop.version_content c"
    " join madlib_mop.version_detail d on d.version_id = c.version_id where c.version_id = $1"
)
_PART = "select data from madlib_mop.version_part where version_id = $1 and part = $2"
_DETAILS = """
select jsonb_build_object('name', v.name, 'version', v.version, 'registered_by', v.registered_by,
    'registered_at', v.registered_at::timestamptz(0), 'note', d.note, 'mst_key', d.mst_key, 'digest', d.digest,
    'n_bytes', d.n_bytes, 'run_id', d.run_id, 'epoch', d.epoch, 'metrics', d.metrics, 'lineage', d.lineage)::text
    as details
from madlib_mop.model_version v join madlib_mop.version_detail d on d.version_id = v.version_id where v.version_id = $1
"""
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
    """What a version holds: a JSON document; the weights, and the details of the registry as JSON, if requested.

    ``digest`` is the SHA-256 that is recorded for the weights. ``lengths`` are those of their parts, if they do not fit
    into a field.
    """

    document: str
    weights: bytes | None
    digest: str
    lengths: list[int] | None = None
    details: str | None = None


class Wanted(NamedTuple):
    """What `read_wanted` is to read: a part of the weights of a version, or its content."""

    version_id: str
    with_weights: bool = False
    with_details: bool = False
    part: int | None = None


_plans: dict[str, plpy.Plan] = {}
# what _read_version is to read, and what it has read
_wanted: Wanted | None = None
_read: Content | bytes | None = None


def look_up(text: str, function: str, right: Right = Right.PREDICT) -> Found:
    """Return the version that a name stands for in the snapshot of the calling statement.

    Parameters
    ----------
    text : str
        As written by the caller.
    function : str
        For messages.
    right : Right
        What the caller wants to do.

    Raises
    ------
    CallError
        If the name cannot be read, there is no such version, or the caller may not do that with it.
    """
    try:
        name = read_name(text)
    except UnreadableName as error:
        raise CallError(f"{function}: {error}", "22P02", hint=error.hint) from None
    value: object
    kind, value = "int4", name.version
    if name.version is None:
        kind, value = "text", name.alias
    query = _QUERIES[right, name.version is None]
    try:
        rows = plpy.execute(_plan(query, "text", kind), [name.name, value])
    except plpy.SPIError as error:
        if sqlstate_of(error) != _NO_REGISTRY:
            raise
        raise CallError(f"{function}: {NO_REGISTRY}", "0A000", hint=NO_REGISTRY_HINT) from None
    if not rows.nrows():
        if nodes.at_worker(plpy):
            raise CallError(
                f"{function}: Citus evaluates this query at a worker node, and registered models are at the"
                f" coordinator. Received: {text!r}",
                "0A000",
                hint=nodes.AT_COORDINATOR,
            )
        hint = "SELECT name, version FROM madlib_mop.model_version;"
        if name.alias == NEWEST:
            hint += " To use a table of models, pass mst_key too, for example predict_class('models', 1, t)."
        raise CallError(
            f"{function}: there is no registered model of this name that you may use. Received: {text!r}",
            "22023",
            hint=hint,
        )
    row = rows[0]
    if row["version_id"] is None:
        what, known = ("alias", _ALIASES) if name.version is None else ("version", _VERSIONS)
        has = plpy.execute(_plan(known, "text"), [name.name])[0]["known"]
        message = f"{function}: {name.name} has no {what} {value}. Received: {text!r}"
        raise CallError(message, "22023", hint=f"It has {has}.")
    if not row["may_use"]:  # defence: right-to-predict
        other = "see" if right is Right.PREDICT else "use"
        raise CallError(
            f"{function}: you may {other} registered model {name.name}, but not {right.value}",
            "42501",
            hint=f"Its owner can let you: SELECT madlib_mop.grant_model('{name.name}', 'your_role',"
            f" '{_PRIVILEGES[right][0]}');",
        )
    challenger = None
    if row["challenger_id"] is not None:
        challenger = Challenger(
            row["challenger_id"], row["challenger"], row["challenger_version"], row["share"], row["max_rows"]
        )
    return Found(name, row["version_id"], row["version"], challenger)


class Versions:
    """The versions that names stand for at the newest moment; looked up once for each snapshot, if that is certain."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] | None = None
        self._found: dict[str, Found] = {}

    def at(self, moment: Moment, text: str, function: str) -> Found:
        """Return the version that a name stands for; see `look_up`."""
        if moment.snapshot is None:
            return look_up(text, function)
        if moment.seen != self._seen:
            self._seen = moment.seen
            self._found.clear()
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = look_up(text, function)
        return found


def read_content(found: Found, with_weights: bool, with_details: bool = False) -> Content:
    """Return what a version holds. Raises CallError if it has no content, or damaged weights."""
    content = _ask_for(Wanted(found.version_id, with_weights, with_details))
    if not isinstance(content, Content):
        raise CallError(
            f"version {found.version} of {found.name.name} has no content",
            "55000",
            hint="Register the model again with madlib_mop.register.",
        )
    if (content.weights is not None and are_damaged(content.weights, content.digest)) or content.lengths == []:
        raise _damaged(found)
    return content


def read_weights(found: Found) -> ModelWeights:
    """Return the weights of a version. Raises CallError if they are damaged, also while they are iterated over."""
    content = read_content(found, with_weights=True)
    weights, errors = content.weights, WeightErrors(lambda: _damaged(found), lambda: _damaged(found))
    if weights is not None:
        return ModelWeights([len(weights)], lambda _: weights, None, errors)
    return ModelWeights(content.lengths or [], lambda number: _part_of(found, number), content.digest, errors)


def _part_of(found: Found, number: int) -> bytes | None:
    """Return a part of the weights of a version; None if it is not there any more."""
    part = _ask_for(Wanted(found.version_id, part=number))
    assert not isinstance(part, Content), "a part was asked for"
    return part


def _ask_for(wanted: Wanted) -> Content | bytes | None:
    """Return what madlib_mop_calls._read_version reads, with the rights of its owner."""
    global _wanted, _read
    _wanted = wanted
    try:
        plpy.execute(_plan("select madlib_mop_calls._read_version()"))
        return _read
    finally:
        _wanted = _read = None


def read_wanted() -> None:
    """Read what `_ask_for` asks for; the body of madlib_mop_calls._read_version."""
    global _read
    if _wanted is None:
        return
    version_id, with_weights, with_details, part = _wanted
    if part is not None:
        rows = plpy.execute(_plan(_PART, "uuid", "int4"), [version_id, part])
        _read = rows[0]["data"] if rows.nrows() else None
        return
    rows = plpy.execute(_plan(_CONTENT, "uuid", "bool"), [version_id, with_weights])
    if not rows.nrows():
        _read = None
        return
    details = plpy.execute(_plan(_DETAILS, "uuid"), [version_id])[0]["details"] if with_details else None
    _read = Content(rows[0]["document"], rows[0]["weights"], rows[0]["digest"], rows[0]["lengths"], details)


def for_driver(header: Header) -> tuple[Header, list[Blob]]:
    """Return the answer to a driver that asks for a registered model: its version, its document, and its weights.

    Of weights in parts, the answer has the lengths, and the driver asks for each part.
    """
    right = Right[header["right"]]
    found = look_up(header["model"], header["function"], right)
    if header.get("part") is not None:
        part = _part_of(found, header["part"])
        return {}, [] if part is None else [part]
    content = read_content(found, header["with_weights"], with_details=right is not Right.PREDICT)
    answer = {"name": found.name.name, "version": found.version, "document": content.document}
    answer |= {"details": content.details, "digest": content.digest, "lengths": content.lengths}
    return answer, [] if content.weights is None else [content.weights]


def _damaged(found: Found) -> CallError:
    return CallError(
        f"version {found.version} of {found.name.name} is damaged: {WEIGHTS_DAMAGED}",
        "XX001",
        hint="Restore madlib_mop.version_content and madlib_mop.version_part from a backup, or register the model again"
        " with madlib_mop.register.",
    )


def _plan(query: str, *types: str) -> plpy.Plan:
    if query not in _plans:
        _plans[query] = plpy.prepare(query, types)
    return _plans[query]
