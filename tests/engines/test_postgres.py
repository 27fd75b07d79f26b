"""The promises on one PostgreSQL server, whose bits are those of plain Keras, and the measure of the other engines."""

import pytest

from tests.helpers.engines.promises import Promises
from tests.helpers.engines.tables import CONFIGURATIONS, Bench, prepared
from tests.helpers.oracle import assert_exact


class OneServer(Bench):
    """The private cluster of the test session."""

    def assert_exact(self, database) -> None:
        """Hold the undisturbed run against plain Keras."""
        assert_exact(self.db, self.run_id, "undisturbed", CONFIGURATIONS)


@pytest.fixture(scope="module")
def bench(db):
    return prepared(OneServer(db, 2))


class TestPostgres(Promises):
    """All of them."""
