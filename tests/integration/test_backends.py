"""The setting madlib_mop.backend: runs have the bits of plain Keras on their backend, and a run has one backend."""

import importlib.util
import itertools

import psycopg2
import pytest
from mop_backend.keras_backends import BackendName

from tests.helpers.oracle_process import assert_exact_on
from tests.helpers.training import ADAM, SGD, fit, load_architectures, load_digits, pack, script, weights
from tests.helpers.training import select_configurations as select

CONFIGURATIONS = [(1, ADAM, "batch_size=16, epochs=1"), (2, SGD, "batch_size=16, epochs=2")]
IS_INSTALLED = {name: importlib.util.find_spec(name) is not None for name in BackendName}
OTHERS = [
    pytest.param(name, marks=pytest.mark.skipif(not IS_INSTALLED[name], reason=f"not installed: BACKENDS={name}"))
    for name in BackendName
    if name != BackendName.TENSORFLOW
]
MISSING = [name for name in BackendName if not IS_INSTALLED[name]]
pytestmark = pytest.mark.tensorflow  # the default of the cluster


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, 2)
    select(db, "mst", CONFIGURATIONS)
    return db


def on(backend: str) -> str:
    return f"SET madlib_mop.backend = '{backend}'"


def failure(db, *settings: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as raised:
        fit(db, "never", "mst", 1, settings)
    assert not db.rows("SELECT 1 FROM madlib_mop.run WHERE model_output_table LIKE '%%.never'")
    return raised.value


def test_a_backend_that_does_not_exist_is_refused(bench):
    error = failure(bench, on("theano"))
    assert "must be one of tensorflow, jax, torch" in str(error) and "'theano'" in str(error)


@pytest.mark.skipif(not MISSING, reason="all backends are installed")
def test_a_backend_that_is_not_installed_is_refused_with_the_command_that_installs_it(bench):
    error = failure(bench, on(MISSING[0]))
    command = f"BACKENDS='tensorflow {MISSING[0]}'"
    assert f"has no package {MISSING[0]}" in str(error) and command in error.diag.message_hint


@pytest.mark.skipif(not IS_INSTALLED[BackendName.TORCH], reason="not installed: BACKENDS=torch")
def test_models_are_not_trained_together_on_pytorch(bench):
    error = failure(bench, on("torch"), "SET madlib_mop.fused_training = on")
    assert "fused_training is on" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS, scope="class")
class TestOthers:
    @pytest.fixture(scope="class")
    def run(self, bench, backend):
        """A run on the backend."""
        options = {"schedule": "rotation", "seed": 11, "validation_table": "valid"}
        return fit(bench, f"out_{backend}", "mst", 2, (on(backend),), **options)

    def test_weights_are_those_of_plain_keras(self, bench, backend, run):
        assert_exact_on(backend, bench, run.run_id, run.table, CONFIGURATIONS)

    def test_the_backend_is_recorded(self, bench, backend, run):
        plan, versions = bench.rows("SELECT plan, versions FROM madlib_mop.run WHERE run_id = %s", [run.run_id])[0]
        assert plan["trainer"]["backend"] == backend
        assert backend in versions and "tensorflow" not in versions

    def test_a_superusers_row_is_the_default(self, bench, backend):
        bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('backend', %s)", [backend])
        try:
            made = fit(bench, f"by_row_{backend}", "mst", 1, schedule="rotation", seed=11)
            plan = bench.value("SELECT plan FROM madlib_mop.run WHERE run_id = %s", [made.run_id])
            assert plan["trainer"]["backend"] == backend
        finally:
            bench.rows("DELETE FROM madlib_mop.setting WHERE name = 'backend'")

    def test_a_replay_has_the_same_bits(self, bench, backend, run):
        script(bench, f"SELECT madlib_mop.replay({run.run_id}, 'again_{backend}')")
        assert weights(bench, f"again_{backend}") == weights(bench, run.table)

    def test_predictions_are_alike(self, bench, backend, run):
        """Each backend predicts with models of the others."""
        for one in (BackendName.TENSORFLOW, backend):
            of = f"'{run.table}', 'valid_rows', 'id', 'x', 'p_{backend}_{one}', 'prob', FALSE, 1"
            script(bench, on(one), f"SELECT madlib.madlib_keras_predict({of})")
        (differences,) = bench.rows(
            f"SELECT max(abs(a.prob - b.prob)), count(*) FROM p_{backend}_tensorflow a"
            f" JOIN p_{backend}_{backend} b USING (id, class_value)"
        )
        assert differences[0] < 1e-5 and differences[1] == 800


PAIRS = [pair for pair in itertools.permutations(BackendName, 2) if all(IS_INSTALLED[name] for name in pair)]


@pytest.mark.slow
@pytest.mark.parametrize("first, second", PAIRS)
def test_a_warm_start_on_another_backend_continues_with_weights_and_optimizer(bench, first, second):
    table = f"from_{first}_{second}"
    before = fit(bench, table, "mst", 1, (on(first),), schedule="rotation", seed=3)
    after = fit(bench, table, "mst", 1, (on(second),), schedule="rotation", warm_start=True)
    assert f"run {before.run_id} trained on {first}, and this one trains on {second}" in after.notices
    assert "optimizer state is reset" not in after.notices
    assert_exact_on(second, bench, after.run_id, table, CONFIGURATIONS, before.run_id)
    third = fit(bench, table, "mst", 1, (on(second),), schedule="rotation", warm_start=True)
    assert "trained on" not in third.notices
    script(bench, f"SELECT madlib_mop.replay({after.run_id}, '{table}_again')")
    digest = "SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s ORDER BY 1"
    again = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    assert bench.rows(digest, [again]) == bench.rows(digest, [after.run_id])


@pytest.mark.slow
@pytest.mark.skipif(not IS_INSTALLED[BackendName.JAX], reason="not installed: BACKENDS=jax")
def test_fused_training_on_jax_has_the_same_bits_again(bench):
    """tests/unit/trainer/test_fused_visits.py compares its numbers with those of separate training."""
    alike = [(1, ADAM.replace("0.01", rate), "batch_size=16, epochs=1") for rate in ("0.01", "0.003", "0.001", "0.002")]
    select(bench, "alike", alike)
    fused = fit(bench, "fused", "alike", 2, (on("jax"), "SET madlib_mop.fused_training = on"), seed=11)
    assert "4 of 4 configurations train in 2 groups" in fused.notices
    places = "SELECT DISTINCT (timing ->> 'fused')::integer FROM madlib_mop.visit WHERE run_id = %s"
    assert bench.rows(places, [fused.run_id]) == [(2,)]
    script(bench, f"SELECT madlib_mop.replay({fused.run_id}, 'fused_again')")
    assert weights(bench, "fused_again") == weights(bench, "fused")
