"""What a report says about one run, as frozen dataclasses; `reading` makes them, figures and pages show them.

Times of day are aware datetimes in UTC. Durations and offsets are seconds (``_s``); offsets count from the run's start.
"""

from madlib_mop.reports.facts.data import ClassCount, ColumnFacts, DataFacts, OutputFacts, SegmentFacts
from madlib_mop.reports.facts.history import CommandFacts, SearchEventFacts
from madlib_mop.reports.facts.models import Architecture, FailureGroup, HyperParameters, Lineage, ModelFacts, Value
from madlib_mop.reports.facts.run import CallFacts, Counts, RunFacts
from madlib_mop.reports.facts.training import Band, Bar, BusyBin, MetricPoint, Schedule, SegmentLoad, TimeSpent

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
    "OutputFacts",
    "RunFacts",
    "Schedule",
    "SearchEventFacts",
    "SegmentFacts",
    "SegmentLoad",
    "TimeSpent",
    "Value",
]
