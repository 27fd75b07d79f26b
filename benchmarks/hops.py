"""The makespan on three hosts with large states and slow links, with direct hops and without, in turns.

A coordinator and three hosts are in network namespaces, each with one cable to a switch, so this needs root on Linux.
Three networks with Adam train with the schedule rotation. The makespan is the time from the beginning of the first
visit to the end of the last one. Not part of `make bench`:

    make/python.sh benchmarks/hops.py --state-mb 200 --rate 1gbit

Target: with direct hops, at most 0.6 of the makespan without.
"""

import argparse
import sys
import time
from pathlib import Path

from ratios import Ratio

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]  # the clusters and networks are defined in tests/helpers

from tests.helpers.hosts import Hosts  # noqa: E402
from tests.helpers.network import Switch  # noqa: E402
from tests.helpers.remote import DIRECT  # noqa: E402
from tests.helpers.traffic import switched_hosts  # noqa: E402
from tests.helpers.training import (  # noqa: E402
    ADAM,
    digests,
    fit,
    load_digits,
    one_thread,
    pack,
    quiet_keras,
    script,
    select_configurations,
    store_unchecked,
)

MOST = 0.6
_BYTES_A_WEIGHT = 12  # float32, with the two moments of Adam
_SPAN = """
SELECT extract(epoch FROM max(ended_at) - min(started_at))::float8, count(*), max(state_bytes),
       avg((timing ->> 'pull_s')::float8), avg((timing ->> 'compute_s')::float8)
FROM madlib_mop.visit WHERE run_id = %s
"""


def network(state_mb: float) -> str:
    """Return the JSON of a perceptron whose states have about so many megabytes."""
    one_thread()
    keras = quiet_keras()
    n_weights = state_mb * 1e6 / _BYTES_A_WEIGHT
    n_hidden = int((5000 + n_weights) ** 0.5 - 40)  # n (n + 76) + 10 weights
    dense = [keras.layers.Dense(n_hidden, activation="relu") for _ in range(2)]
    head = keras.layers.Dense(10, activation="softmax")
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *dense, head]).to_json()


def compare(hosts: Hosts, switch: Switch, state_mb: float, n_iterations: int, n_turns: int) -> Ratio:
    """Train in turns with direct hops and without; print each run, and return the ratio of the shortest makespans."""
    db = hosts.db
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('direct_hops', 'on')")
    load_digits(db)
    script(
        db,
        "CREATE TABLE arch (model_id integer, model_arch json, model_weights bytea, name text, description text,"
        " __internal_madlib_id__ text UNIQUE)",
    )
    store_unchecked(db, network(state_mb))
    select_configurations(
        db, "mst", [(1, ADAM.replace("0.01", rate), "batch_size=40, epochs=1") for rate in ("0.001", "0.002", "0.003")]
    )
    pack(db, 3)
    best: dict[str, float] = {}
    results = set()
    for turn in range(n_turns):
        for way, settings in (("direct", DIRECT), ("through", ("SET madlib_mop.direct_hops = off",))):
            counted, began = switch.count(), time.monotonic()
            run_id = fit(
                db, f"m_{way}_{turn}", "mst", n_iterations, settings, source_table="train", schedule="rotation", seed=1
            ).run_id
            took, counted = time.monotonic() - began, switch.count() - counted
            ((span, n_visits, n_bytes, pull_s, compute_s),) = db.rows(_SPAN, [run_id])
            results.add(tuple(sorted(digests(db, run_id).items())))
            best[way] = min(span, best.get(way, span))
            pulled = "" if pull_s is None else f", pull {pull_s:.2f} s"
            print(
                f"  {way:8} makespan {span:7.1f} s, call {took:7.1f} s; {n_visits} visits of {n_bytes / 1e6:.0f} MB,"
                f" {counted.n_bytes / n_visits / 1e6:7.1f} MB a visit at the coordinator; compute {compute_s:.2f} s"
                f"{pulled}",
                flush=True,
            )
    assert len(results) == 1, "all runs have the same bits"
    return Ratio("makespan: direct hops / through the coordinator", best["direct"] / best["through"], MOST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=float, default=200.0)
    parser.add_argument("--rate", default="1gbit", help="of each cable, in each direction, as tc has it")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2)
    asked = parser.parse_args()
    print(f"hops: 3 models, 3 hosts, {asked.iterations} iterations, states of {asked.state_mb} MB, {asked.rate}")
    with switched_hosts(asked.rate) as (hosts, switch):
        print(compare(hosts, switch, asked.state_mb, asked.iterations, asked.turns))


if __name__ == "__main__":
    main()
