"""The check of runs whose driver has died, such as in a crash of the server; it ends them."""

from collections.abc import Iterator

from madlib_mop import __version__
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.engines.sessions.ending import sweep
from madlib_mop.errors import MopError

_CAN_WRITE = """
SELECT NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.current_setting('default_transaction_read_only') = 'off'
"""


def check(context: CheckContext, dsn: str) -> Iterator[Finding]:
    """End the runs whose driver has died, and return the finding about them; none with an extension of another version.

    Its record may be another one, and it lacks functions that are called.
    """
    if not context.is_superuser or context.extension_version != __version__ or not context.value(_CAN_WRITE):
        return
    try:
        record = Record(*connect_by_dsn(dsn))
        try:
            ended = sweep(record)
        finally:
            record.raw.close()
    except MopError as error:
        yield Finding("runs", CheckState.WARN, f"not checked: {error.message}", error.hint)
        return
    if ended:
        numbers = ", ".join(map(str, ended))
        mend = f"SELECT madlib_mop.resume({ended[0]}); as its owner continues it."
        yield Finding("runs", CheckState.WARN, f"had lost their driver, and are interrupted now: {numbers}", mend)
    else:
        yield Finding("runs", CheckState.OK, "none has lost its driver")
