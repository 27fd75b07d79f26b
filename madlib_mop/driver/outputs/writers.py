"""Chooses the module that writes a run's output tables: that of many models or of model averaging; used by commands."""

from types import ModuleType

from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.outputs import averaging, hopper
from madlib_mop.schedule.bulk import AVERAGING


def outputs_of(run: RunRow) -> ModuleType:
    """Return the module whose ``SUFFIXES``, checks and ``write_outputs`` are for a run's tables."""
    return averaging if run.schedule == AVERAGING else hopper
