"""The defences, in the format of ``defences.py``, of reports: code in names, the network, files."""

from tests.helpers.security.defence import Defence

_UNIT = "tests/unit/reports/test_page.py::"
_INTEGRATION = "tests/integration/test_report.py::"

DEFENCES_OF_REPORTS = (
    Defence(
        "escaped-reports",
        "a text in a report is no HTML",
        (_UNIT + "test_a_hostile_name_is_text_everywhere",),
    ),
    Defence(
        "escaped-data",
        "data in a report end no script element",
        (_UNIT + "test_embedded_json_cannot_end_its_element", _UNIT + "test_a_hostile_name_is_text_everywhere"),
    ),
    Defence(
        "policy-of-reports",
        "a report runs its own scripts only, and loads nothing",
        (_UNIT + "test_the_page_runs_its_own_scripts_only_and_loads_nothing",),
    ),
    Defence(
        "link-of-a-report",
        "a report is not written through a link",
        (_INTEGRATION + "test_the_command_refuses_what_it_cannot_write_and_who_may_not_see",),
    ),
    Defence(
        "reports-only",
        "one who may only see runs can start no command but the report",
        (_INTEGRATION + "test_one_who_may_only_see_runs_can_start_no_other_command",),
    ),
)
