"""Work on one batch of rows in another thread, while this one exchanges the next or the last with the caller's session.

NumPy computes without holding the interpreter's lock, and so does waiting for a pipe. Only one call at a time runs in
the other thread.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from mop_backend.frames import PeerGone

from madlib_mop.errors import Cancelled

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def in_background(call: Callable[[_Item], object]) -> Iterator[Callable[[_Item], None]]:
    """Yield a function that calls ``call`` in another thread, after the call before has ended; at the end, all have.

    Parameters
    ----------
    call : callable
        What it raises is raised by the next call of the function, or at the end: also in place of an error of the
        body, because that came later, except when the caller has cancelled or is gone.
    """
    with ThreadPoolExecutor(1) as thread:
        pending: Future[object] | None = None

        def finish() -> None:
            nonlocal pending
            last, pending = pending, None
            try:
                if last is not None:
                    last.result()
            finally:
                del last  # otherwise it and its exception hold each other, and all that the exception's frames hold

        def start(item: _Item) -> None:
            nonlocal pending
            finish()
            pending = thread.submit(call, item)

        try:
            yield start
        except (Cancelled, PeerGone):  # nobody waits for another error
            raise
        except BaseException:
            finish()
            raise
        finish()


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
