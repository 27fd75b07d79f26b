"""The plan of early decisions: the sample on which models are evaluated after visits, and the policy that decides.

Called by ``hopper.py`` and ``search.py``. The sample (``metrics_every``) is the beginning of one shard: packing
distributes rows at random, so the first rows of a shard are a random sample. Each trainer keeps it in memory, and
evaluates a model on it right after a visit; the visit is committed together with these metrics. The policy is a query
of the caller's; `driver.running.policy` evaluates it.
"""

from collections.abc import Mapping
from typing import Any

from madlib_mop.catalog.rows.plan import PolicyPlan, SamplePlan, query_of_policy
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import Settings
from madlib_mop.errors import InvalidParameter, MopError

_LEAST_ROWS = 100
_ROWS_OF_VISIT = 10  # by default, the sample has this fraction of the rows of a visit


def plan_sample(session: CallerSession, arguments: Mapping[str, Any], data: Data) -> SamplePlan | None:
    """Plan the sample of a run; None if metrics are computed after iterations only.

    Parameters
    ----------
    session : CallerSession
        Gets a NOTICE if the sample is smaller than requested.
    arguments : mapping
        Of the call: ``metrics_every``, ``metrics_sample_rows``.
    data : Data

    Raises
    ------
    InvalidParameter
        If a number of rows is given without ``metrics_every``.
    """
    every, given = arguments["metrics_every"], arguments["metrics_sample_rows"]
    if every == "iteration":
        if given is not None:
            raise InvalidParameter(
                f"metrics_sample_rows is used only with metrics_every. Received: {given}",
                hint="Pass metrics_every => 'visit' too, or omit metrics_sample_rows.",
            )
        return None
    data_set, packed = ("validation", data.validation) if data.validation else ("training", data.source)
    shard = max(packed.shards, key=lambda shard: shard.n_rows)
    usual = max(_LEAST_ROWS, max(shard.n_rows for shard in data.source.shards) // _ROWS_OF_VISIT)
    n_rows = min(shard.n_rows, usual if given is None else given)
    if given is not None and n_rows < given:
        session.notice(f"metrics_sample_rows: {n_rows} rows are used, which are all rows of one {data_set} shard")
    return SamplePlan(data_set, shard.segment_id, n_rows, 1 if every == "visit" else int(every))


def plan_policy(call: Call, settings: Settings) -> PolicyPlan | None:
    """Check the policy of a call by running it without rows, with the caller's rights and search_path.

    Raises
    ------
    InvalidParameter
        If it is no query, or lacks the columns mst_key and action.
    """
    given: str | None = call.arguments["policy"]
    if given is None:
        return None
    query = query_of_policy(given)
    path = call.info.search_path
    check = f"SELECT p.mst_key::pg_catalog.int4, p.action::pg_catalog.text FROM (\n{query}\n) AS p LIMIT 0"
    try:
        _set_path(call.session, path)
        call.session.execute(check, [0], ["pg_catalog.int8"])
    except MopError as error:
        raise InvalidParameter(
            f"policy cannot be run: {error.message}",
            detail=error.detail,
            hint="A policy is one SELECT with the columns mst_key (integer) and action (text), and optionally reason"
            " (text) and arguments (jsonb). In it, $1 is the run_id.",
        ) from None
    finally:
        _set_path(call.session, "pg_catalog, pg_temp")
    return PolicyPlan(query, path, settings.policy_timeout_s)


def _set_path(session: CallerSession, path: str | None) -> None:
    """Set the search_path until the end of the function that the caller's session runs."""
    session.execute("SELECT pg_catalog.set_config('search_path', $1, true)", [path or "pg_catalog, pg_temp"])
