"""The fit functions: each plans a run, drives it, and writes its output tables in the caller's transaction."""

from madlib_mop.driver import model_outputs
from madlib_mop.driver.call import Call
from madlib_mop.driver.model_plan import plan_model
from madlib_mop.driver.outputs import write_outputs
from madlib_mop.driver.plan import add_run, plan_fit
from madlib_mop.driver.runs import drive, open_record


def madlib_keras_fit_multiple_model(call: Call) -> None:
    """Train every configuration of a model selection table by model hopping.

    When the driver that began the call was killed, this one goes on with its run.
    """
    record = open_record(call.info)
    if call.continue_run is None:
        run_id = add_run(record, plan_fit(call, record))
    else:
        run_id = call.continue_run
    drive(call, record, run_id)
    write_outputs(call.session, record, run_id)


def madlib_keras_fit(call: Call) -> None:
    """Train one model by model averaging."""
    record = open_record(call.info)
    run_id = add_run(record, plan_model(call, record)) if call.continue_run is None else call.continue_run
    drive(call, record, run_id)
    model_outputs.write_outputs(call.session, record, run_id)
