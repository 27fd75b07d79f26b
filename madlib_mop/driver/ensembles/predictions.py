"""The predictions of the candidates for the rows of a table, in memory; used by `make_ensemble` and `learn`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from madlib_mop.driver.ensembles.candidates import Candidate
from madlib_mop.driver.ensembles.criterion import apply, problem_of
from madlib_mop.driver.inference.labelled_rows import LabelledRows
from madlib_mop.driver.inference.packed_rows import MAX_BYTES, predicted_rows
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter

_WHAT = "validation_table"
_HINT = "Use a smaller validation table, or fewer models: mst_keys => '{...}'."


@dataclass(frozen=True)
class Library:
    """Candidates with their predictions.

    Attributes
    ----------
    candidates : list of Candidate
        Those whose predictions can be averaged.
    predictions : list of list of numpy.ndarray
        For each of them one array an output: float32 ``(n_rows, n_units)``, logits as probabilities.
    labels : list of numpy.ndarray
        The packed values of each dependent column, ``(n_rows, ...)``.
    """

    candidates: list[Candidate]
    predictions: list[list[np.ndarray]]
    labels: list[np.ndarray]


def predict_candidates(
    session: CallerSession,
    trainer: LocalTrainer,
    candidates: Sequence[Candidate],
    packed: LabelledRows,
    max_bytes: int = MAX_BYTES,
) -> Library:
    """Predict all rows with each candidate, one after the other.

    A candidate whose predictions cannot be averaged is left out, with a warning.

    Raises
    ------
    OutOfResources
        If the predictions of all candidates would take more than ``max_bytes``.
    InvalidParameter
        If a model cannot be used, or none is left.
    """
    kept: list[Candidate] = []
    predictions: list[list[np.ndarray]] = []
    labels: list[np.ndarray] = []
    reasons = []
    for candidate in candidates:
        predicted = predicted_rows(
            session, trainer, candidate.model, packed, _WHAT, max_bytes // len(candidates),
            with_labels=candidate is candidates[0], hint=_HINT,
        )  # fmt: skip
        labels = labels or predicted.labels
        found = predicted.outputs
        values = [apply(one, form) if np.isfinite(one).all() else one
                  for one, form in zip(found, candidate.forms, strict=True)]  # fmt: skip
        problems = filter(None, map(problem_of, values, candidate.forms))
        if problem := next(problems, None):
            reasons.append(f"{candidate.model.label} is left out: {problem}")
            session.warning(f"make_ensemble: {reasons[-1]}")
            continue
        kept.append(candidate)
        predictions.append(values)
    if not kept:
        raise InvalidParameter("model_table: no model can be used", detail="\n".join(reasons))
    return Library(kept, predictions, labels)
