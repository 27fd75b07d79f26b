"""The single specification of every SQL function's arguments.

The SQL functions of the extension are made from it (`sql_functions`), and so are the options of the command line and
the tables of the help texts and the manual. The driver checks a call's arguments by it. To add an argument, edit this
specification and the code that uses the argument.
"""

from madlib_mop.calls import (
    columns,
    control,
    inference,
    jobs,
    learning,
    library,
    measuring,
    packing,
    steering,
    training,
)
from madlib_mop.calls.argument import REQUIRED, Argument, Function, Parameter
from madlib_mop.calls.reading import check_storable, read_arguments, recorded_arguments
from madlib_mop.errors import no_command

#: The modules with the functions for users, in the manual's order.
GROUPS = (learning, library, columns, packing, training, inference, measuring, control, steering, jobs)
USER_FUNCTIONS: tuple[Function, ...] = tuple(function for group in GROUPS for function in group.FUNCTIONS)
#: Every function with a command of the driver, by name.
FUNCTIONS = {
    f.name: f
    for f in (
        *USER_FUNCTIONS, inference.PREDICT_ROWS, inference.EXPLAIN_PREDICTION, control.HELP, control.VERSION,
        control.END_LOST_RUN, steering.COMMAND,
    )
}  # fmt: skip


def find_function(name: str) -> Function:
    """Return the specification of a function. Raises Unsupported if there is none."""
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise no_command(name)
    return function


__all__ = [
    "FUNCTIONS", "GROUPS", "REQUIRED", "USER_FUNCTIONS", "Argument", "Function", "Parameter", "check_storable",
    "find_function", "read_arguments", "recorded_arguments",
]  # fmt: skip
