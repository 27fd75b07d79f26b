"""Model hopping as in `hopper`, with `madlib_mop.fused_training` on: configurations of one shape train in one graph."""

from collections.abc import Iterator

from ways import hopper
from ways.contract import Spec, run_way
from ways.in_database import Trained, train_in_database


def train(cursor, spec: Spec) -> Iterator[Trained]:
    """Train all configurations with one call."""
    cursor.execute("SET madlib_mop.fused_training = on")
    return hopper.train(cursor, spec)


if __name__ == "__main__":
    run_way(lambda spec: train_in_database(spec, hopper.prepare, train))
