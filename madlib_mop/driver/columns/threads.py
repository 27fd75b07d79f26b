"""Work on one batch of rows in another thread, while this one exchanges the next or the last with the caller's session.

NumPy computes without holding the interpreter's lock, and so does waiting for a pipe. Only one call at a time runs in
the other thread.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def in_background(call: Callable[[_Item], object]) -> Iterator[Callable[[_Item], None]]:
    """Yield a function that calls ``call`` in another thread, after the call before has ended; at the end, all have.

    Parameters
    ----------
    call : callable
        What it raises is raised by the next call of the function, or at the end: also in place of an error of the
        body, because that came later.
    """
    with ThreadPoolExecutor(1) as thread:
        pending: Future[object] | None = None

        def start(item: _Item) -> None:
            nonlocal pending
            if pending is not None:
                pending.result()
            pending = thread.submit(call, item)

        try:
            yield start
        finally:
            if pending is not None:
                pending.result()


def computed_ahead(call: Callable[[_Item], _Result], items: Iterable[_Item]) -> Generator[_Result, None, None]:
    """Yield ``call(item)`` of each item, computed in another thread while the result before it is used."""
    with ThreadPoolExecutor(1) as thread:
        pending: Future[_Result] | None = None
        for item in items:
            following = thread.submit(call, item)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()
