"""The results of the benchmarks: ratios of two measurements, smaller is better; `make bench-check` compares them.

Seconds depend on the machine, so only ratios are recorded (benchmarks/ratios.json). Ratios depend on the processor too:
the faster its kernels are, the more of a run's time is spent outside of them. So there is one record for each kind of
processor.
"""

import json
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RECORDED = Path(__file__).with_name("ratios.json")
_CPUINFO = Path("/proc/cpuinfo")
#: Vector instructions that TensorFlow's kernels use, widest first, as Linux names them.
_VECTORS = ("amx_tile", "avx512f", "avx2", "avx", "sve", "asimd")
ALLOWED_LOSS = 1.15


@dataclass(frozen=True)
class Ratio:
    """One ratio.

    Attributes
    ----------
    name : str
    value : float
        Of one run, or the median of several.
    limit : float or None
        Its upper limit, if the project defines one.
    least : float or None
        The smallest value of several runs.
    """

    name: str
    value: float
    limit: float | None = None
    least: float | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"   at most {self.limit:.2f}"
        return f"  {self.name:58} {self.value:6.2f}{limit}"


def medians(runs: Iterable[list[Ratio]]) -> list[Ratio]:
    """Return each ratio's median and smallest value over several runs, in the order of the first."""
    runs = list(runs)
    values: dict[str, list[float]] = {}
    for ratio in (ratio for run in runs for ratio in run):
        values.setdefault(ratio.name, []).append(ratio.value)
    return [Ratio(r.name, median(values[r.name]), r.limit, min(values[r.name])) for r in runs[0]]


def processor(cpuinfo: Path = _CPUINFO) -> str:
    """Return the kind of this machine's processor: architecture, widest vector instructions, vendor, family, model."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    words = set(text.split())
    vectors = next((name for name in _VECTORS if name in words), "no vectors")
    lines = dict(re.findall(r"^(.*?)\s*: *(.*)$", text, re.MULTILINE))
    model = [lines[name] for name in ("vendor_id", "cpu family", "model") if name in lines]
    return ", ".join([platform.machine(), vectors, *([" ".join(model)] if model else [])])


def record(ratios: Iterable[Ratio], path: Path = RECORDED, kind: str | None = None) -> None:
    """Write ratios of one kind of processor (of this one's); they replace those of the same names."""
    records, kind = _records(path), kind or processor()
    records[kind] = dict(sorted((records.get(kind, {}) | {r.name: round(r.value, 3) for r in ratios}).items()))
    path.write_text(json.dumps(dict(sorted(records.items())), indent=2) + "\n")


def has_record(path: Path = RECORDED, kind: str | None = None) -> bool:
    """Return whether ratios are recorded for one kind of processor (for this one's)."""
    return (kind or processor()) in _records(path)


def losses(ratios: Iterable[Ratio], path: Path = RECORDED, kind: str | None = None) -> list[str]:
    """Return a line for each ratio that is over 15 % above the recorded one, above its limit, or not recorded.

    The recorded ratio is compared with the smallest of several runs: slower code is slower in each of them, other work
    on the machine is not. A limit holds for the median. Where nothing is recorded for the kind of processor, ratios are
    compared with their limits only.
    """
    recorded = _records(path).get(kind or processor())
    lines = []
    for ratio in ratios:
        before = recorded.get(ratio.name) if recorded is not None else ratio.value
        if before is None:
            lines.append(f"{ratio.name}: {ratio.value:.3f}, but no value is recorded (make bench-check ARGS=--record)")
        elif (least := ratio.value if ratio.least is None else ratio.least) > before * ALLOWED_LOSS:
            lines.append(f"{ratio.name}: {least:.3f}, recorded {before:.3f}: a loss of {least / before - 1:.0%}")
        if ratio.limit is not None and ratio.value > ratio.limit:
            lines.append(f"{ratio.name}: {ratio.value:.3f}, it must be at most {ratio.limit:.2f}")
    return lines


def _records(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text()) if path.exists() else {}
