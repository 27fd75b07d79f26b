"""The backends of Keras that are installed, beside each other: the hopper and plain Keras on each, on both grids."""

import importlib.util

from hopper import LIMITS, N_SEGMENTS, measure
from ratios import Ratio

from madlib_mop.trainer.backends.base.names import BackendName

GRIDS = ("conv", "mlp")


def compare_backends(dsn: str, n_rows: int, n_epochs: int) -> list[Ratio]:
    """Run both ways on each backend; print their times, and return their ratios and those to TensorFlow.

    Of the run's first and last epoch, the time of all visits is printed, so that the time of compiling is seen.
    """
    ratios = []
    installed = [name for name in BackendName if importlib.util.find_spec(name)]
    for name in sorted(set(BackendName) - set(installed)):
        print(f"backends: {name} is not installed (make server BACKENDS='tensorflow {name}')")
    for grid in GRIDS:
        found = {name: measure(dsn, grid, n_rows, n_epochs, name) for name in installed}
        source = found[BackendName.TENSORFLOW].source
        print(f"\n{grid}: 16 configurations, {n_rows} rows of {source}, {n_epochs} epochs, {N_SEGMENTS} segments")
        print(f"  {'':12} {'plain Keras':>12} {'hopper':>12} {'first epoch':>14} {'last epoch':>14}")
        for name, one in found.items():
            epochs = one.figures["epochs"]
            print(f"  {name:12} {one.plain_s:10.1f} s {one.hopper_s:10.1f} s {epochs[0]:12.1f} s {epochs[-1]:12.1f} s")
        for name, one in found.items():
            ratios.append(Ratio(f"{grid} on {name}: hopper / plain Keras", one.ratio, LIMITS[grid]))
        for way in ("plain", "hopper"):
            base = getattr(found[BackendName.TENSORFLOW], f"{way}_s")
            for name in installed[1:]:
                ratios.append(Ratio(f"{grid}: {way}, {name} / tensorflow", getattr(found[name], f"{way}_s") / base))
    print(*ratios, sep="\n", flush=True)
    return ratios
