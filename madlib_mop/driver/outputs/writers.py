"""Chooses the module that writes a run's output tables: that of many models or of model averaging; used by commands."""

from types import ModuleType

from madlib_mop.driver.outputs import averaging, hopper
from madlib_mop.schedule.bulk import AVERAGING


def outputs_of(schedule: str) -> ModuleType:
    """Return the module whose ``ARGUMENT``, ``SUFFIXES``, checks and ``write_outputs`` are for runs of a schedule."""
    return averaging if schedule == AVERAGING else hopper
