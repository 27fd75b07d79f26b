"""Where a model comes from, for its card: the run that trained it, and its version in the registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel
from madlib_mop.driver.inference.trained_by import measure_weights
from madlib_mop.driver.registry.lineage import lineage_of
from madlib_mop.driver.registry.members import of_details, read_ensemble
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.exports.card import Ensemble, Origin, Registration, Visit


@dataclass(frozen=True)
class Source:
    """What is known of a model besides itself.

    Attributes
    ----------
    digest : str
        SHA-256 of its weights.
    n_bytes : int
        Size of its weights.
    origin : Origin or None
        None if no run is known that trained these weights, or the caller may not see it.
    registration : Registration or None
        None for a model of a table.
    ensemble : Ensemble or None
        None for a model that make_ensemble did not make.
    """

    digest: str
    n_bytes: int
    origin: Origin | None
    registration: Registration | None
    ensemble: Ensemble | None = None


def read_source(session: CallerSession, model: TrainedModel) -> Source:
    """Return what is known of a model. Raises NotReady if it was changed meanwhile."""
    place = model.place
    if isinstance(place, RegisteredVersion):
        assert place.details is not None, "the right to more than predictions was requested"
        return _of_details(json.loads(place.details))
    weights = measure_weights(session, place, model.label)
    origin = _origin(lineage_of(session, place.relation, place.key, weights.digest))
    return Source(weights.digest, weights.n_bytes, origin, None, read_ensemble(session, place))


def _of_details(details: Mapping[str, Any]) -> Source:
    registration = Registration(
        details["name"], details["version"], details["registered_by"], details["registered_at"], details["note"]
    )
    ensemble = of_details((details.get("lineage") or {}).get("ensemble"))
    return Source(details["digest"], details["n_bytes"], _origin(details), registration, ensemble)


def _origin(found: Mapping[str, Any]) -> Origin | None:
    """Return the run of columns as `lineage_of` writes them."""
    if found.get("run_id") is None:
        return None
    lineage = found.get("lineage") or {}
    return Origin(
        found["run_id"],
        found.get("epoch"),
        lineage.get("kind"),
        lineage.get("source_table"),
        lineage.get("validation_table"),
        lineage.get("seed"),
        lineage.get("parent_run_id"),
        lineage.get("cloned_from"),
        {str(name): str(version) for name, version in (lineage.get("versions") or {}).items()},
        found.get("metrics") or {},
        tuple(Visit(v["epoch"], v["segment_id"], v["n_rows"], v["rows_digest"]) for v in lineage.get("visits") or ()),
    )
