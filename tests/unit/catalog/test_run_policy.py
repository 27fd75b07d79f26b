"""The text of a run's policy is in a table of its own, and a run that is read from the record has it again."""

from dataclasses import replace

from madlib_mop.catalog.rows.plan import PolicyPlan
from madlib_mop.catalog.rows.run import POLICY_COLUMN, RunRow, hide_policy
from tests.helpers.unit.rows import a_plan, a_run

TEXT = " SELECT 1 AS mst_key, 'stop_model' AS action; "
POLICY = PolicyPlan("SELECT 1 AS mst_key, 'stop_model' AS action", "public", 30)


def read_again(run: RunRow, text: str | None) -> RunRow:
    row = hide_policy(run.as_row())
    assert "mst_key, 'stop" not in repr(row)
    defaults = {"run_id": 5, "owner_oid": run.owner_oid, "owner": run.owner}
    complete = {name: row.get(name) for name in RunRow.__dataclass_fields__} | defaults | {POLICY_COLUMN: text}
    return RunRow.from_row(complete)


def test_a_run_with_a_policy_is_read_as_it_was_written():
    run = a_run(replace(a_plan(), policy=POLICY), arguments={"policy": TEXT, "seed": 3})
    read = read_again(run, TEXT)
    assert read.plan.policy == POLICY and read.arguments == run.arguments


def test_a_replay_has_the_argument_and_no_policy():
    run = a_run(a_plan(), arguments={"policy": TEXT})
    read = read_again(run, TEXT)
    assert read.plan.policy is None and read.arguments == run.arguments


def test_a_run_without_a_policy_stays_as_it_is():
    run = a_run(a_plan(), arguments={"policy": None, "seed": 3})
    assert hide_policy(run.as_row()) == run.as_row() and read_again(run, None).arguments == run.arguments
    assert hide_policy({"state": "failed"}) == {"state": "failed"}
