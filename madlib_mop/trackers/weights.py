"""Reads the newest weights of a model from the record; called by `following` for histograms.

They are read from `madlib_mop.model_state`, and not from the run's output table: the output table has the same numbers
without their shapes, and may be another table or a view by now, whose owner's code would run as whoever reads it.
Row-level security shows states to members of the run's owner only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.shared import EPOCH_OF_WEIGHTS
from madlib_mop.trainer.data.state import FORWARD_GROUPS, decode_state

_EPOCH = f"""
SELECT {EPOCH_OF_WEIGHTS} FROM madlib_mop.model AS m
WHERE m.run_id = %s::pg_catalog.int8 AND m.mst_key = %s::pg_catalog.int4 AND m.forward_parts IS NOT NULL
"""
_PARTS = """
SELECT s.data FROM madlib_mop.model AS m
JOIN madlib_mop.model_state AS s
    ON s.slot = m.state_slot AND s.run_id = m.run_id AND s.mst_key = m.mst_key AND s.version = m.state_version
WHERE m.run_id = %s::pg_catalog.int8 AND m.mst_key = %s::pg_catalog.int4 AND s.segment_id IS NULL
      AND s.part < m.forward_parts
ORDER BY s.part
"""


@dataclass(frozen=True, slots=True)
class WeightVariable:
    """One weight variable: its number in the order of ``get_weights()``, and its values in any of Keras' dtypes."""

    number: int
    values: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Weights:
    """The newest weights of a model.

    Attributes
    ----------
    epoch : int
        Of the visit that ended with them.
    tensors : tuple of WeightVariable
        In the order of ``get_weights()``. The record has no names of variables.
    """

    epoch: int
    tensors: tuple[WeightVariable, ...]


def read_weights(connection: psycopg.Connection[Any], run_id: int, mst_key: int) -> Weights | None:
    """Return the newest weights of a model; None if it has none, or the role may not read training states."""
    with one_snapshot(connection):
        epochs = connection.execute(_EPOCH, [run_id, mst_key]).fetchall()
        parts = [data for (data,) in connection.execute(_PARTS, [run_id, mst_key], binary=True)]
    if not epochs or not parts:
        return None
    state = decode_state(parts, FORWARD_GROUPS)
    n_weights = len(state.specs("weights"))
    tensors = tuple(WeightVariable(number, np.asarray(state.read("weights", number))) for number in range(n_weights))
    return Weights(epochs[0][0], tensors)
