"""The time that JAX spends on tracing and compiling, by its own events; used by ``backend.py``."""

import jax

from madlib_mop.trainer.process.clock import Stopwatch

_EVENTS = "/jax/core/compile/"


def watch() -> Stopwatch:
    """Return a stopwatch that runs while JAX traces, lowers or compiles a function, or loads a compiled one.

    JAX reports a scalar at the beginning of each of these, and a time span at its end; they may be nested.
    """
    stopwatch = Stopwatch()

    def on_begin(event: str, value: float, **_: str | int) -> None:
        if event.startswith(_EVENTS):
            stopwatch.begin()

    def on_end(event: str, start: float, end: float, **_: str | int) -> None:
        if event.startswith(_EVENTS):
            stopwatch.end()

    jax.monitoring.register_scalar_listener(on_begin)
    jax.monitoring.register_event_time_span_listener(on_end)
    return stopwatch
