"""madlib_keras_automl: plans a search, drives its run, writes the output tables; and hyperband_schedule."""

from madlib_mop.catalog.names import statement
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.planning.search import plan_search
from madlib_mop.driver.running.driving import train
from madlib_mop.driver.session.call import Call
from madlib_mop.search import HyperbandParams, hyperband_rounds

_SCHEDULE = "CREATE TABLE {table} (s integer, i integer, n_i integer, r_i integer, UNIQUE (s, i))"
_ROUNDS = """
INSERT INTO {table}
SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4))
"""


def madlib_keras_automl(call: Call) -> None:
    """Search architectures and parameters for the best model; the whole search is one run of the hopper."""
    train(call, plan_search)


def hyperband_schedule(call: Call) -> None:
    """Write the schedule of hyperband into a table of the caller: one row for each round of a bracket.

    Raises
    ------
    MopError
        If R, eta or skip_last cannot be used, or the table exists.
    """
    a, session = call.arguments, call.session
    rounds = hyperband_rounds(HyperbandParams(R=a["r"], eta=a["eta"], skip_last=a["skip_last"]))
    target = session.output(a.get("schedule_table"), ("",), "schedule_table")
    session.execute(statement(_SCHEDULE, table=target) + table_form(session, "s", "i"))
    columns = [[getattr(one, name) for one in rounds] for name in ("s", "i", "n_i", "r_i")]
    session.execute(statement(_ROUNDS, table=target), columns, ["integer[]"] * 4)
