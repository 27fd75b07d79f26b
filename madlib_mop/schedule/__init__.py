"""Which configuration visits which segment next: pure, without clock or threads; the driver and the simulator use it."""

from .scheduler import Scheduler, make_scheduler
from .work import EpochDone, Evaluation, ModelWork, Task, Visit

__all__ = ["EpochDone", "Evaluation", "ModelWork", "Scheduler", "Task", "Visit", "make_scheduler"]
