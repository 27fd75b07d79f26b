"""Greenplum's fixtures for this folder, if there is a cluster; those of hosts are in tests/conftest.py."""

from tests.greenplum.conftest import greenplum, product, pytest_collection_modifyitems  # noqa: F401
