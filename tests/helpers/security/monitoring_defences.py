"""The defences, in the format of ``defences.py``, of monitoring: views, `watch`, the page of metrics, the log."""

from tests.helpers.security.defence import Defence

_OWN_RUNS = "tests/security/test_own_runs.py::test_a_user_sees_the_runs_of_roles_he_is_a_member_of"
_PAGE = "tests/unit/jobs/test_metrics.py::"
_LOG = "tests/unit/driver/test_run_log.py::test_a_name_cannot_forge_a_line_and_can_be_read_again"
_INVOKER = "CREATE VIEW madlib_mop.{} WITH (security_invoker = true) AS\n"

DEFENCES_OF_MONITORING = (
    *(
        Defence(
            f"view {view} reads with the rights of the role that queries it",
            "sql/23-monitoring.sql",
            _INVOKER.format(view),
            f"CREATE VIEW madlib_mop.{view} AS\n",
            (_OWN_RUNS,),
        )
        for view in ("metric_series", "model_summary", "visit_gantt")
    ),
    Defence(
        "the page of metrics is not served to other machines",
        "madlib_mop/jobs/metrics_page.py",
        '_ADDRESS = "127.0.0.1"',
        '_ADDRESS = "0.0.0.0"',
        (_PAGE + "test_it_listens_on_this_machine_only_and_a_port_that_is_taken_is_one_clear_error",),
    ),
    Defence(
        "connections to the page of metrics that are held give way to others",
        "madlib_mop/jobs/metrics_page.py",
        "for oldest in self._open[:-_MOST_CONNECTIONS]:",
        "for oldest in ():",
        ("tests/unit/jobs/test_metrics.py::test_connections_that_are_held_give_way_to_others",),
    ),
    Defence(
        "a web page whose name points at 127.0.0.1 does not read the metrics",
        "madlib_mop/jobs/metrics_page.py",
        "if (host[0] or host[2]) not in _HOSTS:",
        "if False:",
        (_PAGE + "test_a_page_whose_name_points_here_gets_nothing",),
    ),
    Defence(
        "a name does not forge a line of the server's log",
        "madlib_mop/driver/session/run_log.py",
        'return json.dumps(name).replace("\\x7f", "\\\\u007f")',
        "return f'\"{name}\"'",
        (_LOG,),
    ),
    Defence(
        "operators of other roles do not serve the queries of watch",
        "madlib_mop/cli/watching/session.py",
        '        self._fetch("SET search_path = pg_catalog, pg_temp", [])  # or operators',
        "        # or operators",
        ("tests/integration/test_watch.py::test_operators_of_other_roles_do_not_serve_its_queries",),
    ),
)
