"""The defences, in the format of ``defences.py``, of monitoring: views, `watch`, the page of metrics, the log."""

from tests.helpers.security.defence import Defence

_OWN_RUNS = "tests/security/test_own_runs.py::test_a_user_sees_the_runs_of_roles_he_is_a_member_of"
_PAGE = "tests/unit/jobs/test_metrics.py::"
_LOG = "tests/unit/driver/test_run_log.py::test_a_name_cannot_forge_a_line_and_can_be_read_again"

DEFENCES_OF_MONITORING = (
    *(
        Defence(
            f"invoker-of-{view}",
            f"view {view} reads with the rights of the role that queries it",
            (_OWN_RUNS,),
        )
        for view in ("metric-series", "model-summary", "visit-gantt")
    ),
    Defence(
        "metrics-here-only",
        "the page of metrics is not served to other machines",
        (_PAGE + "test_it_listens_on_this_machine_only_and_a_port_that_is_taken_is_one_clear_error",),
    ),
    Defence(
        "room-for-metrics",
        "connections to the page of metrics that are held give way to others",
        ("tests/unit/jobs/test_metrics.py::test_connections_that_are_held_give_way_to_others",),
    ),
    Defence(
        "host-of-metrics",
        "a web page whose name points at 127.0.0.1 does not read the metrics",
        (_PAGE + "test_a_page_whose_name_points_here_gets_nothing",),
    ),
    Defence(
        "names-in-the-log",
        "a name does not forge a line of the server's log",
        (_LOG,),
    ),
)
