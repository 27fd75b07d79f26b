"""Work on one batch of rows in another thread, while this one exchanges the next or the last with the caller's session.

NumPy computes without holding the interpreter's lock, and so does waiting for a pipe. Only one call at a time runs in
the other thread.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
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


def computed_ahead(
    thread: ThreadPoolExecutor, call: Callable[[_Item], _Result], items: Iterable[_Item]
) -> Generator[_Result, None, None]:
    """Yield ``call(item)`` of each item, computed in another thread while the result before it is used.

    Parameters
    ----------
    thread : ThreadPoolExecutor
        Of one thread. It must live at least as long as the processes that ``call`` starts: the kernel kills a decoder
        with the thread that started it (PR_SET_PDEATHSIG).
    call : callable
    items : iterable
    """
    pending: Future[_Result] | None = None
    try:
        for item in items:
            before, pending = pending, thread.submit(call, item)
            if before is not None:
                yield before.result()
        if pending is not None:
            yield pending.result()
    finally:  # nothing is computed any more when this ends
        if pending is not None:
            wait([pending])
