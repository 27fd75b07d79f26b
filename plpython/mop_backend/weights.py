"""Checks the weights of a model against the SHA-256 that is recorded for them: of output tables and of versions."""

from __future__ import annotations

import hashlib

#: What is wrong with weights whose bytes are not those that were recorded.
WEIGHTS_DAMAGED = "its weights do not have the SHA-256 that is recorded for them"
#: What to do about a model of an output table.
WRITE_AGAIN = (
    "If the run is in madlib_mop.run: madlib_mop.drop_models drops the output tables, and madlib_mop.resume writes them"
    " again. Otherwise restore the table from a backup. If you have changed the weights yourself, set weights_digest to"
    " NULL."
)


def are_damaged(weights: bytes, digest: str | None) -> bool:
    """Return whether weights are not those of a recorded digest; without one, nothing is checked."""
    return digest is not None and hashlib.sha256(weights).hexdigest() != digest
