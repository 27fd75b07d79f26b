"""How long a run that starts will take, in words for its first NOTICE; by the record, without a probe."""

from itertools import islice

from madlib_mop.catalog.live.words import duration
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.estimates.costs import CostModel
from madlib_mop.driver.estimates.estimate import Estimator
from madlib_mop.driver.estimates.recorded import read_recorded
from madlib_mop.models.parameters.custom import CustomFunctions

#: A NOTICE is no reason to wait: of more visits, some iterations are simulated, and of more models, some.
_MOST_VISITS, _MOST_MODELS = 2000, 200


def expected_time(record: Record, run: RunRow, models: list[ModelRow]) -> str | None:
    """Return the time that a run will take; None if it continues, or repeats another one."""
    begun = run.training_s > 0 or any(model.has_own_visits for model in models)
    if begun or run.kind == "replay":
        return None
    recorded = read_recorded(record, run)
    costs = CostModel(recorded.measured)
    functions = CustomFunctions(record.custom_functions(run.run_id))
    every = 1 if run.plan.fused_training else max(1, -(-len(models) // _MOST_MODELS))
    some = list(islice(models, 0, None, every))
    found = Estimator(run, some, functions, most_visits=_MOST_VISITS).estimate(costs, recorded.task_s).seconds
    share = len(models) / len(some) if some else 1.0
    low, middle, high = (duration(seconds * share) for seconds in (found.low, found.value, found.high))
    if not costs.run_ids:
        return f"{low} to {high}, roughly: nothing like it was recorded"
    return f"about {middle} ({low} to {high})"
