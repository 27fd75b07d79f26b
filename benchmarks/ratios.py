"""The results of the benchmarks: ratios of two measurements, smaller is better; `make bench-check` compares them.

Seconds depend on the machine, so only ratios are recorded (benchmarks/ratios.json).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RECORDED = Path(__file__).with_name("ratios.json")
ALLOWED_LOSS = 1.15


@dataclass(frozen=True)
class Ratio:
    """One ratio: its name, its value, and its upper limit, if the project defines one."""

    name: str
    value: float
    limit: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"   at most {self.limit:.2f}"
        return f"  {self.name:58} {self.value:6.2f}{limit}"


def medians(runs: Iterable[list[Ratio]]) -> list[Ratio]:
    """Return each ratio's median over several runs, in the order of the first."""
    runs = list(runs)
    values: dict[str, list[float]] = {}
    for ratio in (ratio for run in runs for ratio in run):
        values.setdefault(ratio.name, []).append(ratio.value)
    return [Ratio(ratio.name, median(values[ratio.name]), ratio.limit) for ratio in runs[0]]


def record(ratios: Iterable[Ratio], path: Path = RECORDED) -> None:
    """Write ratios; they replace those of the same names."""
    values = (json.loads(path.read_text()) if path.exists() else {}) | {r.name: round(r.value, 3) for r in ratios}
    path.write_text(json.dumps(dict(sorted(values.items())), indent=2) + "\n")


def losses(ratios: Iterable[Ratio], path: Path = RECORDED) -> list[str]:
    """Return a line for each ratio that is over 15 % above the recorded one, above its limit, or not recorded."""
    recorded = json.loads(path.read_text()) if path.exists() else {}
    lines = []
    for ratio in ratios:
        before = recorded.get(ratio.name)
        if before is None:
            lines.append(f"{ratio.name}: {ratio.value:.3f}, but no value is recorded (make bench-check ARGS=--record)")
        elif ratio.value > before * ALLOWED_LOSS:
            lines.append(
                f"{ratio.name}: {ratio.value:.3f}, recorded {before:.3f}: a loss of {ratio.value / before - 1:.0%}"
            )
        if ratio.limit is not None and ratio.value > ratio.limit:
            lines.append(f"{ratio.name}: {ratio.value:.3f}, it must be at most {ratio.limit:.2f}")
    return lines
