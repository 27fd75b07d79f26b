"""The seeds of a model's start weights, and of a pass; used by ``recipe.py`` and by benchmarks.

They depend only on recorded numbers, so a run is repeatable from its record
(``numpy.random.SeedSequence``, O'Neill's seed_seq design, spreads neighbouring seeds apart).
"""

import numpy as np

_ROWS_AT_ONCE = 1 << 20


def model_seed(seed: int, mst_key: int) -> int:
    """Return the seed for ``keras.utils.set_random_seed`` right before a configuration's model is built.

    Parameters
    ----------
    seed : int
        The run's seed, 0 or more.
    mst_key : int
        The configuration's key in the model selection table, 0 or more.

    Returns
    -------
    int
        32 bits, ``0 <= result < 2**32``.
    """
    return int(np.random.SeedSequence([seed, mst_key]).generate_state(1)[0])


def pass_seed(seed: int, mst_key: int, epoch: int, segment_id: int, pass_: int) -> int:
    """Return the seed of a backend's global generator for one pass over a shard, if its layers draw from one.

    Parameters
    ----------
    seed, mst_key, epoch, segment_id, pass_ : int
        As for ``pass_permutation``.

    Returns
    -------
    int
        32 bits, ``0 <= result < 2**32``.
    """
    return int(np.random.SeedSequence([seed, mst_key, epoch, segment_id, pass_]).generate_state(1)[0])


def pass_permutation(
    seed: int, mst_key: int, epoch: int, segment_id: int, pass_: int, n_rows: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Return the row order of one pass over a shard with ``shuffle``.

    Parameters
    ----------
    seed, mst_key : int
        As for ``model_seed``.
    epoch : int
        The model's epoch (iteration), counted from 1.
    segment_id : int
        The shard's ``__dist_key__``; on Citus, the number of the segment.
    pass_ : int
        Which pass of the visit, counted from 0 (a visit makes ``epochs - initial_epoch`` of them).
    n_rows : int
        Rows of the shard.
    out : numpy.ndarray, optional
        Where to write it, int64 ``(n_rows,)``.

    Returns
    -------
    numpy.ndarray
        Shape ``(n_rows,)``, int64: row ``result[i]`` of the shard is the i-th to be trained on.
    """
    order = in_order(n_rows, out)
    np.random.default_rng([seed, mst_key, epoch, segment_id, pass_]).shuffle(order)  # what `permutation` does
    return order


def in_order(n_rows: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return the numbers of the rows, int64 ``(n_rows,)``, in ``out`` if it is given."""
    if out is None:
        return np.arange(n_rows)
    for begin in range(0, n_rows, _ROWS_AT_ONCE):
        out[begin : begin + _ROWS_AT_ONCE] = np.arange(begin, min(begin + _ROWS_AT_ONCE, n_rows))
    return out
