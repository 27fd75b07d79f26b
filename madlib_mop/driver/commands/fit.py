"""The fit functions: each plans a run, drives it, and writes its output tables in the caller's transaction."""

from madlib_mop.driver.planning.plan import plan_fit, plan_fit_multiple
from madlib_mop.driver.running.driving import train
from madlib_mop.driver.session.call import Call


def madlib_keras_fit_multiple_model(call: Call) -> None:
    """Train every configuration of a model selection table by model hopping."""
    train(call, plan_fit_multiple)


def madlib_keras_fit(call: Call) -> None:
    """Train one model by model averaging."""
    train(call, plan_fit)
