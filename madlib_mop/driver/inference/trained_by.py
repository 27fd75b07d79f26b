"""Finds the run that trained some weights; called by the registry, by exports and by make_ensemble.

It is found by the SHA-256 of the weights: a table of the same name may have been written again.
"""

from dataclasses import dataclass

from madlib_mop.catalog.facts.shared import EPOCH_OF_WEIGHTS
from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.weights import damaged
from madlib_mop.driver.inference.model import ModelLocation, weights_at
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import was_changed

_RUN = f"""
SELECT m.run_id, m.mst_key, {EPOCH_OF_WEIGHTS} AS epoch
FROM madlib_mop.model m JOIN madlib_mop.run r ON r.run_id = m.run_id
WHERE m.weights_digest = $1
ORDER BY (r.model_output_table = $2 AND m.mst_key IS NOT DISTINCT FROM $3) DESC NULLS LAST, m.run_id DESC LIMIT 1
"""


@dataclass(frozen=True)
class TrainedBy:
    """A model of a run: its key there, and the epoch of the weights, which is an earlier one if early stopping restored
    the best state."""

    run_id: int
    mst_key: int
    epoch: int


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a model of a table: their SHA-256 and their size."""

    digest: str
    n_bytes: int


def measure_weights(session: CallerSession, place: ModelLocation, label: str) -> StoredWeights:
    """Return SHA-256 and size of a model's weights.

    Parameters
    ----------
    session : CallerSession
    place : ModelLocation
    label : str
        The model, for messages.

    Raises
    ------
    NotReady
        If the model is no longer there.
    DataDamaged
        If the weights do not have the SHA-256 that the table records for them.
    """
    if place.parts is not None:
        weights = weights_at(session, place, label)
        return StoredWeights(weights.digest(), weights.n_bytes)
    query = statement(
        "SELECT pg_catalog.encode(pg_catalog.sha256(model_weights), 'hex') AS digest,"
        f" pg_catalog.octet_length(model_weights) AS n_bytes, {place.digest} AS recorded FROM {{t}}",
        t=place.relation,
    )
    rows = session.execute(query + place.condition, place.params, place.types)
    if len(rows) != 1 or rows[0]["digest"] is None:
        raise was_changed(label)
    if rows[0]["recorded"] not in (None, rows[0]["digest"]):
        raise damaged(label)
    return StoredWeights(rows[0]["digest"], rows[0]["n_bytes"])


def find_run(session: CallerSession, relation: Relation, mst_key: int | None, digest: str) -> TrainedBy | None:
    """Return the run that trained some weights; None if the caller may see no such run.

    Parameters
    ----------
    session : CallerSession
    relation : Relation
        The table that has the weights. Its own run comes first, if several runs have trained the same weights.
    mst_key : int or None
    digest : str
        SHA-256 of the weights.
    """
    rows = session.execute(_RUN, [digest, str(relation), mst_key], ["text", "text", "integer"])
    return TrainedBy(rows[0]["run_id"], rows[0]["mst_key"], rows[0]["epoch"]) if rows else None
