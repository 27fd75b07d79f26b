"""The narrow functions of sql/24-worker.sql and sql/28-averaging.sql, as a worker session calls them."""

import plpy

_NARROW = {
    "plan": ("select madlib_mop.worker_plan($1, $2) as value", []),
    "host": ("select madlib_mop.worker_host($1, $2, $3) as value", ["text"]),
    "model": ("select madlib_mop.worker_model($1, $2, $3) as value", ["int4"]),
    "custom_functions": ("select madlib_mop.worker_custom_functions($1, $2) as value", []),
    "start_weights": ("select madlib_mop.worker_start_weights($1, $2, $3) as value", ["int4"]),
    "state_part": (
        "select madlib_mop.worker_state_part($1, $2, $3, $4, $5, $6) as value",
        ["int4", "int8", "int8", "int4"],
    ),
    "put_state_part": (
        "select madlib_mop.worker_put_state_part($1, $2, $3, $4, $5, $6, $7)::text as value",
        ["int4", "int8", "int8", "int4", "bytea"],
    ),
    "keep_visit": ("select madlib_mop.worker_keep_visit($1, $2, $3, $4) as value", ["int4", "json"]),
    "fail_member": (
        "select madlib_mop.worker_fail_member($1, $2, $3, $4, $5)::text as value",
        ["int4", "int8", "text"],
    ),
    "put_staged_part": (
        "select madlib_mop.worker_put_staged_part($1, $2, $3, $4, $5, $6, $7, $8)::text as value",
        ["int4", "int8", "int8", "int4", "int4", "bytea"],
    ),
    "keep_staged": ("select madlib_mop.worker_keep_staged($1, $2, $3, $4) as value", ["int4", "json"]),
    "average_part": (
        "select madlib_mop.average_state(p.data, p.n_rows order by p.segment_id) as value"
        " from madlib_mop.worker_staged_parts($1, $2, $3, $4, $5, $6, $7) p",
        ["int4", "int4", "int8", "int8[]", "int4"],
    ),
    "keep_average": ("select madlib_mop.worker_keep_average($1, $2, $3, $4)::text as value", ["int4", "json"]),
}


class Narrow:
    """Calls them for one run, with the worker's token; a statement is prepared when it is first used."""

    def __init__(self, run_id, token):
        self._run_id = run_id
        self._token = token
        self._plans = {}

    def __call__(self, name, *values):
        """Give the value that a function returns."""
        query, types = _NARROW[name]
        if name not in self._plans:
            self._plans[name] = plpy.prepare(query, ["int8", "text", *types])
        return plpy.execute(self._plans[name], [self._run_id, self._token, *values])[0]["value"]
