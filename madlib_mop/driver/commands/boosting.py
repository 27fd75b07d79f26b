"""The command gradient_boosting: how good scikit-learn's gradient boosting is, as a baseline for networks."""

from typing import Any

from madlib_mop.driver.columns.describing import read_preprocessor
from madlib_mop.driver.commands.explaining import as_json
from madlib_mop.driver.inference.boosting import (
    HELD_OUT,
    BoostingProcess,
    NoBaseline,
    held_out_beside,
    measure_boosting,
)
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import InvalidParameter, NotReady


def gradient_boosting(call: Call) -> list[dict[str, Any]]:
    """Return a row for each set of held-out rows, target and metric.

    Raises
    ------
    MopError
        If pack_columns has not made the table, or it has no held-out rows.
    NotReady
        If there is no scikit-learn, the rows are not for it, or time is over.
    """
    a, session = call.arguments, call.session
    name, given = a["packed_table"], a[HELD_OUT]
    relation, preprocessor = session.relation(name, "packed_table"), read_preprocessor(session, name, "packed_table")
    held_out = held_out_beside(session, relation) if given is None else {"test": given}
    if not held_out:
        raise InvalidParameter(
            f"packed_table: you have no table of rows held out from {relation}. Received: {name!r}",
            hint="pack_columns(..., validation => 0.2) holds rows out; or pass test_table.",
        )
    with BoostingProcess(session) as process:
        try:
            found = measure_boosting(session, process, name, preprocessor, held_out, a["seed"], a["max_seconds"])
        except NoBaseline as reason:
            raise NotReady(f"{reason}. Received: {name!r}", hint=reason.hint) from None
    note = f"{found.fit.library}: {found.fit.note}"
    return [
        {
            "output": target.name,
            "data_set": data_set,
            "n_rows": found.n_rows[data_set],
            "metric": one.name,
            "value": as_json(one.value),
            "baseline": as_json(one.baseline),
            "seconds": round(found.seconds, 3),
            "note": note,
        }
        for data_set, targets in found.sets.items()
        for target in targets
        for one in target.measures
    ]
