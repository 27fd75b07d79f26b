"""Settings are checked before a run and applied to trainers."""

import psycopg2
import pytest

from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, one_thread, pack, select_configurations


@pytest.fixture(scope="module")
def bench(db):
    one_thread()
    load_digits(db)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[:3])
    return db


def refusal(bench, table: str, setting: str) -> str:
    """Return the error of fit for a setting; no model may fail because of it."""
    with pytest.raises(psycopg2.errors.InvalidParameterValue) as caught:
        fit(bench, table, "mst", 1, (setting,))
    blamed = "SELECT count(*) FROM madlib_mop.model JOIN madlib_mop.run r USING (run_id) WHERE model.state = 'failed'"
    assert bench.value(blamed) == 0
    return str(caught.value)


@pytest.mark.parametrize("setting", ["trainer_memory_mb = 400", "trainer_threads = 1024"])
def test_too_little_memory_for_trainers_to_start_is_refused_before_any_work(bench, setting):
    message = refusal(bench, "too_little", f"SET madlib_mop.{setting}")
    assert "madlib_mop.trainer_memory_mb is too small: with madlib_mop.trainer_threads = " in message
    assert "a trainer without a model needs" in message and "SET madlib_mop.trainer_memory_mb = " in message
    assert bench.rows("SELECT 1 FROM madlib_mop.run WHERE model_output_table = 'public.too_little'") == []


@pytest.mark.slow
def test_what_is_needed_is_enough_for_trainers_and_a_small_network(bench):
    settings = ("SET madlib_mop.trainer_memory_mb = 832", "SET madlib_mop.trainer_threads = 2")
    fit(bench, "just_enough", "mst", 1, settings)
    assert bench.value("SELECT count(*) FROM just_enough") == 3


@pytest.mark.parametrize("value", ["many", "-1", "255", "1e6"])
def test_a_setting_that_is_no_number_in_its_range_is_named(bench, value):
    message = refusal(bench, "bad_setting", f"SET madlib_mop.trainer_memory_mb = '{value}'")
    assert "madlib_mop.trainer_memory_mb must be a whole number from 256" in message and repr(value) in message


@pytest.mark.slow
def test_a_superusers_row_limits_what_callers_may_set(bench):
    bench.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('trainer_memory_mb', '2000')")
    try:
        limits = []
        for asked in (1500, 3000):
            run = fit(bench, f"limited_{asked}", "mst", 1, (f"SET madlib_mop.trainer_memory_mb = {asked}",))
            plan = bench.value("SELECT plan -> 'trainer' FROM madlib_mop.run WHERE run_id = %s", [run.run_id])
            limits.append(plan["memory_limit_bytes"] >> 20)
    finally:
        bench.rows("DELETE FROM madlib_mop.setting")
    assert limits == [1500, 2000]
