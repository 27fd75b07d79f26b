"""The words for a run that people watch: states and numbers as text; called by the live page and `madlib-mop watch`."""

from datetime import datetime

from madlib_mop.catalog.facts.models import ModelLine, best_model
from madlib_mop.catalog.facts.now import RunNow, RunStatus, SegmentLine
from madlib_mop.catalog.rows.states import RunState


def clean(text: str | None) -> str:
    """Return a text of the record with control characters and marks of direction shown as escapes.

    Names and reasons come from other roles: a terminal must not obey them.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text or "")


def duration(seconds: float | None) -> str:
    """Return a duration in words of a clock: ``45 s``, ``2:05 min``, ``1:02:03 h``."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02} h"


def number(value: float | None) -> str:
    """Return a metric with four significant digits."""
    return "" if value is None else f"{value:.4g}"


def clock(at: datetime | None) -> str:
    """Return a time of day in the local time zone."""
    return "" if at is None else f"{at.astimezone():%H:%M:%S}"


def state_of(status: RunStatus) -> str:
    """Return the state of a run with what holds it up."""
    if status.is_lost:
        return f"{status.state} (its session has ended)"
    if status.state == RunState.RUNNING and status.paused_by is not None:
        return f"paused by {clean(status.paused_by)}"
    if status.state == RunState.RUNNING and status.waits:
        return "running (waits for its turn)"
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


def task_of(segment: SegmentLine) -> str:
    """Return what a segment is doing; '' if it does nothing, or does it for less than a second."""
    if segment.task is None:
        return ""
    keys = segment.task["mst_keys"]
    words = f"{segment.task['kind']} of model{'s' if len(keys) > 1 else ''} {', '.join(map(str, keys))}"
    return f"{words}, iteration {segment.task['epoch']}" if "epoch" in segment.task else words


def figures_of(model: ModelLine) -> str:
    """Return the figures of a model in one line."""
    name = clean(model.metric_name)
    figures = (
        (f"validation {name}", model.validation_metric), ("validation loss", model.validation_loss),
        (f"training {name}", model.training_metric), ("training loss", model.training_loss),
    )  # fmt: skip
    words = [f"{what} {number(value)}" for what, value in figures if value is not None]
    return ", ".join([f"iteration {model.metric_epoch}", *words])
