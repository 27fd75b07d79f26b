"""The facts of a run, as frozen dataclasses: one set for report, live page, ``watch``, trackers and client.

`reading` reads them with the viewer's rights, and what is derived of them is computed here. Pages, trackers and figures
only show them. Durations and offsets are seconds (``_s``); offsets count from the run's start.
"""

from madlib_mop.catalog.facts.data import ClassCount, ColumnFacts, DataFacts, OutputFacts, SegmentFacts
from madlib_mop.catalog.facts.history import CommandFacts, SearchEventFacts
from madlib_mop.catalog.facts.models import (
    Architecture,
    FailureGroup,
    HyperParameters,
    Lineage,
    ModelFacts,
    ModelLine,
    Value,
)
from madlib_mop.catalog.facts.run import CallFacts, Counts, RunFacts, RunHead
from madlib_mop.catalog.facts.training import Band, Bar, BusyBin, MetricPoint, Schedule, SegmentLoad, TimeSpent

__all__ = [
    "Architecture",
    "Band",
    "Bar",
    "BusyBin",
    "CallFacts",
    "ClassCount",
    "ColumnFacts",
    "CommandFacts",
    "Counts",
    "DataFacts",
    "FailureGroup",
    "HyperParameters",
    "Lineage",
    "MetricPoint",
    "ModelFacts",
    "ModelLine",
    "OutputFacts",
    "RunFacts",
    "RunHead",
    "Schedule",
    "SearchEventFacts",
    "SegmentFacts",
    "SegmentLoad",
    "TimeSpent",
    "Value",
]
