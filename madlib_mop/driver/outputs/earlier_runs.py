"""The runs that have written an output table, found by the SHA-256 of its weights; called by warm starts and resume.

The newest run of a table need not be the one: its call may have been rolled back, or a command may have given more to
train to the run that wrote the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.data.weights import MAX_FIELD_BYTES, find_parts, present_digest
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import DataDamaged
from madlib_mop.schedule.bulk import AVERAGING, MST_KEY


@dataclass(frozen=True)
class EarlierRuns:
    """What the record has of the models of an output table.

    Attributes
    ----------
    run : RunRow or None
        The newest run that has the training states of all models; else the one that has most of them; if none has any,
        the newest run that has written a table of this name.
    digests : mapping of int to str
        SHA-256 of the weights in the table, by mst_key; None if a table of an earlier version lacks them.
    states : mapping of int to ModelRow
        The recorded models whose training states have these weights: of ``run``, or else of the newest run that has
        one.
    origins : tuple of RunRow
        The runs of ``states``.
    """

    run: RunRow | None
    digests: Mapping[int, str | None]
    states: Mapping[int, ModelRow]
    origins: tuple[RunRow, ...] = ()


def weights_digests(session: CallerSession, table: Relation, averaging: bool) -> list[tuple[int, str | None]] | None:
    """Return the mst_key of each model in an output table, with the SHA-256 of its weights, or None if it lacks them.

    Return None if it is no output table of the hopper or, with ``averaging``, of model averaging.
    """
    columns = session.columns(table)
    types = {column.name: column.type_sql for column in columns}
    is_ours = types.get("model_weights") == "bytea" and "model_arch" in types and ("mst_key" in types) is not averaging
    if not is_ours:
        return None
    key = "" if averaging else "mst_key, "
    query = f"SELECT {key}{present_digest(columns)} AS digest FROM {{t}}"
    found = [(row.get("mst_key", MST_KEY), row["digest"]) for row in session.execute(statement(query, t=table))]
    if all(digest for _, digest in found) or (parts := find_parts(session, table)) is None:
        return found
    # a table of an earlier version has no column for the digest, and users who change weights set it to NULL
    return [(key, digest or _digest_of_parts(session, table, parts, averaging, key)) for key, digest in found]


def _digest_of_parts(
    session: CallerSession, table: Relation, parts: Relation, averaging: bool, key: int
) -> str | None:
    """Return the SHA-256 of the parts of a model's weights; None if there are none, or not all."""
    from madlib_mop.driver.inference.model import ModelLocation, weights_at  # imports NumPy

    place = ModelLocation(table, parts=parts) if averaging else ModelLocation(table, "mst_key", key, parts=parts)
    try:
        return weights_at(session, place, str(table)).digest()
    except DataDamaged:
        return None


def find_earlier_runs(
    record: Record, output: Relation, owner: int, digests: Mapping[int, str | None], averaging: bool
) -> EarlierRuns:
    """Find the recorded runs of an output table.

    Parameters
    ----------
    record : Record
    output : Relation
    owner : int
        The oid of the role whose runs are searched.
    digests : mapping of int to str
        As `weights_digests` returns them.
    averaging : bool
        Whether runs of model averaging are searched, or those of the hopper.
    """
    found: list[tuple[RunRow, dict[int, ModelRow]]] = []
    for run in record.runs_with_weights(str(output), owner, list(digests.values())):
        if (run.schedule == AVERAGING) is not averaging:
            continue
        models = [m for m in record.models(run.run_id) if m.mst_key in digests and _has(m, digests[m.mst_key])]
        found.append((run, {m.mst_key: m for m in models}))
        if len(models) == len(digests):
            break
    found.sort(key=lambda one: -len(one[1]))  # stable: of those with as many models, the newest comes first
    states: dict[int, ModelRow] = {}
    for _, of_run in found:
        states = of_run | states
    if states:
        used = {model.run_id for model in states.values()}
        return EarlierRuns(found[0][0], digests, states, tuple(run for run, _ in found if run.run_id in used))
    newest = record.newest_run(str(output), owner)
    is_kind = newest is not None and (newest.schedule == AVERAGING) is averaging
    return EarlierRuns(newest if is_kind else None, digests, {})


def has_models_of(session: CallerSession, record: Record, run: RunRow) -> bool:
    """Return whether the output table of a finished run has its models, or those of a newer run."""
    earlier = _earlier_than_resume(session, record, run)
    if earlier is None or earlier.run is None:
        return False
    if earlier.run.run_id != run.run_id:
        return earlier.run.run_id > run.run_id
    if None in earlier.digests.values() or {model.run_id for model in earlier.states.values()} != {run.run_id}:
        return False
    expected = set(earlier.digests)
    if run.reopened:  # the table may be one of before: without the models that a command added
        expected = {m.mst_key for m in record.models(run.run_id) if m.state is ModelState.TRAINED}
    return expected == set(earlier.states) == set(earlier.digests)


def newer_run(session: CallerSession, record: Record, run: RunRow) -> RunRow | None:
    """Return the newer run whose models a run's output table has; None if it has others, or does not exist."""
    earlier = _earlier_than_resume(session, record, run)
    found = earlier.run if earlier is not None else None
    return found if found is not None and found.run_id > run.run_id else None


def passes_field(model: ModelRow) -> bool:
    """Return whether a recorded model's weights are too large for a field of a table of an earlier version."""
    return (model.model_bytes or 0) > MAX_FIELD_BYTES


def _earlier_than_resume(session: CallerSession, record: Record, run: RunRow) -> EarlierRuns | None:
    """Return what the record has of the present output table of a run; None if there is no such table."""
    output, averaging = run.plan.output.relation, run.schedule == AVERAGING
    table = session.existing(output.sql)
    digests = weights_digests(session, table, averaging) if table is not None and table.kind in ("r", "p") else None
    return None if digests is None else find_earlier_runs(record, output, run.owner_oid, dict(digests), averaging)


def _has(model: ModelRow, weights_digest: str | None) -> bool:
    """Return whether a recorded model's state has the weights of an output table.

    Parameters
    ----------
    model : ModelRow
    weights_digest : str or None
        SHA-256 of the table's weights; None if a table of an earlier version lacks them, as they do not fit into a
        field.
    """
    if model.state_slot is None:
        return False
    return passes_field(model) if weights_digest is None else model.weights_digest == weights_digest
