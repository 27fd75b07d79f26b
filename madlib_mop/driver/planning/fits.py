"""The fits: configurations of a table that hop, and one configuration that is averaged; called by `commands.fit`."""

from madlib_mop.catalog.record import Record
from madlib_mop.driver.planning.plan import RunPlan, complete_plan, find_output, read_frequency, read_inputs
from madlib_mop.driver.planning.selection import read_one, read_selection
from madlib_mop.driver.session.call import Call


def plan_fit_multiple(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit_multiple_model and plan its run.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a = call.arguments
    frequency = read_frequency(a)
    inputs = read_inputs(call, record)
    selection = read_selection(call.session, a.get("model_selection_table"), inputs.recorded_functions)
    return complete_plan(inputs, "fit_multiple_model", selection, find_output(inputs), a["num_iterations"], frequency)


def plan_fit(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_fit and plan its run, of one model.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a = call.arguments
    frequency = read_frequency(a)
    inputs = read_inputs(call, record)
    selection = read_one(call.session, a, inputs.recorded_functions)
    return complete_plan(inputs, "fit", selection, find_output(inputs), a["num_iterations"], frequency)
