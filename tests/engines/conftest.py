"""Fixtures of the engines' servers for the modules here: three hosts, and Greenplum where there is one."""

from tests.greenplum.conftest import greenplum, pytest_collection_modifyitems  # noqa: F401
from tests.hosts_kit import host_clusters, hosts  # noqa: F401
