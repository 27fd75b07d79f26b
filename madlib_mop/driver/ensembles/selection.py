"""Which models an ensemble has, and how often; whether a model is clearly better than a simpler one; pure NumPy."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: Takes the first and the last row of a block and the mean predictions of these rows, one array an output; returns the
#: sum of the block's losses over its rows. Less is better.
BlockLoss = Callable[[int, int, list[np.ndarray]], float]
_BLOCK_VALUES = 1 << 18


@dataclass(frozen=True)
class EnsembleSelection:
    """The ensemble that was chosen.

    Attributes
    ----------
    order : tuple of int
        The models in the order in which they were added, by number; the first is the best single model.
    loss : float
        Mean loss of the ensemble over the rows.
    losses : tuple of float
        That of each model alone; NaN is worse than any number.
    """

    order: tuple[int, ...]
    loss: float
    losses: tuple[float, ...]

    @property
    def counts(self) -> dict[int, int]:
        """How many times each of its models was added, by number, in ascending order."""
        return dict(sorted(Counter(self.order).items()))


def select(predictions: Sequence[Sequence[np.ndarray]], block_loss: BlockLoss, n_members: int) -> EnsembleSelection:
    """Choose models by greedy forward selection with replacement.

    Each step adds the model that makes the loss of the average least. Of equal models the first is added. The result
    is the best of the ensembles of 1 to ``n_members`` models, of equal ones the smallest. So it is never worse than the
    best single model.

    Parameters
    ----------
    predictions : sequence of sequence of numpy.ndarray
        For each model one array an output, float32 ``(n_rows, n_units)``.
    block_loss : BlockLoss
    n_members : int
        The most models to add; the same one can be added several times.

    Source: Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble selection from libraries of models", ICML 2004,
    sections 2 and 2.1.
    """
    totals = [np.zeros(values.shape, np.float64) for values in predictions[0]]
    order: list[int] = []
    trajectory: list[float] = []
    singles: list[float] = []
    for _ in range(n_members):
        losses = [_loss_with(totals, model, len(order) + 1, block_loss) for model in predictions]
        singles = singles or losses
        best = min(range(len(losses)), key=lambda i: (math.isnan(losses[i]), losses[i]))
        for total, values in zip(totals, predictions[best], strict=True):
            total += values
        order.append(best)
        trajectory.append(losses[best])
    n_best = min(range(len(order)), key=lambda i: (math.isnan(trajectory[i]), trajectory[i]))
    return EnsembleSelection(tuple(order[: n_best + 1]), trajectory[n_best], tuple(singles))


@dataclass(frozen=True)
class PairedLosses:
    """The losses of a model beside those of a simpler one on the same rows.

    Attributes
    ----------
    n_rows : int
    simple, other : float
        Mean losses.
    standard_error : float
        Of the mean difference of a row's two losses; infinite if it cannot be computed.
    """

    n_rows: int
    simple: float
    other: float
    standard_error: float

    @classmethod
    def of(cls, simple: np.ndarray, other: np.ndarray) -> "PairedLosses":
        """Return that of the losses of each row, float64 ``(n_rows,)`` each."""
        n_rows = len(simple)
        with np.errstate(invalid="ignore", over="ignore"):
            error = float(np.std(simple - other, ddof=1)) / math.sqrt(n_rows) if n_rows > 1 else math.inf
            means = float(simple.mean()), float(other.mean())
        return cls(n_rows, *means, error if math.isfinite(error) else math.inf)

    @property
    def is_clear(self) -> bool:
        """Whether the other model is better by more than one standard error; a loss that is no number is the worst.

        Source: the rule of one standard error of Breiman, Friedman, Olshen and Stone, "Classification and Regression
        Trees", 1984, section 3.4.3.
        """
        if not math.isfinite(self.simple) or not math.isfinite(self.other):
            return math.isfinite(self.other)
        return self.simple - self.other > self.standard_error


def _loss_with(
    totals: Sequence[np.ndarray], model: Sequence[np.ndarray], n_models: int, block_loss: BlockLoss
) -> float:
    """Return the mean loss of the average if a model is added, computed block by block."""
    n_rows = len(totals[0])
    n_values = sum(total[:1].size for total in totals)
    step = max(1, _BLOCK_VALUES // max(1, n_values))
    sums = []
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        means = [(t[start:stop] + m[start:stop]) / n_models for t, m in zip(totals, model, strict=True)]
        sums.append(block_loss(start, stop, means))
    return math.fsum(sums) / n_rows
