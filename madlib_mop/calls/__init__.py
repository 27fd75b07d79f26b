"""The single specification of every SQL function's arguments.

The driver uses it to check a call's arguments, the command line to create its options, the help texts and the
manual to create their tables. A test compares it with the signatures in sql/. To add an argument, edit the signature,
this specification, and the code that uses the argument.
"""

from madlib_mop.calls import columns, control, inference, jobs, library, packing, steering, training
from madlib_mop.calls.argument import REQUIRED, Argument, Function, Parameter
from madlib_mop.calls.reading import check_storable, read_arguments, recorded_arguments
from madlib_mop.errors import no_command

#: The functions for users, in the manual's order.
USER_FUNCTIONS = (
    *library.FUNCTIONS, *columns.FUNCTIONS, *packing.FUNCTIONS, *training.FUNCTIONS, *inference.FUNCTIONS,
    *control.FUNCTIONS, *steering.FUNCTIONS, *jobs.FUNCTIONS,
)  # fmt: skip
#: Every function with a command of the driver, by name.
FUNCTIONS = {
    f.name: f
    for f in (
        *USER_FUNCTIONS, inference.PREDICT_ROWS, control.HELP, control.VERSION, control.END_LOST_RUN, steering.COMMAND,
    )
}  # fmt: skip


def find_function(name: str) -> Function:
    """Return the specification of a function. Raises Unsupported if there is none."""
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise no_command(name)
    return function


__all__ = [
    "FUNCTIONS", "REQUIRED", "USER_FUNCTIONS", "Argument", "Function", "Parameter", "check_storable", "find_function",
    "read_arguments", "recorded_arguments",
]  # fmt: skip
