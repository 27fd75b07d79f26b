"""The fit functions: each plans a run, drives it, and writes its output tables in the caller's transaction."""

from madlib_mop.driver.planning.averaging import plan_model
from madlib_mop.driver.planning.hopper import plan_fit
from madlib_mop.driver.running.whole_runs import begin_run, finish_run
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import open_record


def madlib_keras_fit_multiple_model(call: Call) -> None:
    """Train every configuration of a model selection table by model hopping.

    If a driver of this call was killed, this one continues its run.
    """
    record = open_record(call.info)
    finish_run(call, record, begin_run(call, record, lambda: plan_fit(call, record)))


def madlib_keras_fit(call: Call) -> None:
    """Train one model by model averaging."""
    record = open_record(call.info)
    finish_run(call, record, begin_run(call, record, lambda: plan_model(call, record)))
