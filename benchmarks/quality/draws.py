"""Random configurations of the other contestants. The first one has the library's defaults."""

import numpy as np


def boosting(n: int, seed: int) -> list[dict]:
    """Return configurations of gradient boosting, by the names of scikit-learn; the trees stop early."""
    rng = np.random.default_rng([seed, 1])
    found = [{"learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 20, "l2_regularization": 0.0,
              "max_features": 1.0}]  # fmt: skip
    while len(found) < n:
        found.append(
            {
                "learning_rate": _log_uniform(rng, 0.01, 0.3),
                "max_leaf_nodes": int(rng.choice([7, 15, 31, 63, 127])),
                "min_samples_leaf": int(rng.choice([5, 10, 20, 50, 100])),
                "l2_regularization": _log_uniform(rng, 1e-3, 10.0),
                "max_features": float(rng.uniform(0.5, 1.0)),
            }
        )
    return found[:n]


def perceptrons(n: int, seed: int) -> list[dict]:
    """Return configurations of scikit-learn's perceptrons; they stop early."""
    rng = np.random.default_rng([seed, 2])
    sizes = [(64,), (128,), (256,), (64, 64), (128, 128), (256, 128), (128, 64, 32)]
    found = [{"hidden_layer_sizes": (100,), "alpha": 1e-4, "learning_rate_init": 1e-3, "batch_size": 200}]
    while len(found) < n:
        found.append(
            {
                "hidden_layer_sizes": sizes[rng.integers(len(sizes))],
                "alpha": _log_uniform(rng, 1e-5, 1.0),
                "learning_rate_init": _log_uniform(rng, 3e-4, 1e-2),
                "batch_size": int(rng.choice([32, 64, 128, 256])),
            }
        )
    return found[:n]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
