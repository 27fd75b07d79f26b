"""The fit functions: each plans a run, drives it, and writes its output tables in the caller's transaction."""

from madlib_mop.catalog.record import Record
from madlib_mop.driver.planning.plan import RunPlan, complete_plan, find_output, read_frequency, read_inputs
from madlib_mop.driver.planning.selection import read_one, read_selection
from madlib_mop.driver.running.driving import train
from madlib_mop.driver.session.call import Call


def madlib_keras_fit_multiple_model(call: Call) -> None:
    """Train every configuration of a model selection table by model hopping."""
    train(call, plan_fit_multiple)


def madlib_keras_fit(call: Call) -> None:
    """Train one model by model averaging."""
    train(call, plan_fit)


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
