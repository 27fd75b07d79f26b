"""`make bench` and related targets: prints the benchmarks' tables, and ratios of measurements in one run.

`make bench` is the short form; `make bench-full` compares at full size, four times: with three seeds, and with one of
them again; `make bench-check` fails if a ratio is above its limit, or in each of three runs over 15 % worse than in
benchmarks/ratios.json for this kind of processor, which `make bench-check ARGS=--record` writes.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from backends import compare_backends, compare_gpus  # noqa: E402
from certainty import compare_certainty  # noqa: E402
from columns import compare_columns  # noqa: E402
from comparison import FUSED, WAYS, Plan, compare_ways  # noqa: E402
from dash import compare_dash  # noqa: E402
from early import compare_early  # noqa: E402
from explain import compare_explained  # noqa: E402
from features import compare_features  # noqa: E402
from hopper import compare  # noqa: E402
from jobs import compare_jobs  # noqa: E402
from large import compare_large  # noqa: E402
from past import N_EARLIER, N_SEEDS, compare_past  # noqa: E402
from predict import compare_predict  # noqa: E402
from proposed import compare_proposed  # noqa: E402
from quality import compare as quality  # noqa: E402
from quality import learned  # noqa: E402
from ratios import Ratio, has_record, losses, medians, processor, record  # noqa: E402
from reports import compare_reports  # noqa: E402
from schedules import compare_schedules  # noqa: E402
from sessions import compare_sessions  # noqa: E402
from traffic import compare_traffic  # noqa: E402
from waits import compare_waits  # noqa: E402

SECTIONS = (
    "conv", "mlp", "fused", "features", "schedule", "early", "jobs", "past", "traffic", "waits", "predict", "sessions",
    "dash", "reports", "quality", "learn", "columns", "proposed", "explain", "certainty", "backends", "gpus", "large",
    "comparison",
)  # fmt: skip
#: Sizes of the comparison: few rows and epochs, or all of them.
SHORT = (
    Plan("images", n_train=1000, n_test=250, n_epochs=2),
    Plan("tabular", (*WAYS, FUSED), n_train=2000, n_test=500, n_epochs=2),
)
#: (seed, repetition): three seeds, and one of them twice to compare the results bit by bit.
_RUNS = ((1, 1), (2, 1), (3, 1), (1, 2))
FULL = (
    Plan("images", n_train=20_000, n_test=4000, n_epochs=5, runs=_RUNS, most_outside=0.05),
    Plan("tabular", (*WAYS, FUSED), n_train=20_000, n_test=4000, n_epochs=10, runs=_RUNS),
)
#: Benchmarks that `make bench-check` compares with the recorded ratios, except those that take long or need peers.
GUARDED = ("conv", "mlp", "fused", "features", "schedule", "predict", "waits")
N_GUARD_RUNS = 3
#: A part of "columns", those that take long or much disk, and those that repeat "conv" and "mlp".
_ON_REQUEST = ("quality", "learn", "backends", "gpus", "large")


def main() -> None:
    """Run the benchmarks that the command line selects."""
    arguments = _arguments()
    # Each run has trainers of its own, as the processes that it is compared with; `proposed.py` measures the others.
    os.environ["PGOPTIONS"] = "-c madlib_mop.trainer_idle_s=0"
    sections = _sections(arguments)
    if arguments.check:
        names = arguments.only or GUARDED
        ratios = medians([ratio for name in names for ratio in sections[name]()] for _ in range(N_GUARD_RUNS))
        sys.exit(_check(ratios, arguments.record))
    names = arguments.only or [name for name in sections if name not in _ON_REQUEST]
    ratios = [ratio for name in names for ratio in sections[name]()]
    print("\nall ratios, smaller is better")
    print(*ratios, sep="\n", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", default=os.environ.get("MADLIB_MOP_DSN"))
    parser.add_argument("--grid", dest="only", choices=SECTIONS, action="append", help="sections to run (all)")
    parser.add_argument("--rows", type=int, default=4000, help="training rows of the grids (4000)")
    parser.add_argument("--epochs", type=int, default=3, help="their epochs (3)")
    ways = (*WAYS, FUSED)
    parser.add_argument("--way", dest="ways", choices=ways, action="append", help="ways of the comparison to run (all)")
    workloads = [plan.workload for plan in FULL]
    parser.add_argument("--workload", choices=workloads, help="the comparison's one workload (both)")
    tables = (*quality.FULL.tables, *learned.FULL.tables)
    help_ = "tables of quality or of learn (two; all with --full)"
    parser.add_argument("--table", dest="tables", choices=tables, action="append", help=help_)
    help_ = "seeds of quality (1; 5 with --full), of learn (1; 3 with --full) and of past (5)"
    parser.add_argument("--seeds", type=int, help=help_)
    parser.add_argument(
        "--earlier", type=int, default=N_EARLIER, help=f"configurations of the earlier search of past ({N_EARLIER})"
    )
    parser.add_argument("--kind", help="word in the names of the kinds of runs that explain measures (all)")
    parser.add_argument("--full", action="store_true", help="only the comparison, or sections of --grid, at full size")
    parser.add_argument("--share", type=float, default=1.0, help="share of the comparison's rows to use (1.0)")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="continue an interrupted run")
    parser.add_argument(
        "--output", type=Path, default=Path("bench"), help="directory for the comparison's page (./bench)"
    )
    parser.add_argument("--check", action="store_true", help="compare the guarded ratios with the recorded ones")
    parser.add_argument("--record", action="store_true", help="with --check: record them instead of comparing")
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1:
        parser.error(f"--share is a share of the rows, above 0 and at most 1; received {arguments.share}")
    if not arguments.dsn:
        parser.error("--dsn is missing: `make bench` sets it")
    if arguments.full and not arguments.only:
        arguments.only = ["comparison"]
    return arguments


def _sections(arguments: argparse.Namespace) -> dict[str, Callable[[], list[Ratio]]]:
    dsn, size = arguments.dsn, (arguments.rows, arguments.epochs)
    plans = [plan.shrunk(arguments.share) for plan in (FULL if arguments.full else SHORT)]
    plans = [plan for plan in plans if arguments.workload in (None, plan.workload)]
    if arguments.ways:
        plans = [replace(plan, ways=arguments.ways) for plan in plans]
    plan = quality.FULL if arguments.full else quality.SHORT
    plan = replace(plan, tables=tuple(arguments.tables or plan.tables), n_seeds=arguments.seeds or plan.n_seeds)
    compare_all = partial(quality.compare_quality, dsn, plan, arguments.output, arguments.go_on)
    of_learn = learned.shrunk(learned.FULL if arguments.full else learned.SHORT, arguments.tables, arguments.seeds)
    made = {
        "conv": partial(compare, dsn, "conv", *size),
        "mlp": partial(compare, dsn, "mlp", *size),
        "fused": partial(compare, dsn, "fused", *size),
        "features": partial(compare_features, dsn, *size),
        "schedule": partial(compare_schedules, dsn, *size),
        "early": partial(compare_early, dsn, *size),
        "jobs": partial(compare_jobs, dsn),
        "past": partial(compare_past, dsn, arguments.seeds or N_SEEDS, arguments.earlier),
        "traffic": partial(compare_traffic, *size),
        "waits": partial(compare_waits, dsn, arguments.rows),
        "predict": partial(compare_predict, dsn),
        "sessions": lambda: compare_sessions(dsn),
        "dash": partial(compare_dash, dsn, *size),
        "reports": partial(compare_reports, dsn),
        "quality": compare_all,
        "learn": partial(learned.compare_learn, dsn, of_learn, arguments.output, arguments.go_on),
        "backends": partial(compare_backends, dsn, *size),
        "gpus": partial(compare_gpus, dsn, *size),
        "large": partial(compare_large, dsn, arguments.epochs),
        "columns": lambda: [*compare_columns(dsn), *compare_all()],
        "proposed": lambda: compare_proposed(dsn),
        "explain": partial(compare_explained, dsn, arguments.kind),
        "certainty": lambda: compare_certainty(dsn),
        "comparison": partial(compare_ways, plans, arguments.output, arguments.go_on),
    }
    return {name: made[name] for name in SECTIONS}


def _check(ratios: list[Ratio], recording: bool) -> int:
    print(f"\nmedians of {N_GUARD_RUNS}, smaller is better")
    print(*ratios, sep="\n")
    if recording:
        record(ratios)
        return 0
    lost = losses(ratios)
    good = f"no ratio is above its limit, or in each run over 15 % worse than recorded for {processor()}"
    if not has_record():
        good = f"no ratio is above its limit; nothing is recorded for {processor()} (make bench-check ARGS=--record)"
    print("\n" + ("\n".join(lost) or good), flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    main()
