"""How the sessions of a run are opened."""

from madlib_mop.engines.sessions.access import Access


def test_the_statements_of_visits_are_not_logged():
    """They last as long as a visit; errors are in the record."""
    settings = {"log_min_duration_statement=-1", "log_min_error_statement=panic"}
    access = Access(1, {}, "localhost", 5432, "db", "-c jit=off", None, 10)
    options = access.writer(0).keywords["options"].split(" -c ")
    assert settings <= set(options)
    assert not settings & set(access.reader().keywords["options"].split(" -c "))
