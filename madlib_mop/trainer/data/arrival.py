"""How many rows of a shard are there, while others are on their way; used by ``incoming.py`` and by visits."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from madlib_mop.errors import MopError
from madlib_mop.trainer.process.failures import INTERNAL, RequestFailure

_Shard = TypeVar("_Shard")  # always `Shard`, whose module uses this one


class RowsMissing(RequestFailure):
    """A shard has ended before the rows that a visit waits for, or it was refused."""

    def __init__(self) -> None:
        super().__init__(INTERNAL, MopError("the rows that a visit waits for have not come"))


class Arrival(Generic[_Shard]):
    """How many rows of a shard are there, for a visit that begins while others are on their way.

    One thread adds the rows, another one trains on them.

    Attributes
    ----------
    has_ended : bool
        Whether no more rows come.
    waited_s : float
        Seconds that `wait_for` and `whole` have taken.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_rows = 0
        self._begun: _Shard | None = None
        self._whole: _Shard | None = None
        self.has_ended = False
        self.waited_s = 0.0

    def reach(self, n_rows: int, begun: _Shard | None) -> None:
        """Report that so many rows are there; ``begun`` is the shard as it will be, None if that is not known."""
        with self._changed:
            self._n_rows, self._begun = n_rows, begun
            self._changed.notify_all()

    def end(self, whole: _Shard | None) -> None:
        """Report the end: the shard, if it can be trained on."""
        with self._changed:
            self._whole, self.has_ended = whole, True
            self._changed.notify_all()

    def wait_for(self, n_rows: int) -> None:
        """Wait until so many rows are there. Raises RowsMissing."""
        self._wait(lambda: self._n_rows >= n_rows)
        if self._n_rows < n_rows or (self.has_ended and self._whole is None):
            raise RowsMissing

    def begun(self) -> _Shard | None:
        """Wait for the first rows; return the shard as it will be, None if that is not known."""
        self._wait(lambda: self._n_rows > 0)
        return self._begun

    def whole(self) -> _Shard:
        """Wait for the end; return the shard. Raises RowsMissing."""
        self._wait(lambda: False)
        if self._whole is None:
            raise RowsMissing
        return self._whole

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        begun = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or is_enough())
        self.waited_s += time.perf_counter() - begun
