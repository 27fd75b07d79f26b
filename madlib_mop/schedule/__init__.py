"""The schedules of visits: pure, without clock or threads; for the driver and the simulator."""

from .bounds import Efficiency, Span, efficiency
from .bulk import Average, BulkSynchronous
from .rules import SCHEDULES
from .scheduler import Scheduler, make_scheduler
from .work import EpochDone, Evaluation, ModelWork, Task, Unit, Visit

__all__ = [
    "SCHEDULES",
    "Average",
    "BulkSynchronous",
    "Efficiency",
    "EpochDone",
    "Evaluation",
    "ModelWork",
    "Scheduler",
    "Span",
    "Task",
    "Unit",
    "Visit",
    "efficiency",
    "make_scheduler",
]
