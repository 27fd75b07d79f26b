"""The backends of Keras that are installed, beside each other: the hopper and plain Keras on each, on both grids."""

import importlib.util
from collections.abc import Sequence

from hopper import LIMITS, N_SEGMENTS, Measured, measure
from mop_backend.keras_backends import BackendName, installing
from ratios import Ratio

from madlib_mop.driver.data.gpus import count_gpus, obstacle_to_gpus

GRIDS = ("conv", "mlp")
#: JAX compiles a step for each shape and number of rows, in each trainer, and plain Keras makes fast steps on it: the
#: hopper saves less there, and the ratio is printed without a limit.
WITHOUT_LIMIT = {("mlp", BackendName.JAX)}


def compare_backends(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Run both ways on each backend; print their times, and return their ratios and those to TensorFlow."""
    ratios = []
    installed = _installed()
    for grid in GRIDS:
        found = _measure_all(dsn, grid, n_rows, n_epochs, installed)
        for name, one in found.items():
            limit = None if (grid, name) in WITHOUT_LIMIT else LIMITS[grid]
            ratios.append(Ratio(f"{grid} on {name}: hopper / plain Keras", one.ratio, limit))
        for way in ("plain", "hopper"):
            base = getattr(found[BackendName.TENSORFLOW], f"{way}_s")
            for name in installed[1:]:
                ratios.append(Ratio(f"{grid}: {way}, {name} / tensorflow", getattr(found[name], f"{way}_s") / base))
    print(*ratios, sep="\n", flush=True)
    return ratios


def compare_gpus(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Run both ways with GPUs on each backend that can use them; print their times, and return their ratios."""
    n_gpus = count_gpus()
    able = []
    for name in _installed():
        obstacle = obstacle_to_gpus(name, n_gpus)
        if obstacle is None:
            able.append(name)
        else:
            print(f"{name}: {obstacle.message}")
    ratios = [
        Ratio(f"{grid} on {name} with GPUs: hopper / plain Keras", one.ratio)
        for grid in GRIDS
        for name, one in _measure_all(dsn, grid, n_rows, n_epochs, able, n_gpus).items()
    ]
    print(*ratios, sep="\n", flush=True)
    return ratios


def _installed() -> list[BackendName]:
    installed = [name for name in BackendName if importlib.util.find_spec(name)]
    for name in sorted(set(BackendName) - set(installed)):
        print(f"{name} is not installed ({installing(name)})")
    return installed


def _measure_all(
    dsn: str, grid: str, n_rows: int, n_epochs: int, names: Sequence[BackendName], n_gpus: int = 0
) -> dict[BackendName, Measured]:
    """Measure both ways on each of these backends, with GPUs if there is a number of them, and print their times.

    Of the run's first and last epoch, the time of all visits is printed, so that the time of compiling is seen.
    """
    found = {name: measure(dsn, grid, n_rows, n_epochs, name, n_gpus) for name in names}
    for name, one in found.items():
        if name == names[0]:
            size = f"{n_rows} rows of {one.source}, {n_epochs} epochs, {N_SEGMENTS} segments"
            print(f"\n{grid}: 16 configurations, {size}")
            print(f"  {'':12} {'plain Keras':>12} {'hopper':>12} {'first epoch':>14} {'last epoch':>14}")
        epochs = one.figures["epochs"]
        print(f"  {name:12} {one.plain_s:10.1f} s {one.hopper_s:10.1f} s {epochs[0]:12.1f} s {epochs[-1]:12.1f} s")
    return found
