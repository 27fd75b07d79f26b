"""How important each hyper-parameter was for the figure that ranks the models, by Optuna's fANOVA; called by figures.

fANOVA fits a random forest to the models' figures and divides their variance among the parameters (Hutter, Hoos and
Leyton-Brown, "An Efficient Approach for Assessing Hyperparameter Importance", 2014). Optuna's other evaluator without
a forest, PED-ANOVA, compares the best tenth with the rest, and misleads on grids of a dozen models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from madlib_mop.catalog.facts.models import ModelFacts, Value
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.reports.named import named_parameters

if TYPE_CHECKING:  # its import takes longer than most reports
    from optuna.distributions import BaseDistribution

#: With fewer models, no importance is computed.
LEAST_MODELS = 10
EVALUATOR = "fANOVA"
_SEED = 0
_LOG_RATIO = 10.0


@dataclass(frozen=True, slots=True)
class Importance:
    """The importance of each hyper-parameter.

    Attributes
    ----------
    evaluator : str
    shares : tuple of (str, float)
        Parameters and their shares, which add up to 1; the most important first.
    left_out : tuple of str
        Parameters that only some models have.
    n_models : int
    """

    evaluator: str
    shares: tuple[tuple[str, float], ...]
    left_out: tuple[str, ...]
    n_models: int


def varied(models: Sequence[ModelFacts]) -> tuple[str, ...]:
    """Return the hyper-parameters with two or more values among models, in the order of their first occurrence."""
    given = [named_parameters(model) for model in models]
    values: dict[str, set[Value | None]] = {name: set() for one in given for name in one}
    for name, seen in values.items():
        seen.update(one.get(name) for one in given)
    return tuple(name for name, seen in values.items() if len(seen) > 1)


def ranked(facts: RunFacts) -> list[ModelFacts]:
    """Return the models of the sample with a figure, of one iteration if enough of them have it."""
    scored = [m for m in facts.sample if m.is_scored]
    alike = [m for m in scored if m.comparable]
    return alike if len(alike) >= LEAST_MODELS else scored


def importance(facts: RunFacts) -> Importance | None:
    """Return the importance of the hyper-parameters; None with fewer than ten models, or if nothing varies."""
    models = ranked(facts)
    names = varied(models)
    given = [named_parameters(m) for m in models]
    everywhere = [name for name in names if all(name in one for one in given)]
    scores = [m.score for m in models]
    if len(models) < LEAST_MODELS or not everywhere or len(set(scores)) == 1:
        return None
    left_out = tuple(name for name in names if name not in everywhere)
    shares = _shares(models, everywhere, [score for score in scores if score is not None])
    return Importance(EVALUATOR, shares, left_out, len(models))


def _shares(
    models: Sequence[ModelFacts], names: Sequence[str], scores: Sequence[float]
) -> tuple[tuple[str, float], ...]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    values = {name: [named_parameters(m)[name] for m in models] for name in names}
    columns = {name: _column(column) for name, column in values.items()}
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study()
        for i, score in enumerate(scores):
            parameters = {name: column[1][i] for name, column in columns.items()}
            distributions = {name: column[0] for name, column in columns.items()}
            study.add_trial(create_trial(params=parameters, distributions=distributions, value=score))
        found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=_SEED))
    finally:
        optuna.logging.set_verbosity(level)
    return tuple((name, float(share)) for name, share in found.items())


def is_numeric(values: Sequence[Value | None]) -> bool:
    """Return whether all values are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def is_logarithmic(values: Sequence[float]) -> bool:
    """Return whether positive values span an order of magnitude."""
    return min(values) > 0 and max(values) / min(values) >= _LOG_RATIO


def _column(values: Sequence[Value]) -> "tuple[BaseDistribution, list[Value]]":
    """Return the distribution of a parameter, and its values as Optuna takes them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if is_numeric(values):
        numbers = [float(value) for value in values]
        return FloatDistribution(min(numbers), max(numbers), log=is_logarithmic(numbers)), [*numbers]
    texts: list[Value] = [str(value) for value in values]
    return CategoricalDistribution(sorted({str(text) for text in texts})), texts
