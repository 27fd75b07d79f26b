"""The fixture of tests/citus_kit.py for the tests here."""

from tests.citus_kit import citus  # noqa: F401
