"""The setting madlib_mop.backend: runs on JAX have the bits of plain Keras on JAX, and a run has one backend."""

import importlib.util

import numpy as np
import psycopg2
import pytest

from madlib_mop.trainer.backends.base.names import BackendName
from tests.helpers.oracle_process import assert_exact_on
from tests.helpers.training import ADAM, SGD, fit, load_architectures, load_digits, pack, script, weights
from tests.helpers.training import select_configurations as select

JAX = ("SET madlib_mop.backend = 'jax'",)
CONFIGURATIONS = [(1, ADAM, "batch_size=16, epochs=1"), (2, SGD, "batch_size=16, epochs=2")]
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: BACKENDS=jax")


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, 2)
    select(db, "mst", CONFIGURATIONS)
    return db


def failure(db, *settings: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as raised:
        fit(db, "never", "mst", 1, settings)
    assert not db.rows("SELECT 1 FROM madlib_mop.run WHERE model_output_table LIKE '%%.never'")
    return raised.value


def test_a_backend_that_does_not_exist_is_refused(bench):
    error = failure(bench, "SET madlib_mop.backend = 'theano'")
    assert "must be one of tensorflow, jax, torch" in str(error) and "'theano'" in str(error)


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is installed")
def test_a_backend_that_is_not_installed_is_refused_with_the_command_that_installs_it(bench):
    error = failure(bench, *JAX)
    assert "has no package jax" in str(error) and "BACKENDS='tensorflow jax'" in error.diag.message_hint


@pytest.fixture(scope="module")
def run(bench):
    """A run on JAX."""
    return fit(bench, "out_jax", "mst", 2, JAX, schedule="rotation", seed=11, validation_table="valid")


@needs_jax
@pytest.mark.slow
class TestJax:
    def test_weights_are_those_of_plain_keras_on_jax(self, bench, run):
        assert_exact_on(BackendName.JAX, bench, run.run_id, "out_jax", CONFIGURATIONS)

    def test_the_backend_is_recorded(self, bench, run):
        plan, versions = bench.rows("SELECT plan, versions FROM madlib_mop.run WHERE run_id = %s", [run.run_id])[0]
        assert plan["trainer"]["backend"] == "jax"
        assert "jax" in versions and "tensorflow" not in versions

    def test_a_superusers_row_is_the_default(self, bench):
        bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('backend', 'jax')")
        try:
            made = fit(bench, "by_row", "mst", 1, schedule="rotation", seed=11)
            plan = bench.value("SELECT plan FROM madlib_mop.run WHERE run_id = %s", [made.run_id])
            assert plan["trainer"]["backend"] == "jax"
        finally:
            bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'backend'")

    def test_fused_training_has_nearly_the_same_weights(self, bench, run):
        select(
            bench, "alike", [(1, ADAM.replace("0.01", rate), "batch_size=16, epochs=1") for rate in ("0.01", "0.003")]
        )
        apart = fit(bench, "apart", "alike", 2, JAX, schedule="rotation", seed=11)
        fused = fit(
            bench, "fused", "alike", 2, (*JAX, "SET madlib_mop.fused_training = on"), schedule="rotation", seed=11
        )
        assert "2 of 2 configurations train in 1 group" in fused.notices and "fused" not in apart.notices
        one, other = (weights(bench, table) for table in ("apart", "fused"))
        for key in (1, 2):
            ours, theirs = (np.frombuffer(found[key], np.float32) for found in (other, one))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)

    def test_a_replay_has_the_same_bits(self, bench, run):
        script(bench, f"SELECT madlib_mop.replay({run.run_id}, 'again')")
        assert weights(bench, "again") == weights(bench, "out_jax")

    def test_another_backend_computes_other_bits(self, bench, run):
        fit(bench, "out_tf", "mst", 2, schedule="rotation", seed=11)
        assert weights(bench, "out_tf") != weights(bench, "out_jax")

    def test_predictions_of_both_backends_are_alike(self, bench, run):
        for backend in BackendName:
            of = f"'out_jax', 'valid_rows', 'id', 'x', 'p_{backend}', 'prob', FALSE, 1"
            script(bench, f"SET madlib_mop.backend = '{backend}'", f"SELECT madlib.madlib_keras_predict({of})")
        (differences,) = bench.rows(
            "SELECT max(abs(a.prob - b.prob)), count(*) FROM p_tensorflow a JOIN p_jax b USING (id, class_value)"
        )
        assert differences[0] < 1e-5 and differences[1] == 800

    @pytest.mark.parametrize("first, second", [("tensorflow", "jax"), ("jax", "tensorflow")])
    def test_a_warm_start_on_another_backend_continues_with_weights_and_optimizer(self, bench, first, second):
        table = f"from_{first}"
        before = fit(bench, table, "mst", 1, (f"SET madlib_mop.backend = '{first}'",), schedule="rotation", seed=3)
        setting = f"SET madlib_mop.backend = '{second}'"
        after = fit(bench, table, "mst", 1, (setting,), schedule="rotation", warm_start=True)
        assert f"run {before.run_id} trained on {first}, and this one trains on {second}" in after.notices
        assert "optimizer state is reset" not in after.notices
        backend = BackendName(second)
        assert_exact_on(backend, bench, after.run_id, table, CONFIGURATIONS, before.run_id)
        third = fit(bench, table, "mst", 1, (setting,), schedule="rotation", warm_start=True)
        assert "trained on" not in third.notices
        script(bench, f"SELECT madlib_mop.replay({after.run_id}, '{table}_again')")
        digest = "SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s ORDER BY 1"
        again = bench.value("SELECT max(run_id) FROM madlib_mop.run")
        assert bench.rows(digest, [again]) == bench.rows(digest, [after.run_id])
