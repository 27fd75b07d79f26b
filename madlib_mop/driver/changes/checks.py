"""Checks of commands before they are recorded: their arguments against the run, with the caller's rights.

Called for people's commands, and for those of a policy.
"""

from collections.abc import Mapping

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.planning.added_models import changed_configuration, read_added_models
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import BY_FUNCTION, Add, Change, Clone


def check_command(call: Call, record: Record, run: RunRow) -> tuple[Change, Mapping[str, bytes]]:
    """Return the change that a call of a steering function asks for, and start weights of new models by origin.

    Parameters
    ----------
    call : Call
        Of one of the functions in `BY_FUNCTION`, with arguments that their specification accepts.
    record : Record
    run : RunRow

    Raises
    ------
    MopError
        If it can never be made in this run.
    """
    kind = BY_FUNCTION[call.function]
    if kind is Add:
        added = read_added_models(call.session, record, run, call.arguments["model_selection_table"])
        return Add(tuple(added.models)), added.weights
    if kind is Clone:
        return _clone(call, record, run), {}
    return kind.of_call(call.arguments), {}


def _clone(call: Call, record: Record, run: RunRow) -> Clone:
    a = call.arguments
    models = {model.mst_key: model for model in record.models(run.run_id)}
    model = models.get(a["mst_key"])
    if model is None:
        raise InvalidParameter(
            f"run {run.run_id} has no such model. Received: mst_key {a['mst_key']}",
            hint=f"SELECT mst_key FROM madlib_mop.leaderboard WHERE run_id = {run.run_id}; shows its models.",
        )
    configuration = None
    if a["compile_params"] is not None or a["fit_params"] is not None:
        configuration = changed_configuration(call.session, record, run, model, a["compile_params"], a["fit_params"])
    from_state, keep_optimizer = a["from_state"] is not False, a["keep_optimizer"] is not False
    return Clone(model.mst_key, configuration, from_state, keep_optimizer, a["num_iterations"])
