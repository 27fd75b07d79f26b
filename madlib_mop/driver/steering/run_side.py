"""What commands change of a run besides its record: `running.steered.SteeredRun` while it trains, `EndedRun` after."""

from collections.abc import Sequence
from typing import Protocol

from madlib_mop.catalog.rows.model import ModelRow


class NotYet(Exception):
    """A command is applied after the visit in flight."""


class RunSide(Protocol):
    """What the run does besides the record: its scheduler while it trains, nothing after its end."""

    @property
    def in_search(self) -> bool:
        """Whether a search still decides on the models."""

    @property
    def trains(self) -> bool:
        """Whether a driver trains the run."""

    def looks(self) -> None:
        """Called before each look at the pending commands."""

    def separate(self, mst_key: int) -> None:
        """Let a model of a fused group train alone. Raises NotYet while the group is in a visit."""

    def turn_of(self, mst_key: int) -> int:
        """Return a model's number in the rotation."""

    def stopped(self, mst_key: int) -> None:
        """Continue after a model was stopped."""

    def resumed(self, mst_key: int) -> None:
        """Continue after a model was resumed."""

    def added(self, models: Sequence[ModelRow]) -> None:
        """Continue after models were added."""

    def extended(self, mst_key: int) -> None:
        """Continue after a model was extended."""

    def paused(self) -> None:
        """Continue after the run was paused."""

    def unpaused(self) -> None:
        """Continue after a pause has ended."""

    def recorded(self) -> None:
        """Called in the transaction of each command, after its changes."""

    def tell(self, sentence: str) -> None:
        """Write a NOTICE to the session that trains the run."""
