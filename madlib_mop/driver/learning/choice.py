"""Which model `learn` registers: the simpler one of two, unless the other is clearly better on the validation rows.

The average and the best single model are chosen by the validation rows, so on few rows they look better than they are;
the linear model is not chosen.
"""

import math
from dataclasses import dataclass, replace

from madlib_mop.catalog.names import statement
from madlib_mop.driver.ensembles.candidates import read_candidates
from madlib_mop.driver.ensembles.predictions import row_losses
from madlib_mop.driver.ensembles.selection import PairedLosses
from madlib_mop.driver.inference.labelled_rows import find_labelled
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession

_BEST = """
SELECT m.mst_key FROM {models} AS m JOIN {info} AS i ON i.mst_key = m.mst_key WHERE m.model_weights IS NOT NULL
ORDER BY i.validation_loss_final, m.mst_key LIMIT 1
"""
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
    losses = _losses(session, simple, other, validation)
    return replace(other if losses.is_clear else simple, reason=reason_of(losses, simple.name, other.name))


def _alone(models: str, mst_key: int) -> Choice:
    return Choice(models, mst_key, f"model with mst_key {mst_key} alone")


def _losses(session: CallerSession, simple: Choice, other: Choice, validation: str) -> PairedLosses:
    candidates = [
        read_candidates(session, one.table, None if one.mst_key is None else [one.mst_key])[0]
        for one in (simple, other)
    ]
    packed = find_labelled(session, validation, "validation_table").rows_of([one.model for one in candidates])[0]
    with LocalTrainer(session) as trainer:
        return PairedLosses.of(*row_losses(session, trainer, candidates, packed))


def reason_of(losses: PairedLosses, simple: str, other: str) -> str:
    """Return why the simpler model is registered, or the other one.

    Parameters
    ----------
    losses : PairedLosses
    simple, other : str
        What they are.
    """
    means = f"mean loss of {losses.n_rows:,} validation rows: {simple} {losses.simple:.4g}, {other} {losses.other:.4g}"
    error = f"one standard error, {losses.standard_error:.2g}"
    if not math.isfinite(losses.simple):
        return means
    if losses.is_clear:
        return f"{means}; the difference is more than {error}"
    if losses.other >= losses.simple:
        return f"{means}; the simpler one is not worse"
    return f"{means}; the difference is less than {error}, so the simpler one is registered"
