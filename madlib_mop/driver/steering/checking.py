"""Checks of commands before they are recorded: their arguments against the run, with the caller's rights.

Used by `commands.steering` for people's commands, and by `policy_commands`.
"""

from collections.abc import Mapping

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.planning.added_models import changed_configuration, read_added_models
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.steering.verbs import (
    AddModels,
    CloneModel,
    ExtendModels,
    Pause,
    PinModel,
    ResumeModel,
    StopModel,
    Unpause,
    Verb,
)
from madlib_mop.errors import InvalidParameter

#: A command that was checked, and start weights of the models that it adds, by origin.
Checked = tuple[Verb, Mapping[str, bytes]]


def check_command(call: Call, record: Record, run: RunRow) -> Checked:
    """Return the command that a call of a steering function asks for.

    Parameters
    ----------
    call : Call
        Of one of the functions in `verbs.VERBS`, with arguments that their specification accepts.
    record : Record
    run : RunRow

    Raises
    ------
    MopError
        If it can never be applied to this run.
    """
    return _CHECKS[call.function](call, record, run)


def _stop(call: Call, record: Record, run: RunRow) -> Checked:
    return StopModel(call.arguments["mst_key"], call.arguments["reason"]), {}


def _resume(call: Call, record: Record, run: RunRow) -> Checked:
    return ResumeModel(call.arguments["mst_key"]), {}


def _extend(call: Call, record: Record, run: RunRow) -> Checked:
    return ExtendModels(call.arguments["num_iterations"], call.arguments["mst_key"]), {}


def _pause(call: Call, record: Record, run: RunRow) -> Checked:
    return Pause(), {}


def _unpause(call: Call, record: Record, run: RunRow) -> Checked:
    return Unpause(), {}


def _pin(call: Call, record: Record, run: RunRow) -> Checked:
    return PinModel(call.arguments["mst_key"], call.arguments["pinned"] is not False), {}


def _clone(call: Call, record: Record, run: RunRow) -> Checked:
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
    return CloneModel(model.mst_key, configuration, from_state, keep_optimizer, a["num_iterations"]), {}


def _add(call: Call, record: Record, run: RunRow) -> Checked:
    added = read_added_models(call.session, record, run, call.arguments["model_selection_table"])
    return AddModels(added.models), added.weights


_CHECKS = {
    "stop_model": _stop,
    "resume_model": _resume,
    "clone_model": _clone,
    "extend": _extend,
    "add_models": _add,
    "pause": _pause,
    "unpause": _unpause,
    "pin_model": _pin,
}
