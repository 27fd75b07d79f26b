"""A policy: the caller's query names models and what to do with them; it is run after metrics, beside the training."""

import psycopg2
import pytest

from tests.helpers.faults import BackgroundFit, children, kill, newest_run, visits, wait_for
from tests.helpers.training import ADAM, ALIKE, digests, fit, load_architectures, load_digits, pack, script
from tests.helpers.training import select_configurations as select

pytestmark = pytest.mark.one_session

N_SEGMENTS, SEED = 2, 41
OPTIONS = {
    "source_table": "train_2", "validation_table": "valid_2", "seed": SEED, "schedule": "rotation",
    "metrics_every": "visit", "metrics_sample_rows": 20,
}  # fmt: skip
STOP_SECOND = """
SELECT mst_key, 'stop_model' AS action, 'after ' || min(visits) || ' visits' AS reason
FROM madlib_mop.visit_metric WHERE run_id = $1 AND mst_key = 2 AND visits >= 2 GROUP BY mst_key -- the second model
;
"""
COMMANDS = (
    "SELECT command, arguments, source, state, mst_keys FROM madlib_mop.steering WHERE run_id = %s ORDER BY 1"
)


@pytest.fixture(scope="module")
def bench(db):
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS, suffix="_2")
    select(db, "mst", ALIKE[:3])
    return db


def states(db, run_id: int) -> dict[int, tuple]:
    """Return state and reason of each model."""
    query = "SELECT mst_key, state, state_detail FROM madlib_mop.model WHERE run_id = %s"
    return {key: rest for key, *rest in db.rows(query, [run_id])}


@pytest.fixture(scope="module")
def stopped(bench):
    """A run whose policy stops the second model."""
    return fit(bench, "stopped", "mst", 6, policy=STOP_SECOND, **OPTIONS)


def test_it_stops_a_model_once_and_says_why(bench, stopped):
    assert states(bench, stopped.run_id)[2] == ["stopped", "stopped by the policy: after 2 visits"]
    assert [states(bench, stopped.run_id)[key][0] for key in (1, 3)] == ["trained", "trained"]
    assert 2 <= bench.value(
        "SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s AND mst_key = 2", [stopped.run_id]
    ) < 12
    arguments = {"mst_key": 2, "reason": "after 2 visits"}
    assert bench.rows(COMMANDS, [stopped.run_id]) == [("stop_model", arguments, "policy", "obeyed", [2])]
    assert "stop_model by the policy: mst_key 2 is stopped" in stopped.notices
    shown = "SELECT source, issued_by::text FROM madlib_mop.steering WHERE run_id = %s"
    assert bench.rows(shown, [stopped.run_id])[0][0] == "policy"


@pytest.mark.slow
def test_only_the_owner_of_a_run_sees_the_text_of_its_policy(bench, stopped):
    """Its query may name what other roles, which may see the run, should not know."""
    bench.cluster.create_role("sees_runs")
    bench.rows("SELECT madlib_mop.grant_read('sees_runs', current_user)")
    everything = "SELECT string_agg(r::text, '') FROM madlib_mop.run r"
    shown = bench.value(everything, role="sees_runs")
    assert "shown to the owner of the run" in shown and "visit_metric WHERE" not in shown
    assert bench.rows("TABLE madlib_mop.run_policy", role="sees_runs") == []
    policy = "SELECT policy FROM madlib_mop.run_policy WHERE run_id = %s"
    assert bench.value(policy, [stopped.run_id]) == STOP_SECOND
    report = "SELECT madlib_mop.report(%s)"
    theirs, ours = bench.value(report, [stopped.run_id], role="sees_runs"), bench.value(report, [stopped.run_id])
    assert "visit_metric WHERE" in ours and "visit_metric WHERE" not in theirs
    bench.rows("SELECT madlib_mop.revoke_read('sees_runs', current_user)")


def test_replay_repeats_what_it_did(bench, stopped):
    bench.rows("SELECT madlib_mop.replay(%s, 'again')", [stopped.run_id])
    assert digests(bench, newest_run(bench)) == digests(bench, stopped.run_id)
    assert bench.value("SELECT plan ? 'policy' FROM madlib_mop.run WHERE run_id = %s", [newest_run(bench)]) is False


@pytest.mark.slow
def test_it_clones_the_best_with_half_the_learning_rate(bench):
    policy = """
    SELECT mst_key, 'clone_model' AS action,
        json_build_object('compile_params', replace(compile_params, '0.01', '0.005')) AS arguments
    FROM madlib_mop.leaderboard WHERE run_id = $1 AND metric_visits = 2 AND rank = 1 AND mst_key <= 3
    """
    select(bench, "adams", [ALIKE[0], (1, ADAM, "batch_size=7, epochs=2")])
    run = fit(bench, "cloned", "adams", 3, policy=policy, **OPTIONS)
    commands = bench.rows(COMMANDS, [run.run_id])
    assert {(c[0], c[2], c[3]) for c in commands} == {("clone_model", "policy", "obeyed")}
    (key,) = commands[0][4]
    params = bench.value("SELECT compile_params FROM cloned_info WHERE mst_key = %s", [key])
    assert "0.005" in params


def test_each_row_is_issued_once_and_a_refusal_is_recorded(bench):
    """A stop of a pinned model is refused, and not tried again."""
    policy = """
    SELECT 1 AS mst_key, a.action FROM (VALUES ('pin_model'), ('stop_model')) AS a (action)
    WHERE EXISTS (SELECT FROM madlib_mop.visit_metric WHERE run_id = $1 AND visits > 1)
    """
    run = fit(bench, "pinned", "mst", 4, policy=policy, **OPTIONS)
    found = [(c[0], c[3]) for c in bench.rows(COMMANDS, [run.run_id])]
    assert found == [("pin_model", "obeyed"), ("stop_model", "refused")]
    assert states(bench, run.run_id)[1][0] == "trained"


@pytest.mark.slow
def test_an_error_is_told_once_and_the_run_goes_on(bench, stopped):
    policy = "SELECT mst_key, 'stop_model' AS action FROM madlib_mop.model WHERE run_id = $1 AND 1 / (mst_key - 1) = 7"
    run = fit(bench, "failing", "mst", 3, policy=policy, **OPTIONS)
    assert run.notices.count("the policy failed: division by zero") == 1
    assert {state for state, _ in states(bench, run.run_id).values()} == {"trained"}
    assert bench.rows(COMMANDS, [run.run_id]) == []


@pytest.mark.one_case
@pytest.mark.parametrize(
    "columns, told",
    [
        ("1 AS mst_key, 'explode' AS action", "policy: action must be one of stop_model, "),
        ("99 AS mst_key, 'clone_model' AS action", "has no such model. Received: mst_key 99"),
        ("1 AS mst_key, 'extend' AS action, '[1]'::jsonb AS arguments", "policy: arguments must be a JSON object"),
        ("1 AS mst_key, 'extend' AS action, '{\"by\": 1}'::jsonb AS arguments", "by"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_told_once(bench, columns, told):
    run = fit(bench, f"wrong_{abs(hash(columns))}", "mst", 1, policy=f"SELECT {columns}", **OPTIONS)
    assert run.notices.count(told) >= 1
    assert {c[3] for c in bench.rows(COMMANDS, [run.run_id])} <= {"refused"}
    assert {state for state, _ in states(bench, run.run_id).values()} == {"trained"}


@pytest.mark.slow
def test_one_that_takes_too_long_ends(bench):
    policy = "SELECT 1 AS mst_key, pg_sleep(100)::text AS action"
    run = fit(bench, "slow", "mst", 1, ("SET madlib_mop.policy_timeout_s = 1",), policy=policy, **OPTIONS)
    assert "the policy took too long: SET madlib_mop.policy_timeout_s allows more than 1 seconds" in run.notices


@pytest.mark.slow
def test_it_works_with_metrics_of_iterations_too(bench):
    policy = "SELECT mst_key, 'stop_model' AS action FROM madlib_mop.metric WHERE run_id = $1 AND mst_key = 3"
    options = {**OPTIONS, "metrics_every": "iteration", "metrics_sample_rows": None, "metrics_compute_frequency": 1}
    run = fit(bench, "by_epoch", "mst", 8, policy=policy, **options)
    assert states(bench, run.run_id)[3][0] == "stopped"


@pytest.mark.slow
def test_names_are_found_by_the_callers_search_path(bench):
    script(bench, "CREATE SCHEMA mine", "CREATE TABLE mine.doomed AS SELECT 2 AS mst_key, 'stop_model' AS action")
    path = ("SET search_path = mine, public",)
    run = fit(bench, "by_table", "mst", 6, path, policy="TABLE doomed", **OPTIONS)
    assert states(bench, run.run_id)[2][0] == "stopped"


@pytest.mark.slow
def test_it_sees_a_percent_sign(bench):
    policy = "SELECT 2 AS mst_key, 'stop_model' AS action, '100 % sure' AS reason WHERE 'a' LIKE '%'"
    run = fit(bench, "percent", "mst", 6, policy=policy, **OPTIONS)
    assert states(bench, run.run_id)[2][1] == "stopped by the policy: 100 % sure"


@pytest.mark.slow
def test_it_survives_a_killed_driver_and_issues_nothing_twice(bench):
    before = newest_run(bench)
    policy = "SELECT 1 AS mst_key, 'extend' AS action, '{\"num_iterations\": 2}'::jsonb AS arguments"
    statement = (
        "SELECT madlib.madlib_keras_fit_multiple_model('train_2', 'killed', 'mst', 4, validation_table := 'valid_2',"
        f" seed := 41, schedule := 'rotation', metrics_every := 'visit', policy := $p${policy}$p$)"
    )
    call = BackgroundFit(bench, statement)
    wait_for(lambda: newest_run(bench) != before and visits(bench, newest_run(bench)) > 3, what="visits")
    kill(children(call.pid, "madlib_mop.driver")[0])
    call.succeed()
    assert [(c[0], c[3]) for c in bench.rows(COMMANDS, [newest_run(bench)])] == [("extend", "obeyed")]
    assert bench.value("SELECT last_epoch FROM madlib_mop.model WHERE run_id = %s AND mst_key = 1",
                       [newest_run(bench)]) == 6  # fmt: skip


@pytest.mark.parametrize(
    "policy, message",
    [
        ("nonsense", "policy cannot be run: syntax error"),
        ("SELECT 1 AS mst_key", "policy cannot be run: column p.action does not exist"),
        ("TABLE nowhere", 'policy cannot be run: relation "nowhere" does not exist'),
        ("SELECT 1 AS mst_key, 'a' AS action; DROP TABLE mst", "policy cannot be run: "),
        ("SELECT 1 AS mst_key, 'a' AS action) AS x; DROP TABLE mst; SELECT (1", "policy cannot be run: "),
        ("DELETE FROM mst RETURNING mst_key, 'a' AS action", "policy cannot be run: "),
    ],
)
def test_one_that_cannot_be_run_is_told_before_any_work(bench, policy, message):
    before = newest_run(bench)
    with pytest.raises(psycopg2.Error) as error:
        fit(bench, "wrong", "mst", 1, policy=policy, **OPTIONS)
    assert message in str(error.value) and "Traceback" not in str(error.value)
    assert "A policy is one SELECT" in error.value.diag.message_hint
    assert newest_run(bench) == before and bench.value("SELECT count(*) FROM mst") == 3
