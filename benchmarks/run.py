"""`make bench` and its kin: prints the benchmarks' tables, and ratios measured side by side in one run.

`make bench` is the short form; `make bench-full` compares at full size, three times over; `make bench-check` fails where
a ratio has become over 15 % worse than benchmarks/ratios.json says, which `make bench-check ARGS=--record` writes.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from features import compare_features  # noqa: E402
from hopper import compare  # noqa: E402
from predict import compare_predict  # noqa: E402
from ratios import Ratio, losses, medians, record  # noqa: E402
from schedules import compare_schedules  # noqa: E402
from traffic import compare_traffic  # noqa: E402
from waits import compare_waits  # noqa: E402

from comparison import WAYS, Plan, compare_ways  # noqa: E402

#: The comparison's sizes: few rows and epochs, or as many as there are.
SHORT = {
    "images": Plan("images", n_train=2000, n_test=500, n_epochs=2),
    "tabular": Plan("tabular", n_train=4000, n_test=1000, n_epochs=3),
}
FULL = {
    "images": Plan("images", n_train=20_000, n_test=4000, n_epochs=5, repetitions=3, seeds=(1, 2, 3)),
    "tabular": Plan("tabular", n_train=20_000, n_test=4000, n_epochs=10, repetitions=3, seeds=(1, 2, 3)),
}
#: Those that `make bench-check` holds against the recorded ratios; what takes long, or needs peers, is not among them.
GUARDED = ("conv", "mlp", "features", "schedule", "predict", "waits")
N_GUARD_RUNS = 3
