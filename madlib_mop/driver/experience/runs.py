"""The earlier runs that a search learns from: those that the caller names, or those similar to it; called when a search
is planned.
"""

import json
from collections.abc import Iterator, Sequence

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import PastConfiguration
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.catalog.rows.states import RunState
from madlib_mop.driver.data.packed import PackedTable
from madlib_mop.driver.experience.configurations import PastConfigurations, Tally
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.opening import visible_run
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.search import SearchParams
from madlib_mop.search.past import spread

#: A similar table has at most so many times the training rows of the search's table, or so many times fewer.
ROWS_FACTOR = 10
#: The most similar runs that a search learns from, and the most that are read to find them; the newest come first.
MAX_RUNS, MAX_READ = 10, 50
#: The most configurations that the plan of a search records. They keep their spread from good to bad.
MAX_RECORDED = 200
_WHAT = "automl_params: start_from: "
_SIMILAR = """
SELECT r.run_id, r.owner::pg_catalog.oid::pg_catalog.int8
FROM madlib_mop.run r JOIN (
    SELECT run_id, sum(n_rows) AS n_rows FROM madlib_mop.segment WHERE data_set = 'training' GROUP BY run_id
) s ON s.run_id = r.run_id
WHERE r.kind IN ('fit_multiple_model', 'automl') AND r.state = ANY (%s) AND (r.validation_table IS NOT NULL) = %s
  AND s.n_rows * %s >= %s AND s.n_rows <= %s
  AND (r.plan -> 'training' ->> 'n_x')::pg_catalog.int4 = %s AND (r.plan -> 'training' ->> 'n_y')::pg_catalog.int4 = %s
  AND r.plan -> 'summary' -> 'num_classes' = %s::pg_catalog.jsonb
ORDER BY r.run_id DESC
"""


def find_past(
    session: CallerSession,
    record: Record,
    params: SearchParams,
    configurations: PastConfigurations,
    source: PackedTable,
    has_validation: bool,
) -> tuple[PastConfiguration, ...]:
    """Return the configurations that ``start_from`` stands for; none without it.

    Parameters
    ----------
    session : CallerSession
        Gets a NOTICE if no run is similar.
    record : Record
    params : SearchParams
    configurations : PastConfigurations
        Finds those of a run that lie in the space of the search.
    source : PackedTable
        The training data of the search.
    has_validation : bool

    Raises
    ------
    InvalidParameter
        If a named run does not exist or belongs to another role, or none of their configurations lies in the space.
    NotReady
        If a named run has no metrics.
    """
    if params.start_from is None:
        return ()
    if params.runs:
        return _recorded(_of_named(session, record, params.runs, configurations))
    found: list[PastConfiguration] = []
    n_runs = 0
    for run in _similar_runs(session, record, source, has_validation):
        of_run, _ = configurations.of_run(run)
        found += of_run
        n_runs += bool(of_run)
        if n_runs == MAX_RUNS:
            break
    if not found:
        session.notice(
            "start_from='similar': none of your runs is similar and has configurations in this search space; the"
            " search starts without earlier results"
        )
    return _recorded(found)


def _of_named(
    session: CallerSession, record: Record, run_ids: Sequence[int], configurations: PastConfigurations
) -> list[PastConfiguration]:
    """Return the configurations of runs that the caller named."""
    # defence: runs-to-start-from = [record.known_run(run_id) for run_id in run_ids]
    runs = [visible_run(record, session.info, run_id, _WHAT) for run_id in run_ids]
    found: list[PastConfiguration] = []
    total = Tally()
    for run in runs:
        of_run, tally = configurations.of_run(run)
        if not tally.n_compared:
            raise NotReady(
                f"{_WHAT}run {run.run_id} has no metrics, so its configurations cannot be compared",
                hint="Name a run whose models have been evaluated: madlib_mop.leaderboard shows the losses.",
            )
        found += of_run
        total += tally
    if not found:
        raise InvalidParameter(
            f"{_WHAT}no configuration of {names_of_runs(run_ids)} lies in this search space",
            detail=f"Configurations with metrics: {total.n_compared}. With another architecture than those of"
            f" model_id_list: {total.n_other_architecture}. With parameters that are not in the grids:"
            f" {total.n_outside}.",
            hint="A configuration lies in the space if its architecture is in model_id_list, and all its parameters are"
            " in the lists and ranges of compile_params_grid and fit_params_grid. Widen the grids, or name other runs.",
        )
    return found


def names_of_runs(run_ids: Sequence[int]) -> str:
    """Return e.g. ``run 12`` or ``runs 12, 15``."""
    return f"run{'s' if len(run_ids) > 1 else ''} {', '.join(map(str, run_ids))}"


def _similar_runs(
    session: CallerSession, record: Record, source: PackedTable, has_validation: bool
) -> Iterator[RunRow]:
    """Yield the runs of the caller that trained on tables like the source, the newest first."""
    states = [str(state) for state in RunState if state.is_trained]
    rows = ROWS_FACTOR, source.n_rows, source.n_rows * ROWS_FACTOR
    columns = len(source.independent), len(source.dependent)
    candidates = record.execute(_SIMILAR, [states, has_validation, *rows, *columns, json.dumps(source.num_classes)])
    may_use: dict[int, bool] = {}
    n_read = 0
    for run_id, owner in candidates:
        if owner not in may_use:
            may_use[owner] = record.may_see(session.info.role_oid, owner)  # defence: similar-runs = True
        if may_use[owner] and (run := record.run(run_id)) is not None:
            yield run
            n_read += 1
        if n_read == MAX_READ:
            return


def _recorded(found: Sequence[PastConfiguration]) -> tuple[PastConfiguration, ...]:
    return tuple(spread(sorted(found, key=lambda one: one.place), MAX_RECORDED))
