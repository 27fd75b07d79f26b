"""Where a model comes from, for its card: the run that trained it, and its version in the registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel
from madlib_mop.driver.inference.trained_by import measure_weights
from madlib_mop.driver.registry.lineage import lineage_of
from madlib_mop.driver.registry.members import UNREADABLE, of_details, read_ensemble, to_whole
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.reports.card import CardOrigin, CardVisit, Ensemble, Registration


@dataclass(frozen=True)
class ExportSource:
    """What is known of a model besides itself.

    Attributes
    ----------
    digest : str
        SHA-256 of its weights.
    n_bytes : int
        Size of its weights.
    origin : CardOrigin or None
        None if no run is known that trained these weights, or the caller may not see it.
    registration : Registration or None
        None for a model of a table.
    ensemble : Ensemble or None
        None for a model that make_ensemble did not make.
    """

    digest: str
    n_bytes: int
    origin: CardOrigin | None
    registration: Registration | None
    ensemble: Ensemble | None = None


def read_source(session: CallerSession, model: TrainedModel) -> ExportSource:
    """Return what is known of a model. Raises MopError if it was changed meanwhile, or cannot be read."""
    place = model.place
    if isinstance(place, RegisteredVersion):
        assert place.details is not None, "the right to more than predictions was requested"
        return _of_details(place.model, place.details)
    weights = measure_weights(session, place, model.label)
    origin = _origin(lineage_of(session, place.relation, place.key, weights.digest))
    return ExportSource(weights.digest, weights.n_bytes, origin, None, read_ensemble(session, place))


def _of_details(model: str, text: str) -> ExportSource:
    """Read what the registry says of a version. The owner could have written parts of it by hand."""
    try:
        details = json.loads(text)
        registration = Registration(
            details["name"], details["version"], details["registered_by"], details["registered_at"], details["note"]
        )
    except ValueError as error:  # a number with too many digits
        raise InvalidParameter(
            f"the details of {model} cannot be read: {error}",
            hint="Register the model again with madlib_mop.register.",
        ) from None
    lineage = details["lineage"]
    ensemble = of_details(lineage.get("ensemble")) if isinstance(lineage, dict) else None
    return ExportSource(details["digest"], details["n_bytes"], _origin(details), registration, ensemble)


def _origin(found: Mapping[str, Any]) -> CardOrigin | None:
    """Return the run of columns as `lineage_of` writes them; None for anything else."""
    if found.get("run_id") is None:
        return None
    try:
        lineage = found["lineage"]
        cloned_from = lineage.get("cloned_from")
        return CardOrigin(
            int(found["run_id"]),
            to_whole(found["epoch"]),
            _text_or_none(lineage.get("kind")),
            _text_or_none(lineage.get("source_table")),
            _text_or_none(lineage.get("validation_table")),
            to_whole(lineage.get("seed")),
            to_whole(lineage.get("parent_run_id")),
            None if cloned_from is None else int(cloned_from["mst_key"]),
            {str(name): str(version) for name, version in (lineage.get("versions") or {}).items()},
            {str(name): None if value is None else float(value) for name, value in found["metrics"].items()},
            tuple(
                CardVisit(int(v["epoch"]), int(v["segment_id"]), int(v["n_rows"]), _text_or_none(v["rows_digest"]))
                for v in lineage.get("visits") or ()
            ),
        )
    except UNREADABLE:  # defence: details-of-a-run
        return None


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)
