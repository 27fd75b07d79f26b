"""A call that is a run: records its plan, reserves its output tables' names, trains, and writes its tables."""

from collections.abc import Callable
from dataclasses import replace

from madlib_mop.calls import find_function, recorded_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.driver.outputs.reserved_names import keep_when_prepared, reserve_outputs
from madlib_mop.driver.outputs.tables import telling_how_to_resume
from madlib_mop.driver.outputs.writers import outputs_of, write_outputs
from madlib_mop.driver.planning.plan import RunPlan, add_run
from madlib_mop.driver.planning.replay import recorded_visits
from madlib_mop.driver.running.driving import drive
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import open_record
from madlib_mop.driver.session.run_log import logged


def train(call: Call, plan_it: Callable[[Call, Record], RunPlan]) -> None:
    """Plan and record a run, train its models, and write its output tables.

    If a driver of this call was killed, this one continues its run.
    """
    record = open_record(call.info)
    if call.continue_run is None:
        run_id = _begin(call, record, plan_it(call, record))
    else:
        run_id = call.continue_run
        run = record.known_run(run_id)
        reserve_outputs(call.session, record, run, outputs_of(run.schedule).SUFFIXES)
    finish_run(call, record, run_id)


def _begin(call: Call, record: Record, plan: RunPlan) -> int:
    """Record a planned run with the call's arguments, and reserve its output tables' names; return its run_id."""
    reserve_outputs(call.session, record, plan.run, outputs_of(plan.run.schedule).SUFFIXES)
    run = replace(plan.run, caller_pid=call.info.pid)
    if run.kind != "replay":  # a replay has the arguments of the original run
        run = replace(run, arguments=recorded_arguments(find_function(call.function), call.arguments))
    return add_run(record, replace(plan, run=run))


def finish_run(call: Call, record: Record, run_id: int) -> None:
    """Train a run's models, if not trained yet, and write its output tables.

    If a driver was killed while it wrote these, the backend has rolled them back.
    """
    run, models = record.known_run(run_id), None
    recorded = None if run.state.is_trained else recorded_visits(record, run)
    with logged(record, run):
        if not run.state.is_trained:
            models = drive(call, record, run_id, recorded)
        else:
            call.session.run_started(run_id)  # this driver, too, may be killed
            record.set_end_if_unknown(run_id)
        with telling_how_to_resume(run):
            write_outputs(call.session, record, run_id, models)
            keep_when_prepared(call.session, record)
