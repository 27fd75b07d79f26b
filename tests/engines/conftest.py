"""Greenplum's fixtures for the modules here, where there is one; those of hosts are everybody's (tests/conftest.py)."""

from tests.greenplum.conftest import greenplum, product, pytest_collection_modifyitems  # noqa: F401
