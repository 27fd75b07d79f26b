"""A dump and a restore keep the record, the states and the rights; new runs can continue from them."""

import pytest

from madlib_mop import __version__
from tests.helpers.dumps import restored_copy
from tests.helpers.training import (
    ALIKE,
    fit,
    load_architectures,
    load_digits,
    one_thread,
    pack,
    select_configurations,
    weights,
)

TABLES = (
    "run", "segment", "model", "model_state", "visit", "metric", "evaluation", "start_weights", "custom_function",
    "caller_setting", "run_policy",
    "setting", "search_event", "change",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(db):
    one_thread()
    load_digits(db, 120, 40)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[:2])
    db.cluster.create_role("dump_user")
    db.rows("SELECT madlib_mop.grant_use('dump_user')")
    db.rows("INSERT INTO madlib_mop.setting (name, value) VALUES ('sandbox', 'on')")
    run = fit(db, "out", "mst", 1, seed=3, validation_table="valid")
    # an event and a decision as a search writes them
    db.rows("INSERT INTO madlib_mop.search_event (run_id, ordinal, event) VALUES (%s, 0, 'start')", [run.run_id])
    db.rows(
        "INSERT INTO madlib_mop.change (run_id, source, change, work, event, number, state)"
        " VALUES (%s, 'search', 'add', '{\"mst_key\": 1}', 0, 1, 'obeyed')", [run.run_id]
    )  # fmt: skip
    return db


@pytest.fixture(scope="module")
def restored(trained):
    """A database restored from the dump of another one."""
    with restored_copy(trained) as copy:
        yield copy


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_the_record_is_kept(trained, restored, table):
    query = f"SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')), count(*) FROM madlib_mop.{table} t"
    before = trained.rows(query)
    assert restored.rows(query) == before
    assert table in ("start_weights", "custom_function", "caller_setting", "run_policy") or before[0][1] > 0


def test_the_extension_is_there_as_such(restored):
    assert restored.value("SELECT extversion FROM pg_extension WHERE extname = 'madlib_mop'") == __version__
    may_resume = "SELECT has_function_privilege(%s, 'madlib_mop.resume(bigint,text,double precision,text)', 'EXECUTE')"
    assert restored.value(may_resume, ["dump_user"])
    assert not restored.value(may_resume, ["public"])


@pytest.mark.slow
def test_new_runs_get_new_numbers_and_old_states_are_gone_on_with(trained, restored):
    old = restored.value("SELECT max(run_id) FROM madlib_mop.run")
    run = fit(restored, "out", "mst", 1, warm_start=True)
    assert run.run_id > old
    epochs = restored.rows("SELECT DISTINCT epoch FROM madlib_mop.visit WHERE run_id = %s", [run.run_id])
    assert epochs == [(2,)] and "weights only" not in run.notices
    again = fit(trained, "out", "mst", 1, warm_start=True)
    assert weights(trained, "out") == weights(restored, "out") and again.run_id == run.run_id


def test_a_run_can_be_dropped_there(restored):
    for (run_id,) in restored.rows("SELECT run_id FROM madlib_mop.run"):
        restored.rows("SELECT madlib_mop.drop_run(%s)", [run_id])
    assert restored.rows("SELECT * FROM madlib_mop.model_state") == []
    restored.rows("DROP EXTENSION madlib_mop CASCADE")
    assert restored.rows("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'madlib%%'") == []
