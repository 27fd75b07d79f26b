"""The script with the same bits on every engine: 12 configurations, the digits, 3 iterations, rotation, one seed."""

from dataclasses import dataclass

from tests.helpers.training import (
    MIXED,
    digests,
    fit,
    load_architectures,
    load_digits,
    script,
    select_configurations,
    weights,
)

N_SEGMENTS, SEED = 4, 2024
_METRICS = """
SELECT mst_key, epoch, data_set, ordinal, value FROM madlib_mop.metric WHERE run_id = %s ORDER BY 1, 2, 3, 4
"""


@dataclass(frozen=True)
class Twelve:
    """The results of one run: digests of the states, weights and metrics of each model."""

    run_id: int
    digests: dict
    weights: dict
    metrics: list


def prepare_twelve(db) -> None:
    """Write the digits as tables, the architectures and the configurations."""
    load_digits(db, 1500, 297)
    load_architectures(db)
    twelve = [*MIXED, *((model, compiled, "batch_size=48, epochs=1") for model, compiled, _ in MIXED[:5])]
    select_configurations(db, "mst", twelve)


def train_twelve(db, suffix: str = "", *settings: str) -> Twelve:
    """Pack and train.

    Parameters
    ----------
    db : tests.conftest.Database
        After `prepare_twelve`.
    suffix : str
        Suffix of the new tables.
    *settings : str
        Statements before packing that choose the location.
    """
    train, valid = f"train{suffix}", f"valid{suffix}"
    script(
        db,
        *settings,
        f"SET madlib_mop.segments = {N_SEGMENTS}",
        f"SELECT madlib.training_preprocessor_dl('train_rows', '{train}', 'y', 'x', 100, 16.0, seed := 5)",
        f"SELECT madlib.validation_preprocessor_dl('valid_rows', '{valid}', 'y', 'x', '{train}', 100)",
    )
    options = {"source_table": train, "validation_table": valid, "schedule": "rotation", "seed": SEED}
    run = fit(db, f"models{suffix}", "mst", 3, metrics_compute_frequency=1, **options)
    found = digests(db, run.run_id)
    assert len(found) == 12 and None not in found.values()
    metrics = db.rows(_METRICS, [run.run_id])
    assert len(metrics) == 12 * 3 * 2 * 2
    return Twelve(run.run_id, found, weights(db, f"models{suffix}"), metrics)


def assert_same_bits(one: Twelve, other: Twelve) -> None:
    """Assert that two runs have the same results."""
    assert (one.digests, one.weights) == (other.digests, other.weights)
