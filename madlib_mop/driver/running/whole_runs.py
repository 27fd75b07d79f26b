"""A call that is a run: records its plan, reserves its output tables' names, trains, and writes its tables."""

from collections.abc import Callable
from dataclasses import replace

from madlib_mop.calls import find_function, recorded_arguments
from madlib_mop.catalog.record import Record
from madlib_mop.driver.outputs.reserved_names import keep_when_prepared, reserve_outputs
from madlib_mop.driver.outputs.tables import telling_how_to_resume
from madlib_mop.driver.outputs.writers import outputs_of
from madlib_mop.driver.planning.hopper import RunPlan, add_run
from madlib_mop.driver.running.driving import drive
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.run_log import logged
from madlib_mop.schedule import Visit


def begin_run(call: Call, record: Record, plan_it: Callable[[], RunPlan]) -> int:
    """Record a run that a call plans, and the call's arguments, with its output tables' names reserved.

    Return its run_id.

    If a driver of this call was killed, this is its run.
    """
    if call.continue_run is None:
        plan = plan_it()
        reserve_outputs(call.session, record, plan.run, outputs_of(plan.run).SUFFIXES)
        run = replace(plan.run, caller_pid=call.info.pid)
        if run.kind != "replay":  # a replay has the arguments of the original run
            run = replace(run, arguments=recorded_arguments(find_function(call.function), call.arguments))
        return add_run(record, replace(plan, run=run))
    run = record.known_run(call.continue_run)
    reserve_outputs(call.session, record, run, outputs_of(run).SUFFIXES)
    return run.run_id


def finish_run(call: Call, record: Record, run_id: int, recorded: list[Visit] | None = None) -> None:
    """Train a run's models, if not trained yet, and write its output tables.

    If a driver was killed while it wrote these, the backend has rolled them back.
    """
    run, models = record.known_run(run_id), None
    with logged(record, run):
        if not run.state.is_trained:
            models = drive(call, record, run_id, recorded)
        else:
            call.session.run_started(run_id)  # this driver, too, may be killed
        with telling_how_to_resume(run):
            outputs_of(run).write_outputs(call.session, record, run_id, models)
            keep_when_prepared(call.session, record)
