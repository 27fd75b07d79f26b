"""The check of runs whose driver has died, such as in a crash of the server; it ends them."""

from collections.abc import Iterator

from madlib_mop import __version__
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.sessions.connection import connect_by_dsn
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.engines.sessions.ending import sweep
from madlib_mop.engines.sessions.login import PREFIX
from madlib_mop.errors import MopError

_CAN_WRITE = """
SELECT NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.current_setting('default_transaction_read_only') = 'off'
"""
_UNUSED_LOGINS = """
SELECT pg_catalog.count(*) FROM pg_catalog.pg_roles AS r
JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
WHERE pg_catalog.starts_with(r.rolname::pg_catalog.text, %s || d.oid::pg_catalog.text || '_')
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.usesysid = r.oid)
"""


def check(context: CheckContext, dsn: str) -> Iterator[Finding]:
    """End the runs whose driver has died, and return the finding about them.

    The record of another version may be another one, and it lacks functions that are called.
    """
    if not context.is_superuser or context.extension_version is None or not context.value(_CAN_WRITE):
        return
    if context.extension_version != __version__:
        n_left = context.value(_UNUSED_LOGINS, [PREFIX])
        found = f"not checked in version {context.extension_version}; login roles of runs without a session: {n_left}"
        mend = "After the update, the doctor ends dead runs and drops these roles."
        yield Finding("runs", CheckState.SKIP, found, mend)
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
