"""The words for a run: states and numbers as text; called by reports, cards, the live page, `madlib-mop watch`, the
client and trackers."""

import math
from datetime import datetime

from madlib_mop.catalog.facts.head import RunHead
from madlib_mop.catalog.facts.models import ModelLine, best_model
from madlib_mop.catalog.facts.now import RunNow, RunStatus, SegmentFacts
from madlib_mop.catalog.rows.states import RunState


def clean(text: str | None) -> str:
    """Return a text of the record with control characters and marks of direction shown as escapes.

    Names and reasons come from other roles: a terminal must not obey them.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text or "")


def duration(seconds: float | None) -> str:
    """Return a duration such as ``0.21 s``, ``8.4 s``, ``3 min 20 s``, ``5 h 3 min`` or ``2 d 4 h``."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{number(seconds, 2 if seconds < 10 else 3)} s"
    whole = round(seconds)
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if large == "min" else 24) or large == "d":
            first, rest = divmod(whole, size)
            return f"{first} {large} {rest // part} {small}" if rest // part else f"{first} {large}"
    raise AssertionError("every duration has a form")


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number with at most so many significant digits; '' for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15 and abs(value) >= 10**digits):
        return f"{int(value):,}"
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{digits}g}"


def clock(at: datetime | None) -> str:
    """Return a time of day in the local time zone."""
    return "" if at is None else f"{at.astimezone():%H:%M:%S}"


def state_of(status: RunStatus | RunHead) -> str:
    """Return the state of a run with what holds it up."""
    if status.is_lost:
        return f"{status.state} (its session has ended)"
    if status.state == RunState.RUNNING and status.paused_by is not None:
        return f"paused by {clean(status.paused_by)}"
    if status.state == RunState.RUNNING and status.waits:
        return "running (waits for its turn)"
    if status.state == RunState.TRAINED:
        return "trained (its output tables are not written yet)"
    return status.state


def end_of(status: RunStatus) -> str | None:
    """Return why a run has ended, or how it can be continued; None if there is nothing to say."""
    if status.is_lost:
        return f"no process trains it: SELECT madlib_mop.resume({status.run_id}); continues it"
    return clean(status.detail) if status.has_ended and status.detail else None


def progress_of(status: RunStatus) -> str:
    """Return the progress of a run in one line."""
    parts = [
        f"{status.percent_done:g} % ({status.visits_done} of {status.visits_total} visits)",
        f"{status.n_models} models: {status.n_trained} trained, {status.n_stopped} stopped, {status.n_failed} failed",
        f"{duration(status.elapsed_s)} elapsed",
    ]
    if status.time_left_s is not None and not status.has_ended:
        parts.append(f"about {duration(status.time_left_s)} left")
    return ", ".join(parts)


def best_of(now: RunNow) -> str | None:
    """Return the best model in one line; None before there are metrics."""
    best = best_model(now.models)
    return None if best is None else f"model {best.mst_key} leads by {clean(best.ranked_by)}: {figures_of(best)}"


def parameters_of(model: ModelLine) -> str:
    """Return what distinguishes a model: its network and its parameters."""
    return f"network {model.model_id}, {clean(model.compile_params)} {clean(model.fit_params)}"


def task_of(segment: SegmentFacts) -> str:
    """Return what a segment is doing; '' if it does nothing, or does it for less than a second."""
    if segment.task is None:
        return ""
    keys = segment.task["mst_keys"]
    words = f"{segment.task['kind']} of model{'s' if len(keys) > 1 else ''} {', '.join(map(str, keys))}"
    return f"{words}, iteration {segment.task['epoch']}" if "epoch" in segment.task else words


def newest_of(segment: SegmentFacts) -> str:
    """Return the newest visit of a segment; '' before there is one."""
    if segment.mst_key is None:
        return ""
    return f"model {segment.mst_key}, iteration {segment.epoch}, {duration(segment.seconds)}"


def figures_of(model: ModelLine) -> str:
    """Return the figures of a model in one line."""
    words = [f"{clean(name)} {number(value)}" for name, value in model.figures if value is not None]
    return ", ".join([f"iteration {model.metric_epoch}", *words])
