"""Which models an ensemble has, and how often; whether a model is clearly better than a simpler one; pure NumPy."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from madlib_mop.driver.ensembles.criterion import EnsembleTarget

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


def sum_of_losses(targets: Sequence[EnsembleTarget], start: int, stop: int, means: Sequence[np.ndarray]) -> float:
    """Return the sum of the losses of a block's rows, all outputs added; the targets with it are a `BlockLoss`."""
    return sum(target.loss(start, stop, mean) for target, mean in zip(targets, means, strict=True))


def row_losses(models: Sequence[Sequence[np.ndarray]], targets: Sequence[EnsembleTarget]) -> np.ndarray:
    """Return the loss of each row for the average of some models, all outputs added: float64 ``(n_rows,)``.

    Parameters
    ----------
    models : sequence of sequence of numpy.ndarray
        For each model one array an output, float32 ``(n_rows, n_units)``. A model may occur several times.
    targets : sequence of EnsembleTarget
        For each output, with the labels of these rows.
    """
    n_rows = len(models[0][0])
    step = max(1, _BLOCK_VALUES // max(1, sum(values[:1].size for values in models[0])))
    found = np.zeros(n_rows, np.float64)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        for place, target in enumerate(targets):
            total = np.zeros(models[0][place][start:stop].shape, np.float64)
            for model in models:
                total += model[place][start:stop]
            found[start:stop] += target.row_losses(start, stop, total / len(models))
    return found


def cross_losses(
    predictions: Sequence[Sequence[np.ndarray]],
    targets_of_rows: Callable[[slice], Sequence[EnsembleTarget]],
    n_members: int,
) -> np.ndarray:
    """Return the loss of each row for the average that the other half of the rows chooses: float64 ``(n_rows,)``.

    A half is every second row. So no row is measured with an average that it chose: of many models, the one that looks
    best on the rows that chose it is often not the best on others.

    Parameters
    ----------
    predictions : sequence of sequence of numpy.ndarray
        As for `select`, of at least two rows.
    targets_of_rows : callable
        Returns the targets with the labels of some rows, one for each output.
    n_members : int
        As for `select`; 1 for the best single model.
    """
    found = np.empty(len(predictions[0][0]), np.float64)
    for first in (0, 1):
        choosing, measured = slice(first, None, 2), slice(1 - first, None, 2)
        block_loss = partial(sum_of_losses, targets_of_rows(choosing))
        order = select([[values[choosing] for values in model] for model in predictions], block_loss, n_members).order
        chosen = [[values[measured] for values in predictions[number]] for number in order]
        found[measured] = row_losses(chosen, targets_of_rows(measured))
    return found


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
