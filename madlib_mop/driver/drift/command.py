"""The command drift: reads a table once, compares its columns and its predictions with a baseline, returns rows."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from mop_backend.registered_names import is_registered, read_name

from madlib_mop.columns.drift.observed import ObservedColumn, ProfileDifference
from madlib_mop.columns.drift.profiler import Profiler, n_counts_of
from madlib_mop.columns.drift.verdicts import judge
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.profiles import ColumnProfile, profile_problem
from madlib_mop.columns.proposals.kinds import INPUT
from madlib_mop.columns.transforms.categories import CategoryFit
from madlib_mop.driver.drift.outputs import CountedOutputs, Counter
from madlib_mop.driver.drift.readers import ArrayTable, Make, OrdinaryTable
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.prediction import predicted
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.errors import InsufficientPrivilege, InvalidParameter

_MAY_SEE = (
    "SELECT madlib_mop_calls._model_right(owner, name, '{see, deploy}') AS may FROM madlib_mop.registered_model"
    " WHERE name = $1"
)
_PACKED_BEFORE = (
    "The table was packed by a version that kept no distribution. Pack and train again, or pass baseline."
)
_NO_PREDICTIONS = (
    "No earlier predictions are known. Pass baseline, a table with rows of earlier; or register the model with a"
    " baseline, such as its packed validation rows."
)
_NO_ARRAYS = "The distribution of arrays is not kept. Pass baseline, a table with rows of earlier."


@dataclass(frozen=True)
class _Pass:
    """What one pass over a table counted."""

    inputs: dict[str, Counter]
    outputs: dict[str, Counter]
    n_rows: int
    n_rejected: int


def drift(call: Call) -> list[dict[str, Any]]:
    """Return a row for each input, target and output of a model: how much it differs from the baseline."""
    a, session = call.arguments, call.session
    moderate, large = a["moderate"], a["large"]
    if moderate > large:
        raise InvalidParameter(
            f"moderate must not be above large. Received: {moderate:g} and {large:g}",
            hint="The usual thresholds are 0.1 and 0.25.",
        )
    model = find_model(session, call.function, a["model_table"], a["mst_key"])
    if is_registered(a["model_table"]):
        _check_right(session, a["model_table"])  # defence: drift-of-rows
    known = {one.output: one.profile for one in model.predictions}
    if model.preprocessor is None and a["baseline"] is None and not (known and a["predictions"]):
        raise InvalidParameter(
            f"baseline is missing: {model.label} was trained on arrays, whose distribution is not kept. Received: NULL",
            hint="Pass a table with rows of earlier, such as the training rows.",
        )
    today = _table(call, model, "source_table")
    before = None if a["baseline"] is None else _table(call, model, "baseline")
    profiles: dict[str, ColumnProfile] = {}
    with LocalTrainer(session) if a["predictions"] else nullcontext() as trainer:
        if before is not None:
            earlier = _read(session, model, before, trainer, Profiler, Profiler)
            profiles, known = _profiles(earlier.inputs), _profiles(earlier.outputs)
        found = _read(session, model, today, trainer, _observers(profiles), lambda column: _observed(column, known))
    unknown = _NO_ARRAYS if model.preprocessor is None else _PACKED_BEFORE
    roles = {} if isinstance(today, ArrayTable) else {c.name: c.spec.role for c in today.columns}
    rows = []
    for feature, counter in found.inputs.items():
        kind = "input" if roles.get(feature, INPUT) == INPUT else "target"
        rows += [_row(model, feature, kind, one, moderate, large, unknown) for one in _differences(counter)]
    for feature, counter in found.outputs.items():
        rows += [
            _row(model, feature, "prediction", one, moderate, large, _NO_PREDICTIONS) for one in _differences(counter)
        ]
    if found.n_rejected:
        session.notice(
            f"{call.function}: {found.n_rejected:,} of {found.n_rows:,} rows were not predicted, because predict"
            " rejects them: NULL where it is an error, NaN or infinite"
        )
    return rows


def _check_right(session: CallerSession, name: str) -> None:
    """Raise InsufficientPrivilege for a role that may predict, but not see the model: PSI discloses training rows."""
    rows = session.execute(_MAY_SEE, [read_name(name).name])
    if rows and not rows[0]["may"]:
        model = read_name(name).name
        raise InsufficientPrivilege(
            f"drift: you may predict with registered model {model}, but not see it; drift discloses how its training"
            " rows were",
            hint=f"Its owner can let you: SELECT madlib_mop.grant_model('{model}', 'your_role', 'see');",
        )


def _table(call: Call, model: TrainedModel, what: str) -> OrdinaryTable | ArrayTable:
    """Find a table and its columns. Raises MopError before any row is read."""
    a, session = call.arguments, call.session
    if model.preprocessor is not None:
        if a["independent_varname"] not in (None, "*"):
            raise InvalidParameter(
                "independent_varname is for models that were trained on arrays. Received:"
                f" {a['independent_varname']!r}",
                hint="Leave it out: columns of ordinary tables are found by their names.",
            )
        return OrdinaryTable(session, a[what], what, model, a["max_rows"])
    if a["independent_varname"] is None:
        raise InvalidParameter(
            f"independent_varname is missing: {model.label} was trained on arrays. Received: NULL",
            hint="Name the columns of its inputs, in the order of training.",
        )
    return ArrayTable(session, a[what], what, model, a["max_rows"], a["independent_varname"])


def _read(
    session: CallerSession,
    model: TrainedModel,
    table: OrdinaryTable | ArrayTable,
    trainer: LocalTrainer | None,
    make: Make,
    make_output: Make,
) -> _Pass:
    """Read a table once; count its columns, and its predictions if there is a trainer."""
    outputs = CountedOutputs(model, make_output)
    table.begin(make)
    if trainer is None:
        table.count()
    else:
        for _, scores in predicted(trainer, model, read_weights(session, model), table):
            outputs.add(scores)
    if not table.n_rows:
        raise no_rows(str(table.relation), table.what)
    return _Pass(table.counters, outputs.counters, table.n_rows, table.n_rejected)


def _observers(profiles: dict[str, ColumnProfile]) -> Callable[[FittedColumn], ObservedColumn]:
    """Return what makes the counter of a column: against the profile of a baseline, or else of the training rows."""

    def make(column: FittedColumn) -> ObservedColumn:
        return ObservedColumn(replace(column, profile=profiles.get(column.name, column.profile)))

    return make


def _observed(column: FittedColumn, known: dict[str, ColumnProfile]) -> ObservedColumn:
    """Return the counter of an output, against its known predictions. Raises InvalidParameter if they do not fit it."""
    profile = known.get(column.name)
    if profile is not None:
        fit = column.fit
        problem = profile_problem(profile, n_counts_of(fit) if isinstance(fit, CategoryFit | ClassFit) else None)
        if problem is not None:  # defence: recorded-predictions
            raise InvalidParameter(
                f"the recorded predictions of {column.name!r} are damaged: {problem}",
                hint="Register the model again with madlib_mop.register.",
            )
    return ObservedColumn(replace(column, profile=profile))


def _profiles(counters: dict[str, Counter]) -> dict[str, ColumnProfile]:
    return {name: one.profile() for name, one in counters.items() if isinstance(one, Profiler)}


def _differences(counter: Counter) -> list[ProfileDifference]:
    assert isinstance(counter, ObservedColumn), "the rows of today are observed"
    return counter.differences()


def _row(
    model: TrainedModel, feature: str, kind: str, one: ProfileDifference, moderate: float, large: float, unknown: str
) -> dict[str, Any]:
    found = judge(one, moderate, large, unknown)
    of = one.baseline
    return {
        "model": model.label,
        "feature": feature,
        "kind": kind,
        "measured": one.measured,
        "verdict": found.verdict.value,
        "psi": found.psi,
        "psi_by_chance": found.by_chance,
        "n_rows": one.n_rows,
        "baseline_rows": of.n_rows if of is not None else None,
        "null_share": one.n_null / one.n_rows,
        "baseline_null_share": of.n_null / of.n_rows if of is not None and of.n_rows else None,
        "new_share": None if one.n_new is None else one.n_new / one.n_rows,
        "new_levels": list(one.new_levels),
        "outside_share": None if one.n_outside is None else one.n_outside / one.n_rows,
        "minimum": one.minimum,
        "maximum": one.maximum,
        "baseline_minimum": one.baseline_minimum,
        "baseline_maximum": one.baseline_maximum,
        "reason": found.reason,
    }
