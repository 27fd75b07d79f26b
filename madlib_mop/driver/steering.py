"""What steers a run while it goes on: told of each model that is done or has failed, it may change the run's models.

The hopper calls it; a run whose models are known from its start is steered by nobody.
"""

from collections.abc import Sequence

from madlib_mop.driver.roster import Roster


class Steering:
    """Nobody at the wheel: the run has the models that it began with."""

    def begin(self, roster: Roster) -> None:
        """Take the wheel, once the workers are being opened; a run that goes on has been steered before."""

    def reached(self, mst_key: int, epoch: int, metrics: Sequence[dict]) -> None:
        """Hear that a model's last epoch is complete, and what its metrics are: rows of `madlib_mop.metric`."""

    def failed(self, mst_key: int) -> None:
        """Hear that a model was given up."""

    def tick(self) -> None:
        """Look at the clock; called after every event, and at least once a second."""

    def ended(self) -> None:
        """Hear that nothing is left to be done."""
