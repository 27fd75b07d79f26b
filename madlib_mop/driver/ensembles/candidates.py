"""The models that an ensemble can be made of: read from a model table, and checked against each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.catalog.names import statement
from madlib_mop.driver.data.weights import find_parts
from madlib_mop.driver.ensembles.criterion import OutputForm, OutputKind, read_forms
from madlib_mop.driver.inference.model import TrainedModel, read_model
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, MopError, UndefinedColumn, Unsupported
from madlib_mop.models.ensemble import EnsembleMember, ensemble_architecture

_N_KEYS_SHOWN = 20
_HINT = "Pass the output table of madlib_keras_fit_multiple_model or madlib_keras_automl."


@dataclass(frozen=True)
class Candidate:
    """One model of the table.

    Attributes
    ----------
    mst_key : int
    model : TrainedModel
    forms : tuple of OutputForm
        What its outputs are.
    """

    mst_key: int
    model: TrainedModel
    forms: tuple[OutputForm, ...]

    @property
    def activations(self) -> tuple[str | None, ...]:
        """The function that makes probabilities of each output; None if it needs none."""
        return tuple(form.activation for form in self.forms)


def read_candidates(session: CallerSession, name: str | None, wanted: Sequence[int | None] | None) -> list[Candidate]:
    """Read the models of a table that have weights, in the order of their keys.

    Parameters
    ----------
    session : CallerSession
    name : str
        The table, as written by the caller.
    wanted : sequence of int, optional
        The keys to use; all by default.

    Raises
    ------
    MopError
        If the table is no table of models, or its models cannot be averaged with each other.
    """
    keys = _keys(session, name, wanted)
    candidates = [_read(session, name, key) for key in keys]
    for other in candidates[1:]:
        _check_alike(candidates[0], other)
    return candidates


def kinds_of(candidates: Sequence[Candidate]) -> tuple[OutputKind, ...]:
    """Return what the values of each output are, for all candidates."""
    kinds = []
    for forms in zip(*(candidate.forms for candidate in candidates), strict=True):
        found = {form.kind for form in forms}
        kinds.append(found.pop() if len(found) == 1 else OutputKind.SQUARED)
    return tuple(kinds)


def _keys(session: CallerSession, name: str | None, wanted: Sequence[int | None] | None) -> list[int]:
    relation = session.relation(name, "model_table")
    types = {column.name: column.type_sql for column in session.columns(relation)}
    for column in ("model_weights", "model_arch"):
        if column not in types:
            raise UndefinedColumn(f"model_table: {relation} has no column {column!r}. Received: {name!r}", hint=_HINT)
    if types.get("mst_key") not in ("integer", "bigint", "smallint"):
        raise InvalidParameter(
            f"model_table: {relation} has one model, so there is nothing to combine. Received: {name!r}"
            if "mst_key" not in types
            else f"model_table: column mst_key of {relation} must be of type integer. Received: {types['mst_key']}",
            hint=_HINT,
        )
    has_weights, tables = "m.model_weights IS NOT NULL", {"t": relation}
    if (parts := find_parts(session, relation)) is not None:
        has_weights += " OR EXISTS (SELECT FROM {p} p WHERE p.mst_key = m.mst_key)"
        tables["p"] = parts
    query = f"SELECT m.mst_key, {has_weights} AS has_weights FROM {{t}} m ORDER BY m.mst_key"
    rows = session.execute(statement(query, **tables))
    present = [row["mst_key"] for row in rows]
    if not rows or None in present:
        problem = "is empty" if not rows else "has a row whose mst_key is NULL"
        raise InvalidParameter(f"model_table: {relation} {problem}. Received: {name!r}", hint=_HINT)
    chosen = {*present} if wanted is None else {*wanted}
    missing = chosen.difference(present)
    if missing or not chosen:
        problem = f"mst_key {_listed([missing.pop()])} is not in {relation}" if missing else "mst_keys has no element"
        received = f"[{_listed(wanted or ())}]"
        raise InvalidParameter(f"{problem}. Received: {received}", hint=f"Use some of: {_listed(present)}. NULL: all.")
    without = {int(row["mst_key"]) for row in rows if not row["has_weights"]} & chosen
    if without:
        session.warning(f"make_ensemble: mst_key {_listed(sorted(without))} of {relation} has no weights: left out")
    found = sorted(key for key in chosen - without if key is not None)
    if not found:
        raise InvalidParameter(f"model_table: no model of {relation} has weights. Received: {name!r}", hint=_HINT)
    return found


def _listed(keys: Sequence[int | None]) -> str:
    shown = ("NULL" if key is None else str(key) for key in keys[:_N_KEYS_SHOWN])
    return ", ".join(shown) + (", ..." if keys[_N_KEYS_SHOWN:] else "")


def _read(session: CallerSession, name: str | None, key: int) -> Candidate:
    model = read_model(session, name, key)
    try:
        params = model.configuration.compiled
    except MopError as error:
        error.message = f"model_table: {model.label}: {error.message}"
        raise
    shape = model.shape
    if shape.n_outputs != len(model.outputs):
        raise InvalidParameter(
            f"model_table: {model.label} has {shape.n_outputs} outputs, but its _summary has {len(model.outputs)}"
            " dependent columns"
        )
    forms = read_forms(params, shape.output_names, shape.output_activations, f"model_table: {model.label}")
    return Candidate(key, model, forms)


def _check_alike(first: Candidate, other: Candidate) -> None:
    members = [EnsembleMember(c.model.label, c.model.configuration.arch, 1, c.activations) for c in (first, other)]
    ensemble_architecture(members)
    for ours, theirs in zip(first.forms, other.forms, strict=True):
        kinds = {ours.kind, theirs.kind}
        if len(kinds) > 1 and not kinds <= {OutputKind.SQUARED, OutputKind.ABSOLUTE}:
            raise Unsupported(
                f"model_table: {first.model.label} was trained with {ours.kind.value}, {other.model.label} with"
                f" {theirs.kind.value}: their predictions cannot be averaged",
                hint="Pass the mst_keys of models that were trained with the same loss.",
            )
