"""The fixture of tests/helpers/citus.py for the tests here."""

from tests.helpers.citus import citus  # noqa: F401
