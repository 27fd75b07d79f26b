"""Which model `learn` registers: the simpler one of two, unless the other is clearly better on the validation rows.

The average and the best single model are chosen by the validation rows, so on few rows they look better than they are;
the linear model is not chosen. So each row is compared with what the other half of the rows would have chosen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from madlib_mop.calls import find_function
from madlib_mop.catalog.names import statement
from madlib_mop.driver.ensembles.candidates import kinds_of, read_candidates
from madlib_mop.driver.ensembles.criterion import EnsembleTarget, targets_of
from madlib_mop.driver.ensembles.predictions import Library, predict_candidates
from madlib_mop.driver.ensembles.selection import PairedLosses, cross_losses, row_losses
from madlib_mop.driver.inference.labelled_rows import find_labelled
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession

_BEST = """
SELECT m.mst_key FROM {models} AS m JOIN {info} AS i ON i.mst_key = m.mst_key
WHERE m.weights_digest IS NOT NULL
ORDER BY i.validation_loss_final, m.mst_key LIMIT 1
"""
_MEMBERS_AT_MOST: int = next(a.default for a in find_function("make_ensemble").arguments if a.name == "n_members")
#: Of fewer rows, each half would have less than one.
_LEAST_ROWS = 2
_MEMBERS = "SELECT ensemble_mst_keys AS keys FROM {info}"


@dataclass(frozen=True)
class Choice:
    """The model to register.

    Attributes
    ----------
    table : str
    mst_key : int or None
        None for a table with one model.
    name : str
        What it is.
    reason : str
        Why it was chosen, without a period; empty for a model that was not compared.
    """

    table: str
    mst_key: int | None
    name: str
    reason: str = ""


def choose_model(
    session: CallerSession, models: str, ensemble: str | None, validation: str, linear: int | None
) -> Choice:
    """Return the linear model, without one the best single model, or the average if that is clearly better.

    Without an average, or with one of a single model, that model takes its place.

    Parameters
    ----------
    session : CallerSession
    models : str
        The table of the models, with at least one that has weights.
    ensemble : str or None
        The table of their average.
    validation : str
        The packed table of the validation rows.
    linear : int or None
        The key of the linear model, if it was trained.

    Raises
    ------
    MopError
        If a model cannot be used.
    """
    table, info = session.relation(models, "models"), session.relation(f"{models}_info", "models")
    best = session.only_row(statement(_BEST, models=table, info=info), table)["mst_key"]
    single = _alone(models, best)
    simple = single if linear is None else Choice(models, linear, "linear model")
    other = single
    if ensemble is not None:
        info = session.relation(f"{ensemble}_info", "ensemble")
        keys = session.only_row(statement(_MEMBERS, info=info), info)["keys"]
        other = _alone(models, keys[0]) if len(keys) == 1 else Choice(ensemble, None, f"average of {len(keys)} models")
    if simple.mst_key == other.mst_key:
        return replace(simple, reason="it has the lowest loss on the validation rows")
    losses = _losses(session, models, linear, validation, 1 if ensemble is None else _MEMBERS_AT_MOST)
    reason = reason_of(losses, linear is not None, ensemble is not None)
    return replace(other if losses.is_clear else simple, reason=reason)


def _alone(models: str, mst_key: int) -> Choice:
    return Choice(models, mst_key, f"model with mst_key {mst_key} alone")


def _losses(
    session: CallerSession, models: str, linear: int | None, validation: str, n_members: int
) -> PairedLosses:
    """Return the losses of the linear model, or without one of the best single one, and of the best average."""
    candidates = read_candidates(session, models, None)
    packed = find_labelled(session, validation, "validation_table").rows_of([one.model for one in candidates])[0]
    with LocalTrainer(session) as trainer:
        library = predict_candidates(session, trainer, candidates, packed)
    return compare(library, packed.dependent, linear, n_members)


def compare(library: Library, names: Sequence[str], linear: int | None, n_members: int) -> PairedLosses:
    """Return the losses of the linear model, or without one of the best single one, and of the best average.

    What is chosen is measured on the half of the rows that did not choose it.

    Parameters
    ----------
    library : Library
        All models with their predictions.
    names : sequence of str
        The dependent columns.
    linear : int or None
        The key of the linear model.
    n_members : int
        Of the average; 1 for the best single model.
    """
    kinds, n_rows = kinds_of(library.candidates), len(library.labels[0])

    def targets_of_rows(rows: slice) -> list[EnsembleTarget]:
        values = [one[rows] for one in library.predictions[0]]
        return targets_of(kinds, values, [one[rows] for one in library.labels], names)

    places = {candidate.mst_key: place for place, candidate in enumerate(library.candidates)}
    if n_rows < _LEAST_ROWS:
        return PairedLosses(n_rows, math.nan, math.nan, math.inf)
    if linear is None:
        simple = cross_losses(library.predictions, targets_of_rows, 1)
    elif linear in places:
        simple = row_losses([library.predictions[places[linear]]], targets_of_rows(slice(None)))
    else:  # it predicts no numbers
        simple = np.full(n_rows, np.inf)
    return PairedLosses.of(simple, cross_losses(library.predictions, targets_of_rows, n_members))


def reason_of(losses: PairedLosses, is_linear: bool, is_average: bool) -> str:
    """Return why the simpler model is registered, or the other one.

    Parameters
    ----------
    losses : PairedLosses
    is_linear : bool
        Whether the simpler one is the linear model, and not the best single one.
    is_average : bool
        Whether the other one is an average, and not the best single one.
    """
    if losses.n_rows < _LEAST_ROWS:
        return "there are too few validation rows to compare models"
    simple = "linear model" if is_linear else "single model"
    other = "average" if is_average else "single model"
    means = (
        f"mean loss of {losses.n_rows:,} validation rows: {simple} {losses.simple:.4g}, {other} {losses.other:.4g}"
        " (each half of the rows measures what the other half chooses)"
    )
    error = f"one standard error, {losses.standard_error:.2g}"
    if not math.isfinite(losses.simple):
        return means
    if losses.is_clear:
        return f"{means}; the difference is more than {error}"
    if losses.other >= losses.simple:
        return f"{means}; the simpler one is not worse"
    return f"{means}; the difference is less than {error}, so the simpler one is registered"
