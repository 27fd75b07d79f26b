"""The times of repeated jobs: which texts are cron expressions, and the next time in a time zone."""

from datetime import UTC, datetime

import pytest

from madlib_mop.jobs.recurrence import NoNextTime, is_cron, knows_zone, next_time

BEFORE_SUMMER_TIME = datetime(2026, 3, 28, 12, tzinfo=UTC)  # clocks in Berlin go from 2:00 to 3:00 on 29 March


@pytest.mark.parametrize(
    "text",
    ["0 3 * * *", " @daily", "*/10 8-18 * * MON-FRI", "61 * * * *", "@reboot", "0 3 * * mon", "0 3 * Jan *",
     "0 3 1 jan fri", "0 3 * * mon-fri", "0 3 * jan,jul sun"],
)  # fmt: skip
def test_five_fields_or_a_nickname_are_a_cron_expression(text):
    assert is_cron(text)


@pytest.mark.parametrize(
    "text", ["1 day", "15 minutes", "1 day 02:00:00", "3 days 4 hours 5", "1 mon 2 days 3", "1 mon 2 mon 3", "P1D",
             "each day at 3 h", "1 year 2 mon 3"]
)
def test_other_texts_are_intervals(text):
    assert not is_cron(text)


@pytest.mark.parametrize(
    "every, zone, expected",
    [
        ("0 3 * * *", None, "2026-03-29T03:00:00+00:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00"),  # 2:30 does not exist on that day
        ("@hourly", "America/New_York", "2026-03-28T09:00:00-04:00"),
        ("0 0 29 2 *", "UTC", "2028-02-29T00:00:00+00:00"),
        ("0 3 * * mon", "UTC", "2026-03-30T03:00:00+00:00"),
        ("0 3 1 jan *", "UTC", "2027-01-01T03:00:00+00:00"),
        ("0 12 * * *", "UTC", "2026-03-29T12:00:00+00:00"),  # after the given time, not at it
        ("0 3 * * *", "<+02>-02", "2026-03-29T03:00:00+00:00"),  # a zone that Python does not know
        ("0 3 * * *", "../etc/passwd", "2026-03-29T03:00:00+00:00"),
    ],
)
def test_the_next_time_is_in_the_zone_of_the_session(every, zone, expected):
    assert next_time(every, BEFORE_SUMMER_TIME, zone).isoformat() == expected


@pytest.mark.parametrize("every, expected", [("30 2 * * *", "2026-10-26T02:30:00+01:00"),
                                             ("*/20 * * * *", "2026-10-25T02:20:00+01:00")])  # fmt: skip
def test_the_next_time_is_later_in_the_hour_that_clocks_repeat(every, expected):
    """Clocks in Berlin go from 3:00 to 2:00 on 25 October; it is 2:10 for the second time."""
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert next_time(every, second, "Europe/Berlin").isoformat() == expected


@pytest.mark.parametrize("zone, known", [("Europe/Berlin", True), ("UTC", True), ("<+02>-02", False), ("../x", False)])
def test_a_zone_that_python_does_not_know(zone, known):
    assert knows_zone(zone) == known


@pytest.mark.parametrize("every", ["61 * * * *", "0 0 31 2 *", "@reboot", "x", "* * * * * * *", ""])
def test_a_wrong_expression_is_one_error(every):
    with pytest.raises(NoNextTime, match="is no cron expression of five fields"):
        next_time(every, BEFORE_SUMMER_TIME, None)
