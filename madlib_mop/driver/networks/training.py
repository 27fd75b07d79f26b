"""Compile and fit parameters of proposed networks: the loss of each target, and rates and batches by the rows."""

import math
from dataclasses import dataclass

import numpy as np

from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.networks.architectures import ENOUGH_ROWS, LINEAR, RECIPES, is_regression, output_name
from madlib_mop.driver.networks.inputs import MOST_SQUARES, TERM_SCALE

_SMALLEST_BATCH, _LARGEST_BATCH = 16, 1024
_STEPS_PER_ITERATION, _MOST_EPOCHS = 100, 2
#: Learning rate of AdamW for batches of 64 rows. It is scaled by the square root of the batch size, and is up to
#: twice as high if all targets are numbers: twice from `ENOUGH_ROWS` training rows on.
_RATE, _OF_BATCH = 0.003, 64
_WEIGHT_DECAY = 0.02
_LOWEST = 0.02
#: Penalty of a linear model, times the squares of its weights: ten times that of scikit-learn's Ridge and, for two
#: classes, LogisticRegression by default, because rare levels are columns of their own.
_PENALTY = 10.0
#: Of the step at which gradient descent on the loss would diverge, if rows are as long as `_squared_length` says.
_SHARE_OF_STEP = 0.1
#: By how much the squared length of a text's terms exceeds that in the direction which most texts share.
_SPREAD = 10.0


@dataclass(frozen=True)
class TrainingSize:
    """The size of a proposal's training.

    Attributes
    ----------
    shard_rows : tuple of int
        Training rows of each segment.
    num_iterations : int
        Over which learning rates fall.
    """

    shard_rows: tuple[int, ...]
    num_iterations: int

    @property
    def n_rows(self) -> int:
        """All training rows."""
        return sum(self.shard_rows)

    def steps(self, batch_size: int) -> int:
        """Return the mini-batches of one pass over all segments."""
        return sum(math.ceil(n_rows / batch_size) for n_rows in self.shard_rows)


@dataclass(frozen=True)
class ProposedConfiguration:
    """A row of the model selection table; ``recipe`` is the place of its architecture in `RECIPES`."""

    recipe: int
    compile_params: str
    fit_params: str


def batch_size(n_rows: int) -> int:
    """Return the rows of a mini-batch: a power of two, about a 128th of the rows, 16 to 1024."""
    wanted = 2 ** round(math.log2(max(n_rows, 1) / 128))
    return int(min(_LARGEST_BATCH, max(_SMALLEST_BATCH, wanted)))


def epochs(plan: TrainingSize, batch: int) -> int:
    """Return the passes over a segment in one visit: 1, or 2 for tables with few mini-batches."""
    return min(_MOST_EPOCHS, max(1, round(_STEPS_PER_ITERATION / plan.steps(batch))))


def losses(preprocessor: Preprocessor) -> tuple[str, str]:
    """Return loss and metrics as compile parameters write them: one for each target.

    All configurations have the same, without label smoothing, so that their losses can be compared.
    """
    found = [_loss(column) for column in preprocessor.targets]
    if len(found) == 1:
        return f"'{found[0][0]}'", f"['{found[0][1]}']"
    loss = ", ".join(f"'{loss}'" for loss, _ in found)
    metrics = ", ".join(f"['{metric}']" for _, metric in found)
    return f"[{loss}]", f"[{metrics}]"


def _loss(target: FittedColumn) -> tuple[str, str]:
    if not isinstance(target.fit, ClassFit):
        return "mse", "mae"
    if target.fit.encode == "index":
        return "sparse_categorical_crossentropy", "accuracy"
    return "categorical_crossentropy", "accuracy"


def metric_name(preprocessor: Preprocessor) -> str:
    """Return the name under which Keras reports the first metric of all configurations."""
    metric = _loss(preprocessor.targets[0])[1]
    return metric if len(preprocessor.targets) == 1 else f"{output_name(preprocessor.targets[0].name, 1)}_{metric}"


def _linear_optimizer(preprocessor: Preprocessor, plan: TrainingSize, batch: int) -> str:
    """Return the optimizer of a linear model: gradient descent from weights of 0.

    What a level adds to the loss of all rows grows with its rows, and so does its weight, so rare levels fit little
    noise. AdamW divides the gradients of a level by how rare it is. Weight decay of gradient descent is exactly an L2
    penalty, here of the negative log likelihood of all rows. A penalty of the layers would count in the loss by which
    models are compared.
    """
    curvature = (2.0 if is_regression(preprocessor) else 0.5) * _squared_length(preprocessor)
    schedule = _schedule(2 * _SHARE_OF_STEP / curvature, plan, batch)
    decay = _rounded(2 * _PENALTY / plan.n_rows)
    return f"SGD(learning_rate={schedule}, momentum=0.9, nesterov=True, weight_decay={decay}, global_clipnorm=1.0)"


def _squared_length(preprocessor: Preprocessor) -> float:
    """Return about the mean squared length of a row: numbers and units of vectors have the variance 1.

    So have units of hashed texts. The weights of a text's terms have the length `TERM_SCALE` together, but texts
    differ: in no direction is there more than a part of it.
    """
    found = 1.0  # the bias
    for tensor in preprocessor.tensors:
        if tensor.kind == "index":
            found += 1.0
        elif tensor.kind == "weights":
            found += TERM_SCALE**2 / _SPREAD
        elif tensor.kind == "terms":
            continue
        elif tensor.kind == "image":
            found += min(math.prod(tensor.shape), MOST_SQUARES) / 3
        else:
            found += math.prod(tensor.shape)
    return found


def _schedule(rate: float, plan: TrainingSize, batch: int) -> str:
    steps = plan.steps(batch) * epochs(plan, batch) * plan.num_iterations
    return f"CosineDecay({_rounded(rate)}, decay_steps={steps}, alpha={_LOWEST})"


def configurations(
    preprocessor: Preprocessor, plan: TrainingSize, n_configs: int, seed: int
) -> list[ProposedConfiguration]:
    """Return configurations that differ, the most robust first.

    The first of each architecture has the rates that fit the rows. Those after them vary the rates at random: learning
    rates by a factor of up to 3, batches by one of 2, weight decay over three powers of ten; none of them is linear.
    Learning rates fall along a cosine over the iterations (Loshchilov and Hutter, "SGDR", 2017). Weight decay is
    decoupled (the same authors, "Decoupled Weight Decay Regularization", 2019).
    """
    found: list[ProposedConfiguration] = []
    loss, metrics = losses(preprocessor)
    rng = np.random.default_rng(seed)
    varied = [place for place, recipe in enumerate(RECIPES) if recipe.body != LINEAR]
    while len(found) < n_configs:
        is_first = len(found) < len(RECIPES)
        recipe = len(found) if is_first else varied[(len(found) - len(RECIPES)) % len(varied)]
        batch, factor, decay = batch_size(plan.n_rows), 1.0, _WEIGHT_DECAY
        if not is_first:
            factor = 3 ** rng.uniform(-1.0, 1.0)
            batch = int(min(2 * _LARGEST_BATCH, max(_SMALLEST_BATCH // 2, batch * 2.0 ** rng.integers(-1, 2))))
            decay = 10 ** rng.uniform(-3.0, 0.0)
        if RECIPES[recipe].body == LINEAR:
            optimizer = _linear_optimizer(preprocessor, plan, batch)
        else:
            schedule = _schedule(_rate(preprocessor, plan, batch) * factor, plan, batch)
            optimizer = f"AdamW(learning_rate={schedule}, weight_decay={_rounded(decay)})"
        configuration = ProposedConfiguration(
            recipe,
            f"optimizer='{optimizer}', loss={loss}, metrics={metrics}",
            f"batch_size={batch}, epochs={epochs(plan, batch)}",
        )
        if configuration not in found:
            found.append(configuration)
    return found


def search_grids(preprocessor: Preprocessor, plan: TrainingSize) -> tuple[str, str]:
    """Return the compile and fit grids of madlib_keras_automl: constant rates, because searches train for any time."""
    batch = batch_size(plan.n_rows)
    rate = _rate(preprocessor, plan, batch)
    loss, metrics = losses(preprocessor)
    optimizer = (
        f"{{'optimizer': ['AdamW'], 'learning_rate': [{_rounded(rate / 10)}, {_rounded(rate)}, 'log'],"
        " 'weight_decay': [0.001, 0.5, 'log']}"
    )
    batches = sorted({max(_SMALLEST_BATCH // 2, batch // 2), batch, min(2 * _LARGEST_BATCH, 2 * batch)})
    return (
        f"{{'loss': [{loss}], 'metrics': [{metrics}], 'optimizer_params_list': [{optimizer}]}}",
        f"{{'batch_size': {batches}, 'epochs': [{epochs(plan, batch)}]}}",
    )


def _rate(preprocessor: Preprocessor, plan: TrainingSize, batch: int) -> float:
    rate = _RATE * math.sqrt(batch / _OF_BATCH)
    return rate * (1 + min(1.0, plan.n_rows / ENOUGH_ROWS)) if is_regression(preprocessor) else rate


def _rounded(value: float) -> float:
    """Return a number of two digits."""
    return float(f"{value:.1e}")
