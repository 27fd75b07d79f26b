"""The weights in a table of models, checked against the SHA-256 beside them; tables of earlier versions have none."""

from collections.abc import Iterable
from hashlib import sha256

from mop_backend.weights import WEIGHTS_DAMAGED, WRITE_AGAIN, are_damaged

from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import DataDamaged

#: The last column of a table of models, name and SQL type: the SHA-256 of its weights. NULL: they are not checked.
DIGEST = ("weights_digest", "text")
#: The expression of the recorded SHA-256 where a table has none.
NO_DIGEST = "NULL::pg_catalog.text"


def recorded_digest(columns: Iterable[Column]) -> str:
    """Return the expression of the SHA-256 that is recorded for the weights in a table with these columns."""
    return DIGEST[0] if DIGEST in [(column.name, column.type_sql) for column in columns] else NO_DIGEST


def digest_of(weights: bytes | None) -> str | None:
    """Return the SHA-256 to record for weights; None if the table has none."""
    return None if weights is None else sha256(weights).hexdigest()


def check_weights(weights: bytes, digest: str | None, label: str) -> bytes:
    """Return weights that were read. Raises DataDamaged if they are not those of the recorded digest."""
    if are_damaged(weights, digest):
        raise damaged(label)
    return weights


def damaged(label: str) -> DataDamaged:
    """Return the error for a model of an output table whose weights are not those that were written."""
    return DataDamaged(f"{label} is damaged: {WEIGHTS_DAMAGED}", hint=WRITE_AGAIN)
