"""Cloudberry's differences from Greenplum 7: its detection, its name, and the settings of its sessions.

These tests use no server: texts and catalog contents are those of its sources.
"""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from madlib_mop.cli.doctor import greenplum as cluster_checks
from madlib_mop.cli.doctor import server as server_checks
from madlib_mop.cli.doctor.findings import CheckState
from madlib_mop.driver.data.engine import _CLUSTERS, engine_of, engine_of_table
from madlib_mop.engines import greenplum
from madlib_mop.engines.cloudberry import Cloudberry
from madlib_mop.engines.greenplum import CLOUDBERRY, GREENPLUM, PRODUCT, Greenplum, Product, product_of
from madlib_mop.engines.sessions.access import SESSION_OPTIONS, options_of
from madlib_mop.errors import Unsupported
from tests.greenplum.conftest import MATRIX
from tests.unit.test_build_extension import build_extension

ROOT = Path(__file__).resolve().parents[3]
PLACE = "on x86_64-pc-linux-gnu, compiled by gcc (GCC) 11.5.0, 64-bit"
VERSIONS = [
    (f"PostgreSQL 12.12 (Greenplum Database 7.1.0 build commit:e7c2b1f Open Source) {PLACE}", Greenplum),
    (f"PostgreSQL 12 (MatrixDB 5.0.0-community) (Greenplum Database 7.0.0 build dev) {PLACE}", Greenplum),
    (f"PostgreSQL 14.4 (Apache Cloudberry 2.0.0-incubating build 1) {PLACE}", Cloudberry),
    (f"PostgreSQL 16.9 (Apache Cloudberry 3.0.0-devel build dev) {PLACE}", Cloudberry),
    (f"PostgreSQL 14.4 (Cloudberry Database 1.5.4 build commit:e83e3ff) {PLACE}", Cloudberry),
    ("PostgreSQL 12.12 (Greenplum Database 7.1.0) on Cloudberry-linux, compiled by gcc, 64-bit", Greenplum),
]


class Server:
    """A session of a server with Greenplum's catalogs; it answers only the query of its product."""

    def __init__(self, version: str):
        self.version = version

    def execute(self, query: str, *_):
        assert query == PRODUCT
        return [{"has_segments": True, "version": self.version}]


@pytest.mark.parametrize("version, engine", VERSIONS)
def test_the_engine_is_that_of_the_product_that_version_names(version, engine):
    for found in (engine_of(Server(version)), engine_of_table(Server(version), None)):
        assert type(found) is engine and found.name == engine.product.name


def test_a_product_has_an_engine_a_dialect_and_a_line_in_the_test_matrix():
    """Everything else is derived from these; without an engine, every call on a product would fail."""
    known = {value for value in vars(greenplum).values() if isinstance(value, Product)}
    assert known >= {GREENPLUM, CLOUDBERRY}
    assert known == {engine.product for engine in _CLUSTERS} == {*MATRIX}
    assert {product.name for product in known} | {"postgres"} == {*build_extension.DIALECTS}


def test_a_server_without_segments_is_no_product_whatever_it_calls_itself():
    assert product_of(False, "PostgreSQL 15.2 (Apache Cloudberry 2.0.0) on x86_64") is None


@pytest.mark.parametrize("engine", [Greenplum, Cloudberry])
def test_an_error_names_the_product(engine):
    with pytest.raises(Unsupported, match=f"^on {engine.product.title} segments are") as caught:
        engine().check_host("alpha")
    assert f"madlib-mop install --{engine.product.name}" in caught.value.hint


@pytest.mark.parametrize("product", [GREENPLUM, CLOUDBERRY])
def test_make_and_the_doctor_ask_for_the_same_postgresql(product):
    command = ["bash", "-c", '. make/common.sh && oldest_major "$1"', "bash", product.name]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert int(said) == product.major


def catalog_with(*names: str):
    """Return a catalog session of a server that has only these of the requested settings."""

    class Cursor:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def execute(self, query, parameters):
            self.asked = parameters[0]

        def fetchall(self):
            return [(name,) for name in names if name in self.asked]

    return SimpleNamespace(cursor=Cursor)


def options(*names: str) -> set[str]:
    """Return the settings of a run's sessions on a server that has these settings."""
    return {*options_of(catalog_with(*names)).split("-c ")}


OF_14 = ("idle_session_timeout", "client_connection_check_interval")
OF_GREENPLUM = ("gp_vmem_idle_resource_timeout", "optimizer")
OF_CLOUDBERRY = (
    "enable_parallel", "enable_answer_query_using_materialized_views", "enable_offload_entry_to_qe",
)  # fmt: skip


def test_the_sessions_of_a_run_set_what_the_server_has():
    """A session with an unknown setting is rejected; an existing setting could change the rows that a run reads."""
    everywhere = {text.strip() for text in options()}
    on_postgresql = {text.strip() for text in options(*OF_14)}
    on_greenplum = {text.strip() for text in options(*OF_GREENPLUM)}
    on_cloudberry = {text.strip() for text in options(*OF_14, *OF_GREENPLUM, *OF_CLOUDBERRY)}
    assert on_postgresql == {text.strip() for text in SESSION_OPTIONS.split("-c ")} | {"lock_timeout=0"}
    assert on_postgresql - everywhere == {"idle_session_timeout=0", "client_connection_check_interval=200"}
    assert on_greenplum - everywhere == {"gp_vmem_idle_resource_timeout=0", "optimizer=off"}
    assert on_cloudberry - on_greenplum - on_postgresql == {f"{name}=off" for name in OF_CLOUDBERRY}
    assert on_greenplum | on_postgresql - {"lock_timeout=0"} < on_cloudberry


def version_found(product: Product | None, major: int):
    """Return the doctor's finding about the version of a server."""
    context = SimpleNamespace(product=product, major=major, setting=lambda name: f"{major}.4")
    return server_checks._version(context)


@pytest.mark.parametrize("product, major", [(GREENPLUM, 12), (CLOUDBERRY, 14), (CLOUDBERRY, 16), (None, 15)])
def test_the_doctor_names_the_product(product, major):
    found = version_found(product, major)
    assert found.state is CheckState.OK
    assert found.found == (f"{product.title}, " if product else "") + f"PostgreSQL {major}.4"


@pytest.mark.parametrize("product, major", [(GREENPLUM, 9), (CLOUDBERRY, 12), (None, 14)])
def test_the_doctor_refuses_what_is_too_old(product, major):
    found = version_found(product, major)
    assert found.state is CheckState.FAIL
    assert f"PostgreSQL {product.major if product else 15}" in found.mend


ANSWER = {
    "user": "gpadmin", "python": "3.11.2",
    "machine": {"available_bytes": 1 << 40, "processor_limit": None, "memory_limit_bytes": None},
    "versions": {"version": "1", "modules": {"tensorflow": {"version": "2.21.0"}}},
}  # fmt: skip


@pytest.mark.parametrize("timeout, state", [(None, CheckState.OK), ("0", CheckState.OK), ("1min", CheckState.WARN)])
def test_the_doctor_warns_of_a_timeout_that_ends_processes_at_segments(timeout, state):
    """Greenplum 7 lacks this setting; Cloudberry's segments have their own value, which our sessions cannot change."""
    answer = {**ANSWER, "idle_session_timeout": timeout}
    found = cluster_checks._host("host a", answer, ANSWER["versions"], 3, "again")
    assert found.state is state
    assert ("idle_session_timeout is 1min there" in found.found) == (state is CheckState.WARN)


def test_sessions_wait_for_locks_only_where_the_driver_sees_them():
    assert options_of(catalog_with(*OF_14)).endswith("-c lock_timeout=0")
    assert "lock_timeout=0" not in options(*OF_14, *OF_GREENPLUM)
