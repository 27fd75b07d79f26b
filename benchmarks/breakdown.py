"""Breakdown of the segments' time in a run: computation, loading and saving states, committing them, waiting."""

from dataclasses import dataclass

#: The stages of a visit in a trainer (`visit.timing`), in order.
STAGES = {
    "build_s": "building models",
    "trace_s": "tracing",
    "state_in_s": "state in",
    "features_s": "frozen prefix",
    "compute_s": "training",
    "state_out_s": "state out",
}
TRAINING = STAGES["compute_s"]
EVALUATING = "evaluating"
HANDLING = "reading, handing over, committing"
IDLE = "idle"
_TASKS = """
SELECT 'training', epoch, extract(epoch FROM started_at)::float8, extract(epoch FROM ended_at)::float8, timing
FROM madlib_mop.visit WHERE run_id = %(run_id)s
UNION ALL
SELECT 'evaluating', epoch, extract(epoch FROM started_at)::float8, extract(epoch FROM ended_at)::float8, timing
FROM madlib_mop.evaluation WHERE run_id = %(run_id)s
"""


@dataclass(frozen=True)
class Breakdown:
    """The segments' time between two moments of a run, in seconds a stage; their sum is segments x time.

    Attributes
    ----------
    seconds : dict of str to float
    """

    seconds: dict[str, float]

    @property
    def outside_share(self) -> float:
        """Fraction of the time in which no model was trained or evaluated."""
        return 1 - (self.seconds[TRAINING] + self.seconds[EVALUATING]) / sum(self.seconds.values())

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        lines = [f"    {stage:36} {seconds:7.2f} s {seconds / total:6.1%}" for stage, seconds in self.seconds.items()]
        return "\n".join(lines)


def breakdown(cursor, run_id: int, n_segments: int, after_epoch: int = 0) -> Breakdown:
    """Return the breakdown of a run's visits and evaluations.

    It covers the time from the end of the last visit of an epoch (0: from the start of the first visit) to the end of
    the run. Work in progress at that moment counts by its later part, a visit of k fused models by a k-th of its time.
    """
    cursor.execute(_TASKS, {"run_id": run_id})
    tasks = cursor.fetchall()
    if after_epoch:
        start = max(ended for what, epoch, _, ended, _ in tasks if what == TRAINING and epoch <= after_epoch)
    else:
        start = min(started for _, _, started, _, _ in tasks)
    end = max(ended for _, _, _, ended, _ in tasks)
    seconds = dict.fromkeys([*STAGES.values(), EVALUATING, HANDLING], 0.0)
    for what, _, started, ended, timing in tasks:
        part = max(0.0, ended - max(started, start)) / (ended - started)
        stages = STAGES | {"compute_s": what}
        laps = {stage: timing.get(lap, 0.0) for lap, stage in stages.items()}
        for stage, lap_s in laps.items():
            seconds[stage] += part * lap_s
        seconds[HANDLING] += part * ((ended - started) / timing.get("fused", 1) - sum(laps.values()))
    seconds[IDLE] = n_segments * (end - start) - sum(seconds.values())
    kept = {TRAINING, EVALUATING, HANDLING, IDLE}
    return Breakdown({stage: value for stage, value in seconds.items() if value or stage in kept})
