"""submit: checks a call and writes it as a job, in the caller's transaction."""

import json
from typing import Any

from mop_backend.frames import Json

from madlib_mop.catalog.jobs import JOBS_CHANNEL, Jobs
from madlib_mop.driver.jobs.checks import check_times, first_time, own_job
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.opening import open_record
from madlib_mop.driver.session.settings import SESSION_SETTINGS
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.jobs.statements import compose, find_function

# the columns that users may write; the others have their defaults
_INSERT = """
WITH written AS (
    INSERT INTO madlib_mop.job_statement (statement, arguments, settings)
    VALUES ($1, $2::pg_catalog.jsonb, $3::pg_catalog.jsonb) RETURNING statement_id)
INSERT INTO madlib_mop.job_record (statement_id, name, function, priority, due_at, every, after, if_running, time_limit)
SELECT statement_id, $4, $5, $6, coalesce($7::pg_catalog.timestamptz, pg_catalog.clock_timestamp()), $8, $9, $10,
       $11::pg_catalog.interval FROM written RETURNING job_id
"""
# Of this transaction too, which other sessions do not see.
_SUBMITTED = "SELECT 1 AS one FROM madlib_mop.job WHERE job_id = $1"
_OF_NAME = """
SELECT pg_catalog.min(job_id) AS job_id FROM madlib_mop.job
WHERE name = $1 AND owner = current_user AND state IN ('waiting', 'running')
"""
_TYPES = ["pg_catalog.text"] * 5 + ["integer"] + ["pg_catalog.text"] * 2 + ["bigint"] + ["pg_catalog.text"] * 2
_QUOTE = """
SELECT pg_catalog.quote_literal(t) AS literal FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (t, n) ORDER BY n
"""
_SETTINGS = """
SELECT name, pg_catalog.current_setting(name, true) AS value FROM pg_catalog.unnest($1) AS name
WHERE coalesce(pg_catalog.current_setting(name, true), '') <> ''
"""


def submit(call: Call) -> int:
    """Write a job in the caller's transaction; return its job_id."""
    a = call.arguments
    record = open_record(call.info)
    jobs = Jobs(record)
    function, statement = _statement(call, a["statement"], _json(a["arguments"]))
    check_times(call, record, a)
    if a["after"] is not None and not call.session.execute(_SUBMITTED, [a["after"]], ["bigint"]):
        own_job(call, record, jobs, a["after"], "after: ")
    if a["if_running"] == "error" and a["name"] is not None:
        other = call.session.execute(_OF_NAME, [a["name"]])[0]["job_id"]
        if other is not None:
            raise NotReady(
                f"job {other}, which has the same name, has not ended. Received: {a['name']!r}",
                hint="if_running => 'queue' lets the new job wait for its end; 'skip' skips the new one if the other"
                " one is still running then.",
            )
    due_at = a["at"] or (first_time(call, record, a["every"]) if a["every"] is not None else None)
    settings = settings_of(call) | {"search_path": call.info.search_path or "pg_catalog"}
    values = [
        statement, a["arguments"], json.dumps(settings), a["name"], function, a["priority"], due_at, a["every"],
        a["after"], a["if_running"], a["time_limit"],
    ]  # fmt: skip
    (row,) = call.session.execute(_INSERT, values, _TYPES)
    call.session.execute("SELECT pg_catalog.pg_notify($1, '')", [JOBS_CHANNEL])
    if not jobs.n_workers():
        call.session.warning(
            f"job {row['job_id']} waits for a worker, and none is running: start madlib-mop work on the server's host"
        )
    return int(row["job_id"])


def _statement(call: Call, text: str, arguments: Json) -> tuple[str | None, str]:
    """Return the function of the library that a job calls, if any, and its statement."""
    function = find_function(text)
    if function is None:
        if arguments is not None:
            raise InvalidParameter(
                "arguments are for a function of the library: an SQL statement has none",
                hint="Write the values into the statement.",
            )
        return None, text
    return function.name, compose(function, {} if arguments is None else arguments, lambda texts: quoted(call, texts))


def quoted(call: Call, texts: list[str]) -> list[str]:
    """Return SQL literals of texts, for `compose`."""
    return [row["literal"] for row in call.session.execute(_QUOTE, [texts], ["pg_catalog.text[]"])]


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidParameter(f"arguments must be JSON. Received: {text:.100}") from None


def settings_of(call: Call) -> dict[str, str]:
    """Return the settings of the caller's session that another session gets which works for it."""
    names = [*(f"madlib_mop.{name}" for name in SESSION_SETTINGS), "TimeZone"]
    rows = call.session.execute(_SETTINGS, [names], ["pg_catalog.text[]"])
    return {row["name"]: row["value"] for row in rows}
