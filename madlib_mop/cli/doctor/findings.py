"""The result of a check of the doctor."""

from dataclasses import dataclass
from enum import Enum


class CheckState(Enum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"  # runs work, with limitations
    FAIL = "fail"  # runs do not work
    SKIP = "skip"  # could not be checked because of an earlier finding


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report; ``mend`` is the fix."""

    check: str
    state: CheckState
    found: str
    mend: str | None = None
