"""`make bench`: prints the benchmark's tables, as ratios measured side by side in one run."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from features import compare_features  # noqa: E402
from hopper import compare  # noqa: E402
from predict import measure  # noqa: E402
from traffic import compare_traffic  # noqa: E402

GRIDS = ("conv", "mlp", "features", "traffic")


def main() -> None:
    """Run the benchmarks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("MADLIB_MOP_DSN"))
    parser.add_argument("--grid", choices=GRIDS, action="append", help="which (all)")
    parser.add_argument("--rows", type=int, default=4000, help="training rows (4000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (3)")
    arguments = parser.parse_args()
    if not arguments.dsn:
        parser.error("--dsn is missing: `make bench` gives it")
    for grid in arguments.grid or GRIDS:
        if grid == "features":
            compare_features(arguments.dsn, arguments.rows, arguments.epochs)
        elif grid == "traffic":
            compare_traffic(arguments.rows, arguments.epochs)
        else:
            compare(arguments.dsn, grid, arguments.rows, arguments.epochs)
    if arguments.grid is None:
        for measurement in measure(arguments.dsn):
            print(measurement, flush=True)


if __name__ == "__main__":
    main()
