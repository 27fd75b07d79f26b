"""The command report: a run as one HTML page, read in the caller's session."""

from madlib_mop.driver.session.call import Call
from madlib_mop.reports.reader import SessionReader


def report(call: Call) -> str:
    """Return the report of a run, as text; nothing is written.

    Raises
    ------
    InvalidParameter
        If the caller may see no run of this number.
    """
    # The library of figures is large: it is imported for this command only, not by every driver.
    from madlib_mop.reports.page import report as report_of

    return report_of(SessionReader(call.session), call.arguments["run_id"])
