"""Network traffic of packing and of sixteen configurations on three hosts, compared with other ways.

It uses four clusters of its own, each in a network namespace (as root) or on loopback. Called by run.py.
"""

import math
import sys
from contextlib import closing
from pathlib import Path

from hopper import SCHEMA, configure, load_rows
from ratios import Ratio
from workload import configurations, images

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]  # the clusters and counters are defined in tests/helpers

from tests.helpers.hosts import HOSTS  # noqa: E402
from tests.helpers.traffic import Traffic, counted_hosts, measure  # noqa: E402


def compare_traffic(n_rows: int, n_epochs: int) -> list[Ratio]:
    """Count the bytes of packing and of a run of the grid of perceptrons; print them with those of the formulas."""
    x, y, x_valid, y_valid, source = images(n_rows, 1)
    with counted_hosts() as (hosts, network), closing(hosts.db.connect()) as connection:
        with connection.cursor() as cursor:
            load_rows(cursor, x, y, x_valid, y_valid)
            configure(cursor, "mlp")

            def pack() -> str:
                cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
                return f"{SCHEMA}.train"

            def fit() -> int:
                cursor.execute(
                    "SELECT madlib.madlib_keras_fit_multiple_model('train', 'models', 'mst', %s, seed := 1)",
                    [n_epochs],
                )
                cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
                return cursor.fetchone()[0]

            traffic = measure(hosts, network.count, pack, fit)
            cursor.execute("SELECT mst_key, model_bytes FROM madlib_mop.model ORDER BY mst_key")
            weights = dict(cursor.fetchall())
        what = network.what
    print(f"\ntraffic: 16 configurations, {n_rows} rows of {source}, {n_epochs} epochs, {len(HOSTS)} hosts; {what}")
    return _print(traffic, _all_reduce_bytes(weights, n_rows, n_epochs))


def _print(traffic: Traffic, all_reduce_bytes: int) -> list[Ratio]:
    copies_bytes = len(HOSTS) * traffic.packed_bytes
    ours = traffic.packing.n_bytes + traffic.run.n_bytes
    for label, n_bytes, of in (
        ("packing, measured", traffic.packing.n_bytes, traffic.packed_bytes),
        ("  the packed rows, once", traffic.packed_bytes, None),
        ("run, measured", traffic.run.n_bytes, traffic.formula_bytes),
        ("  2 x models x epochs x segments x state", 2 * traffic.visited_bytes, None),
        ("  weights to evaluate", traffic.evaluated_bytes, None),
        ("all-reduce, by formula", all_reduce_bytes, None),
        ("task-parallel copies of the rows", copies_bytes, None),
    ):
        ratio = "" if of is None else f"   measured / formula {n_bytes / of:.2f}"
        print(f"  {label:42} {n_bytes / 1e6:10.1f} MB{ratio}")
    print(f"  all-reduce / packing and run               {all_reduce_bytes / ours:10.2f}", flush=True)
    return [
        Ratio("traffic: packing / packed rows", traffic.packing.n_bytes / traffic.packed_bytes, 1.1),
        Ratio("traffic: run / formula", traffic.run.n_bytes / traffic.formula_bytes, 1.1),
    ]


def _all_reduce_bytes(weights: dict[int, int], n_rows: int, n_epochs: int) -> int:
    """Return the bytes that a ring all-reduce of the gradients sends, over all models and mini-batches.

    Each of p workers sends 2 (p - 1) / p times the weights per mini-batch (Patarasuk and Yuan 2009, section 3).
    """
    p = len(HOSTS)
    return sum(
        2 * (p - 1) * weights[mst_key] * math.ceil(n_rows / c.batch_size) * n_epochs
        for mst_key, c in enumerate(configurations("mlp"), 1)
    )
