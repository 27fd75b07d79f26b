"""The fixtures of tests/hosts_kit.py for the tests here."""

from tests.hosts_kit import host_clusters, hosts  # noqa: F401
