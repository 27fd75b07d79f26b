"""`madlib-mop watch` where there is no terminal: one line a change, or one JSON object a line."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from madlib_mop.catalog.facts.now import RunNow, RunStatus
from madlib_mop.catalog.live.words import best_of, clean, end_of, progress_of, state_of
from madlib_mop.cli.watching.session import WatchSession


def exit_status(status: RunStatus) -> int:
    """Return 0 for a run that is finished or not at its end, 1 for one that ended otherwise."""
    return int(status.has_ended and status.state != "finished")


def watch_as_lines(session: WatchSession, once: bool = False) -> int:
    """Print a line for each change until the run ends, and return the exit status.

    Parameters
    ----------
    session : WatchSession
    once : bool
        Print the present state, and return.
    """
    before: RunNow | None = None
    while True:
        now = session.read()
        for line in changes(before, now):
            print(f"{datetime.now():%H:%M:%S} {line}", flush=True)
        if once or now.status.has_ended:
            return exit_status(now.status)
        before = now
        session.news.wait()


def watch_as_json(session: WatchSession, once: bool = False) -> int:
    """Print a JSON object for each change until the run ends, and return the exit status; ``once`` as above."""
    before = None
    while True:
        now = session.read()
        seen = record_of(now)
        if before is None or without_clock(seen) != without_clock(before):
            print(json.dumps(seen, default=str), flush=True)
        if once or now.status.has_ended:
            return exit_status(now.status)
        before = seen
        session.news.wait()


def record_of(now: RunNow) -> dict[str, Any]:
    """Return a state of a run for JSON: the fields of `RunNow` by name, with ``percent_done``; NaN is null."""
    found = asdict(now)
    found["status"]["percent_done"] = now.status.percent_done
    finite: dict[str, Any] = _finite(found)
    return finite


def without_clock(seen: dict[str, Any]) -> dict[str, Any]:
    """Return a state without what changes with time alone."""
    status = {k: v for k, v in seen["status"].items() if k not in ("elapsed_s", "time_left_s")}
    return {**seen, "status": status}


def changes(before: RunNow | None, now: RunNow) -> Iterator[str]:
    """Yield a line for each change between two states of a run; without an earlier one, for the present state."""
    status, run = now.status, f"run {now.status.run_id}"
    if before is None:
        yield (
            f"{run} of {clean(status.owner)}: {clean(status.source_table)} -> {clean(status.output_table)},"
            f" {status.n_models} models on {status.n_segments} segments, {status.num_iterations} iterations"
        )
    if before is None or _progress(before) != _progress(now):
        yield f"{run} {state_of(status)}: {progress_of(status)}"
    if (best := best_of(now)) and (before is None or best_of(before) != best):
        yield best
    states = {} if before is None else {m.mst_key: m.state for m in before.models}
    for model in now.models:
        if model.state == "stopped" and states.get(model.mst_key) != "stopped":
            yield f"model {model.mst_key} {clean(model.detail) or 'stopped'}"
    failed = set() if before is None else {f.mst_key for f in before.failures}
    for failure in now.failures:
        if failure.mst_key not in failed:
            yield f"model {failure.mst_key} failed: {clean(failure.reason)}"
    settled = {} if before is None else {c.command_id: c.state for c in before.commands}
    for command in reversed(now.commands):
        if settled.get(command.command_id) != command.state:
            arguments = clean(json.dumps(command.arguments))
            told = f": {clean(command.detail)}" if command.detail else ""
            yield f"command {command.command}{arguments} of {clean(command.issued_by)}: {command.state}{told}"
    if (why := end_of(status)) is not None:
        yield f"{run} {status.state}: {why}"


def _progress(now: RunNow) -> tuple[object, ...]:
    status = now.status
    return state_of(status), status.visits_done, status.visits_total, status.n_models, status.n_failed, status.n_stopped


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
