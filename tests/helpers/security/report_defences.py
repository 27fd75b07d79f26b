"""The defences, in the format of ``defences.py``, of reports: code in names, the network, files."""

from tests.helpers.security.defence import Defence

_PAGE = "madlib_mop/reports/page.py"
_UNIT = "tests/unit/reports/test_page.py::"
_INTEGRATION = "tests/integration/test_report.py::"

DEFENCES_OF_REPORTS = (
    Defence(
        "a text in a report is no HTML",
        _PAGE,
        "        autoescape=True,\n",
        "        autoescape=False,\n",
        (_UNIT + "test_a_hostile_name_is_text_everywhere",),
    ),
    Defence(
        "data in a report end no script element",
        _PAGE,
        "        document = document.replace(character, escape)\n",
        "        pass\n",
        (_UNIT + "test_embedded_json_cannot_end_its_element", _UNIT + "test_a_hostile_name_is_text_everywhere"),
    ),
    Defence(
        "a report runs its own scripts only, and loads nothing",
        "madlib_mop/reports/templates/document.html",
        '<meta http-equiv="Content-Security-Policy" content="{{ policy }}">\n',
        "",
        (_UNIT + "test_the_page_runs_its_own_scripts_only_and_loads_nothing",),
    ),
    Defence(
        "a report is not written through a link",
        "madlib_mop/cli/report.py",
        "path.lstat()",
        "path.stat()",
        (_INTEGRATION + "test_the_command_refuses_what_it_cannot_write_and_who_may_not_see",),
    ),
    Defence(
        "one who may only see runs can start no command but the report",
        "sql/39-reports.sql",
        'call.run("report", arguments,',
        'call.run(__import__("json").loads(arguments).get("function", "report"), arguments,',
        (_INTEGRATION + "test_one_who_may_only_see_runs_can_start_no_other_command",),
    ),
)
