"""How the sessions of a run are opened."""

from madlib_mop.engines.sessions.access import Access


def test_visits_are_not_logged_as_slow_statements():
    """They last as long as a visit, and may have megabytes of compiled functions in their text."""
    access = Access(1, {}, "localhost", 5432, "db", "-c jit=off", None, "postgres")
    options = access.writer(0).keywords["options"].split(" -c ")
    assert "log_min_duration_statement=-1" in options
    assert "log_min_duration_statement=-1" not in access.reader().keywords["options"].split(" -c ")
