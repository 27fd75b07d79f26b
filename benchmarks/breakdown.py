"""Where the segments' time goes in a run: computing, putting states in and taking them out, keeping them, waiting."""

from dataclasses import dataclass

#: What a visit tells of its trainer (`visit.timing`), in the order of the work.
STAGES = {
    "build_s": "building models",
    "trace_s": "tracing",
    "state_in_s": "state in",
    "features_s": "frozen prefix",
    "compute_s": "training",
    "state_out_s": "state out",
}
HANDLING = "reading, handing over, committing"
IDLE = "idle"
_VISITS = """
SELECT epoch, extract(epoch FROM started_at)::float8, extract(epoch FROM ended_at)::float8, timing
FROM madlib_mop.visit WHERE run_id = %s
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
        """The share of the time that is not spent in training."""
        return 1 - self.seconds["training"] / sum(self.seconds.values())

    def __str__(self) -> str:
        total = sum(self.seconds.values())
        lines = [f"    {stage:36} {seconds:7.2f} s {seconds / total:6.1%}" for stage, seconds in self.seconds.items()]
        return "\n".join(lines)


def breakdown(cursor, run_id: int, n_segments: int, after_epoch: int = 0) -> Breakdown:
    """Break down a run's visits: from the end of the last one of an epoch (0: from the first one's start) to the end.

    A visit that was under way at that moment counts by its part after it, one of a stack of k by a k-th of its time.
    Evaluations are not seen: they are "idle".
    """
    cursor.execute(_VISITS, [run_id])
    visits = cursor.fetchall()
    if after_epoch:
        start = max(ended for epoch, _, ended, _ in visits if epoch <= after_epoch)
    else:
        start = min(started for _, started, _, _ in visits)
    end = max(ended for _, _, ended, _ in visits)
    seconds = {**dict.fromkeys(STAGES.values(), 0.0), HANDLING: 0.0}
    for _, started, ended, timing in visits:
        part = max(0.0, ended - max(started, start)) / (ended - started)
        laps = {stage: timing.get(lap, 0.0) for lap, stage in STAGES.items()}
        for stage, lap_s in laps.items():
            seconds[stage] += part * lap_s
        seconds[HANDLING] += part * ((ended - started) / timing.get("stacked", 1) - sum(laps.values()))
    seconds[IDLE] = n_segments * (end - start) - sum(seconds.values())
    return Breakdown({stage: value for stage, value in seconds.items() if value or stage in (HANDLING, IDLE)})
