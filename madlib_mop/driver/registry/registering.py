"""The command register: a model of an output table becomes a version of a registered model.

The weights are copied inside the server, by a statement of the caller's session; those that do not fit into a field
pass through the driver, as everything else. All of it is one change in the caller's transaction.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mop_backend.frames import Blob
from mop_backend.held_out import HeldOut
from mop_backend.registered_names import is_registered

from madlib_mop.catalog.facts.findings import Findings
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.columns.preprocessors.canonical import plain
from madlib_mop.driver.data.weights import PART_BYTES
from madlib_mop.driver.inference.model import ModelLocation, TrainedModel, read_model, weights_at
from madlib_mop.driver.inference.output import PredictionProfile
from madlib_mop.driver.inference.registered import document_of, need_registry
from madlib_mop.driver.inference.trained_by import StoredWeights, measure_weights
from madlib_mop.driver.outputs.weights import cut
from madlib_mop.driver.registry.lineage import best_key, lineage_of
from madlib_mop.driver.registry.members import as_details, read_ensemble
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import was_changed
from madlib_mop.driver.session.settings import FixedSettings, read_field_bytes
from madlib_mop.errors import InvalidParameter, ReadOnly

_N_KEYS_SHOWN = 20
_CHANGE = "INSERT INTO madlib_mop.registry_change (change, name, details) VALUES ('register', $1, $2::pg_catalog.jsonb)"
#: Fails as register would for the name of another role's model, and changes nothing.
TRY_NAME = """
BEGIN;
INSERT INTO madlib_mop.registry_change (change, name, details)
VALUES ('register', %s, '{"digest": "", "n_bytes": 0, "model_arch": {}}');
ROLLBACK;
SELECT 1
"""
_CONTENT = (
    "INSERT INTO madlib_mop.version_content (version_id, document, weights) VALUES ($1::pg_catalog.uuid, $2, $3)"
)
_WITHOUT_WEIGHTS = "INSERT INTO madlib_mop.version_content (version_id, document) VALUES ($1::pg_catalog.uuid, $2)"
_PART = "INSERT INTO madlib_mop.version_part (version_id, part, data) VALUES ($1::pg_catalog.uuid, $2, $3)"
_NEWEST = (
    "SELECT version_id::pg_catalog.text AS version_id, version FROM madlib_mop.model_version WHERE name = $1"
    " ORDER BY version DESC LIMIT 1"
)


def register(call: Call) -> int:
    """Copy a model into the registry; return the number of its version."""
    a, session = call.arguments, call.session
    check_registry(session)
    if is_registered(a.get("model_table")):
        raise InvalidParameter(
            f"model_table must be an output table, not a registered model. Received: {a['model_table']!r}",
            hint="To give a version another alias, use madlib_mop.set_alias.",
        )
    relation = session.relation(a.get("model_table"), "model_table")
    key = _choose(session, relation, a.get("mst_key"))
    found = read_model(session, a["model_table"], key)
    place = found.place
    assert isinstance(place, ModelLocation), "it was read from a table"
    weights = measure_weights(session, place, found.label)
    # after their SHA-256: `_copy` finds out whether the weights were changed since, and so whether all this is of them
    model = read_model(session, a["model_table"], key)
    check_model(model)
    predictions: tuple[PredictionProfile, ...] = ()
    if a.get("baseline") is not None:
        from madlib_mop.driver.drift.recorded import record_predictions  # brings NumPy along

        predictions = record_predictions(session, model, a["baseline"])
    lineage = lineage_of(session, relation, place.key, weights.digest)
    ensemble = read_ensemble(session, place)
    if ensemble is not None:
        lineage["lineage"] = {**lineage.get("lineage", {}), "ensemble": as_details(ensemble)}
        # no run trained it: what make_ensemble found on its validation rows
        known = {name: value for name, value in ensemble.metrics.items() if value is not None}
        lineage["metrics"] = lineage.get("metrics") or known
    held_out: tuple[HeldOut, ...] = ()
    findings: Findings | None = None
    if a.get("held_out") is not None:
        from madlib_mop.driver.registry.held_out import record_held_out  # brings NumPy along

        known = lineage.get("lineage", {})
        held_out, findings = record_held_out(session, model, a["held_out"], a["calibration"], known)
        lineage["lineage"] = {**known, "held_out": _held_out_rows(held_out)}
    if a.get("explained") is not None:
        from madlib_mop.driver.registry.findings import find_columns

        findings = find_columns(session, model, a["model_table"], a["explained"], a.get("held_out"), findings)
    details: dict[str, Any] = {
        "note": a.get("note"),
        "model_table": str(relation),
        "mst_key": place.key,
        "digest": weights.digest,
        "n_bytes": weights.n_bytes,
        "model_arch": model.configuration.arch,
        "findings": None if findings is None else plain(findings),
        **lineage,
    }
    version_id, version = add_version(session, a["name"], details)
    _copy(session, place, version_id, document_of(model, predictions, held_out), weights)
    return version


def _held_out_rows(held_out: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return what the details of a version say of its held-out rows, without scores: for roles that may see it."""
    return [
        {"output": one.output, "table": one.table, "n_rows": one.n_rows, "calibration": one.calibration}
        for one in held_out
    ]


def add_version(session: CallerSession, name: str, details: Mapping[str, Any]) -> tuple[str, int]:
    """Add a version without content to a registered model, which is created if there is none.

    Parameters
    ----------
    session : CallerSession
    name : str
    details : mapping
        The columns of ``madlib_mop.version_detail``.

    Returns
    -------
    tuple of (str, int)
        ``version_id`` and the number of the version.

    Raises
    ------
    InsufficientPrivilege
        If the name is that of another role's model.
    """
    session.execute(_CHANGE, [name, json.dumps(details)])
    (added,) = session.execute(_NEWEST, [name])
    return added["version_id"], added["version"]


def check_registry(session: CallerSession) -> None:
    """Raise Unsupported on a server without a registry, and ReadOnly if the caller's transaction may not write."""
    need_registry(session)
    if session.caller_setting("transaction_read_only") == "on":
        raise ReadOnly(
            "the registry cannot be changed in a read-only transaction",
            hint="Start a read-write transaction with BEGIN READ WRITE.",
        )


def _choose(session: CallerSession, relation: Relation, mst_key: int | None) -> int | None:
    """Return the given key; without one, that of the only model, or of the best of the leaderboard."""
    if mst_key is not None or "mst_key" not in {column.name for column in session.columns(relation)}:
        return mst_key
    rows = session.execute(statement("SELECT mst_key FROM {t} ORDER BY mst_key", t=relation))
    keys = [row["mst_key"] for row in rows]
    if len(keys) == 1:
        only: int = keys[0]
        return only
    key = best_key(session, relation, keys)
    if key is None:
        shown = ", ".join(map(str, keys[:_N_KEYS_SHOWN])) + (", ..." if keys[_N_KEYS_SHOWN:] else "")
        raise InvalidParameter(
            f"mst_key is missing: {relation} has {len(keys)} models, and you may see no run that wrote it."
            " Received: NULL",
            hint=f"Use one of: {shown}." if keys else "The table is empty.",
        )
    return key


def check_model(model: TrainedModel) -> None:
    """Raise MopError if predictions with the model would fail."""
    if model.preprocessor is None:
        return
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor  # brings NumPy along
    from madlib_mop.driver.inference.fits import check_fit

    check_fit(model, Preprocessor.from_json(model.preprocessor))


def add_content(
    session: CallerSession, version_id: str, document: str, n_bytes: int, buffers: Iterable[Blob]
) -> None:
    """Write document and weights of a version; the weights in parts, if they do not fit into a field.

    Parameters
    ----------
    session : CallerSession
    version_id, document : str
    n_bytes : int
        Of all weights.
    buffers : iterable of bytes-like
        float32, in ``get_weights()`` order.
    """
    field_bytes = read_field_bytes(FixedSettings(session))
    if n_bytes <= field_bytes:
        session.execute(_CONTENT, [version_id, document, b"".join(buffers)], ["text", "text", "bytea"])
        return
    session.execute(_WITHOUT_WEIGHTS, [version_id, document])
    for number, part in enumerate(cut(buffers, min(PART_BYTES, field_bytes))):
        session.post(_PART, [version_id, number, part], ["text", "integer", "bytea"])
    session.flush()


def _copy(
    session: CallerSession, place: ModelLocation, version_id: str, document: str, weights: StoredWeights
) -> None:
    """Copy document and weights into the version, if the weights still have this SHA-256."""
    if place.parts is not None or weights.n_bytes > read_field_bytes(FixedSettings(session)):
        found = weights_at(session, place, str(place.relation)).only(weights.digest)
        add_content(session, version_id, document, weights.n_bytes, found)
        return
    n = len(place.params)
    query = statement(
        "INSERT INTO madlib_mop.version_content (version_id, document, weights)"
        f" SELECT ${n + 1}::pg_catalog.uuid, ${n + 2}, model_weights FROM {{t}}",
        t=place.relation,
    )
    same = f"pg_catalog.encode(pg_catalog.sha256(model_weights), 'hex') = ${n + 3}"
    condition = f"{place.condition} AND {same}" if place.condition else f" WHERE {same}"
    rows = session.execute(
        f"{query}{condition} RETURNING version_id::pg_catalog.text AS version_id",
        [*place.params, version_id, document, weights.digest],
        [*place.types, "text", "text", "text"],
    )
    if len(rows) != 1:
        raise was_changed(place.relation)
