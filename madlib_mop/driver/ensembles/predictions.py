"""The predictions of the candidates for the rows of a table, in memory; used by `make_ensemble`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from madlib_mop.driver.ensembles.candidates import Candidate
from madlib_mop.driver.ensembles.criterion import apply, problem_of
from madlib_mop.driver.inference.labelled_rows import LabelledRows
from madlib_mop.driver.inference.packed_rows import array_of, predicted_buffers, ragged, two_shapes
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, OutOfResources

_WHAT = "validation_table"
#: The most memory that the predictions of all candidates may take.
MAX_BYTES = 1 << 30
_MIB = 1 << 20


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
        share = max_bytes // len(candidates)
        found = _predict(session, trainer, candidate, packed, share, labels if candidate is candidates[0] else None)
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


def _predict(
    session: CallerSession,
    trainer: LocalTrainer,
    candidate: Candidate,
    packed: LabelledRows,
    max_bytes: int,
    labels: list[np.ndarray] | None,
) -> list[np.ndarray]:
    """Return the outputs of one model for all rows; fill the list of labels, if there is one."""
    model, n_inputs = candidate.model, len(packed.independent)
    outputs: list[np.ndarray] = []
    packed_labels: list[list[np.ndarray]] = [[] for _ in packed.dependent]
    start = 0
    for shapes, blobs, found in predicted_buffers(session, trainer, model, packed, _WHAT):
        n_rows = len(found[0])
        if outputs and [one.shape[1] for one in found] != [output.shape[1] for output in outputs]:
            raise ragged(f"{packed.relation} has rows for which {model.label} has outputs of another shape", _WHAT)
        if not outputs:
            _check_memory(packed.n_rows * sum(one[:1].nbytes for one in found), max_bytes, packed)
            outputs = [np.empty((packed.n_rows, one.shape[1]), np.float32) for one in found]
        if start + n_rows <= packed.n_rows:
            for output, one in zip(outputs, found, strict=True):
                output[start : start + n_rows] = one
        start += n_rows
        if labels is not None:
            for number, rows in enumerate(packed_labels):
                rows.append(array_of(packed, n_inputs + number, shapes, blobs, _WHAT, n_rows))
                if rows[0].shape[1:] != rows[-1].shape[1:]:  # defence: width-of-labels
                    raise two_shapes(packed, packed.dependent[number], _WHAT)
    if start != packed.n_rows:
        raise NotReady(
            f"validation_table: {packed.relation} had {packed.n_rows} rows, and now has {start}",
            hint="Call again when nobody changes it; COMMIT first if it was packed in this transaction.",
        )
    if labels is not None:
        labels += map(np.concatenate, packed_labels)
    return outputs


def _check_memory(n_bytes: int, max_bytes: int, packed: LabelledRows) -> None:
    if n_bytes > max_bytes:
        raise OutOfResources(
            f"the predictions of one model for the {packed.n_rows:,} rows of {packed.relation} take"
            f" {n_bytes / _MIB:,.1f} MiB, but there is room for {max_bytes / _MIB:,.1f} MiB for each model",
            hint="Use a smaller validation table, or fewer models: mst_keys => '{...}'.",
        )
