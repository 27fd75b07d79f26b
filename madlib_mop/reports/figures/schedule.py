"""Figures of the schedule: what each segment did when, where the time went, and the longest tasks."""

from collections.abc import Iterator

import altair as alt

from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import duration, number
from madlib_mop.reports.figures.drawing import COLOURS, QUIET, data, labelled_bars, spec
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.figures.gantt import LOAD_HEADINGS, gantt, load_rows
from madlib_mop.reports.formats import percent

#: The parts of a visit or an evaluation, in words; keys are those of column ``timing``.
PARTS = {
    "compute_s": "computing",
    "trace_s": "tracing graphs",
    "build_s": "building models",
    "features_s": "output of frozen layers",
    "state_in_s": "reading states",
    "state_out_s": "writing states",
    "sample_s": "evaluating the sample",
    "other_s": "waiting, loading rows",
}
_HEADINGS = ("segment", *LOAD_HEADINGS)
_SECONDS = alt.X("a:Q", title="seconds since the start of the run", scale=alt.Scale(zero=False, nice=False))


def schedule(facts: RunFacts) -> Iterator[Figure]:
    """Yield the Gantt chart, or the busy shares that replace it, the parts of the time, and the longest tasks."""
    if facts.timeline.loads:
        yield _gantt(facts) if facts.timeline.bars else _busy(facts)
        yield _time(facts)
    if facts.timeline.longest:
        yield _longest(facts)


def _gantt(facts: RunFacts) -> Figure:
    timeline = facts.timeline
    first = min(bar.start_s for bar in timeline.bars)
    last = max(bar.end_s for bar in timeline.bars)
    networks = {m.mst_key: m.model_id for m in facts.models}
    shown = [a.model_id for a in facts.architectures][:6]
    visits = [f"visit, network {n}" for n in shown] if 1 < len(facts.architectures) <= 6 else ["visit"]
    rows = []
    for bar in timeline.bars:
        network = networks.get(bar.mst_key)
        visit = visits[0] if len(visits) == 1 else f"visit, network {network}"
        kind = "evaluation" if bar.kind == "evaluation" else visit
        what = f"iteration {bar.epoch}" + (f", position {bar.position}" if bar.position else f", {bar.data_set} data")
        again = f", attempt {bar.attempt}" if bar.attempt > 1 else ""
        rows.append(
            {"g": bar.segment_id, "a": round(bar.start_s, 3), "b": round(bar.end_s, 3), "m": bar.mst_key, "k": kind,
             "w": f"{what}{again}"}
        )  # fmt: skip
    kinds = [*visits, "evaluation"] if any(b.kind == "evaluation" for b in timeline.bars) else visits
    colours = [*COLOURS[: len(visits)], "var(--evaluation)"][: len(kinds)]
    spans = [{"g": load.segment_id, "a": round(first, 3), "b": round(last, 3)} for load in timeline.loads]
    colour = alt.Color(
        "k:N", title=None, scale=alt.Scale(domain=kinds, range=colours), legend=alt.Legend(orient="top")
    )
    body, n_rows = load_rows(timeline.loads)
    return Figure(
        key="gantt",
        title="What each segment did",
        description="Each bar is a visit of a model, or an evaluation, that a segment's trainer made; the background is"
        " time between tasks. Point at a bar to see all bars of its model.",
        summary=_in_words(facts),
        spec=gantt(rows, spans, "segment", _SECONDS, colour),
        headings=_HEADINGS,
        rows=body,
        n_rows=n_rows,
    )


def _busy(facts: RunFacts) -> Figure:
    timeline = facts.timeline
    rows = [
        {"g": b.segment_id, "a": round(b.start_s, 3), "b": round(b.end_s, 3), "s": round(b.share, 3)}
        for b in timeline.bins
    ]
    ramp = alt.Scale(type="quantize", domain=[0, 1], range=["var(--idle)", *(f"var(--r{i})" for i in range(1, 6))])
    chart = alt.Chart(data("bins")).mark_bar(height={"band": 0.9}).encode(
        _SECONDS, alt.X2("b:Q"),
        alt.Y("g:O", title="segment"),
        alt.Color(
            "s:Q", title="busy", scale=ramp, legend=alt.Legend(orient="top", format=".0%", direction="horizontal")
        ),
        tooltip=[
            alt.Tooltip("g:O", title="segment"), alt.Tooltip("a:Q", title="from second", format=",.1f"),
            alt.Tooltip("b:Q", title="to second", format=",.1f"), alt.Tooltip("s:Q", title="busy", format=".0%"),
        ],
    )  # fmt: skip
    body, n_rows = load_rows(timeline.loads)
    step = max(6, min(30, 480 // len(timeline.loads)))
    return Figure(
        key="gantt",
        title="How busy each segment was",
        description=f"The run has {timeline.n_visits:,} visits and {timeline.n_evaluations:,} evaluations, too many for"
        " a bar each. The colour is the share of each span of time in which the segment worked.",
        summary=_in_words(facts),
        spec=spec(chart, step * len(timeline.loads), bins=rows),
        headings=_HEADINGS,
        rows=body,
        n_rows=n_rows,
    )


def _in_words(facts: RunFacts) -> str:
    loads = facts.timeline.loads
    busy = sum(load.visit_s + load.evaluation_s for load in loads)
    whole = busy + sum(load.idle_s for load in loads)
    said = f"{percent(1 - busy / whole if whole else 0.0)} of the segments' time is between tasks: commits and waiting."
    if facts.idle_share is not None:
        said += f" The driver had no task for them for {percent(facts.idle_share)} of the time."
    if facts.makespan_s and facts.lower_bound_s:
        said += (
            f" The run took {duration(facts.makespan_s)} from the first visit to the last task, without interruptions:"
            f" {facts.makespan_s / facts.lower_bound_s:.2f} of the shortest time that any schedule of these tasks could"
            f" take, {duration(facts.lower_bound_s)}."
        )
    return said


def _time(facts: RunFacts) -> Figure:
    spent = facts.timeline.time_spent
    idle = sum(load.idle_s for load in facts.timeline.loads)
    whole = sum(part.seconds for part in spent) + idle
    named = [(f"{part.kind}s", PARTS.get(part.part, part.part), part.seconds) for part in spent]
    named.append(("no task", "between tasks", idle))
    named.sort(key=lambda item: -item[2])
    rows = [
        {"k": kind, "p": f"{kind}: {part}" if kind != "no task" else part, "s": round(seconds, 3),
         "t": duration(seconds), "q": percent(seconds / whole if whole else 0.0)}
        for kind, part, seconds in named
        if seconds > 0
    ]  # fmt: skip
    kinds = ["visits", "evaluations", "no task"]
    colour = alt.Color(
        "k:N",
        title=None,
        scale=alt.Scale(domain=kinds, range=[COLOURS[0], "var(--evaluation)", QUIET]),
        legend=alt.Legend(orient="top"),
    )
    hints = [alt.Tooltip("p:N", title="part"), alt.Tooltip("t:N", title="time"), alt.Tooltip("q:N", title="share")]
    body, n_rows = table([(str(row["p"]), str(row["t"]), str(row["q"])) for row in rows])
    return Figure(
        key="time",
        title="Where the time went",
        description="Seconds of all segments together, by what their trainers did. A graph is traced once for each"
        " architecture and trainer. Between tasks, a visit is committed, or the segment waits for a model.",
        summary=f"The largest part is {rows[0]['p']}: {rows[0]['q']} of {duration(whole)}." if rows else "",
        spec=labelled_bars(rows, alt.X("s:Q", title="seconds, all segments together"), colour, hints),
        headings=("part", "time", "share"),
        rows=body,
        n_rows=n_rows,
    )


def _longest(facts: RunFacts) -> Figure:
    tasks = facts.timeline.longest
    first = tasks[0]
    times = f", {number(first.of_median, 3)} times the median of {first.kind}s" if first.of_median is not None else ""
    body, n_rows = table(
        [
            (
                task.kind, task.mst_key, task.segment_id, task.epoch, f"{task.start_s:,.2f}", number(task.seconds),
                number(task.of_median, 3),
            )
            for task in tasks
        ]
    )  # fmt: skip
    return Figure(
        key="longest",
        title="Longest tasks",
        description="The visits and evaluations that took the most time, at most ten, and how many times the median of"
        " their kind in this run. The first visit of an architecture to a segment also traces its graph. Of models that"
        " train together, each has its share of the time.",
        summary=f"The longest is a{'n' if first.kind == 'evaluation' else ''} {first.kind} of model {first.mst_key} at"
        f" segment {first.segment_id}, iteration {first.epoch}: {duration(first.seconds)}{times}.",
        spec=None,
        headings=("task", "model", "segment", "iteration", "started after (s)", "seconds", "times the median"),
        rows=body,
        n_rows=n_rows,
    )
