"""The guarantees on one PostgreSQL server. Its bits equal those of plain Keras; other engines are compared with it.

Slow, because each of them has faster tests in tests/integration, tests/faults and tests/security.
"""

import pytest

from tests.helpers.engines.promises import Promises
from tests.helpers.engines.tables import CONFIGURATIONS, Bench, prepared
from tests.helpers.oracle import assert_exact


class OneServer(Bench):
    """The private cluster of the test session."""

    def assert_exact(self, database) -> None:
        """Compare the run without faults with plain Keras."""
        assert_exact(self.db, self.run_id, "undisturbed", CONFIGURATIONS)


@pytest.fixture(scope="module")
def bench(db):
    return prepared(OneServer(db, 2))


@pytest.mark.slow
class TestPostgres(Promises):
    """All of them."""
