"""The plan of a run's sample: the rows on which models are evaluated after single visits (``metrics_every``).

Called by ``hopper.py`` and ``search.py``. The sample is the beginning of one shard: packing distributes rows at random,
so the first rows of a shard are a random sample. Each trainer keeps it in memory, and evaluates a model on it right
after a visit; the visit is committed together with these metrics.
"""

from collections.abc import Mapping
from typing import Any

from madlib_mop.catalog.rows.plan import SamplePlan
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter

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
    here = [shard for shard in packed.shards if shard.n_rows and shard.place.server is None]
    shard = max(here or packed.shards, key=lambda shard: shard.n_rows)
    usual = max(_LEAST_ROWS, max(shard.n_rows for shard in data.source.shards) // _ROWS_OF_VISIT)
    n_rows = min(shard.n_rows, usual if given is None else given)
    if given is not None and n_rows < given:
        session.notice(f"metrics_sample_rows: {n_rows} rows are used, which are all rows of one {data_set} shard")
    return SamplePlan(data_set, shard.segment_id, n_rows, 1 if every == "visit" else int(every))
