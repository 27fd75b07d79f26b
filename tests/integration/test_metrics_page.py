"""The page of metrics of a real job worker, as Prometheus reads it."""

import re
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.faults import BackgroundFit, wait_for
from tests.helpers.jobs import ALICE, JobWorker, end_of, make_marks, mark, submit
from tests.helpers.training import ALIKE, fit, load_architectures, load_digits, pack, select_configurations

pytestmark = pytest.mark.slow

N_ITERATIONS = 100  # long enough to be seen by a page that is read once a second
N_VISITS = 2 * 2  # of an iteration: models, segments


@pytest.fixture(scope="module")
def worked(db):
    """A database with a finished run, and a worker of one slot with the page."""
    make_marks(db)
    load_digits(db, 120, 40)
    load_architectures(db)
    pack(db, 2)
    select_configurations(db, "mst", ALIKE[:2])
    with JobWorker(db, slots=1, options=("--metrics-port", "0")) as worker:
        address = r"metrics: http://127\.0\.0\.1:(\d+)/metrics"
        port = wait_for(lambda: re.search(address, worker.log), what="the address of the page")
        db.page = f"http://127.0.0.1:{port[1]}/metrics"
        yield db


def scraped(db) -> dict[tuple, float]:
    """Return the values of the page by name and labels."""
    with urllib.request.urlopen(db.page, timeout=30) as page:
        assert page.headers["Content-Type"].startswith("text/plain")
        families = list(text_string_to_metric_families(page.read().decode()))
    assert all(family.documentation for family in families)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def becomes(db, wanted: dict[tuple, float]) -> None:
    """Wait until the page shows some values; it is read at most once a second."""
    wait_for(lambda: wanted.items() <= scraped(db).items(), 20, f"{wanted}")


def test_runs_visits_and_trainers_are_counted(worked):
    before = scraped(worked)
    assert before["madlib_mop_up",] == 1 and before["madlib_mop_runs", "running"] == 0
    training = BackgroundFit(
        worked,
        f"SELECT madlib.madlib_keras_fit_multiple_model('train', 'counted', 'mst', {N_ITERATIONS}, seed := 1)",
    )
    becomes(worked, {("madlib_mop_runs", "running"): 1})
    wait_for(lambda: scraped(worked)["madlib_mop_trainer_memory_bytes",] > 10e6, what="a trainer's memory")
    training.succeed()
    becomes(worked, {("madlib_mop_runs", "running"): 0, ("madlib_mop_runs", "finished"): 1})
    becomes(worked, {("madlib_mop_visits_total",): before["madlib_mop_visits_total",] + N_ITERATIONS * N_VISITS})
    assert scraped(worked)["madlib_mop_models", "trained"] == 2
    fit_again = fit(worked, "dropped", "mst", 1, seed=1)
    worked.rows("SELECT madlib_mop.drop_run(%s)", [fit_again.run_id])
    becomes(worked, {
        ("madlib_mop_visits_total",): before["madlib_mop_visits_total",] + (N_ITERATIONS + 1) * N_VISITS,
        ("madlib_mop_models", "trained"): 2,
    })  # fmt: skip


def test_jobs_the_queue_and_failures_are_counted(worked):
    before = scraped(worked)
    blocking = submit(worked, mark("blocking", sleep_s=600), ALICE)
    becomes(worked, {("madlib_mop_jobs", "running"): 1, ("madlib_mop_job_queue_length",): 0})
    waiting = submit(worked, "SELECT 1 / 0", ALICE)
    later = submit(worked, mark("later"), ALICE, at="2999-01-01")
    becomes(worked, {("madlib_mop_jobs", "waiting"): 2, ("madlib_mop_job_queue_length",): 1})
    wait_for(lambda: scraped(worked)["madlib_mop_job_queue_oldest_seconds",] > 1, what="a job that has waited a second")
    for job_id in (blocking, later):
        worked.rows("SELECT madlib_mop.cancel_job(%s)", [job_id], ALICE)
    assert end_of(worked, waiting) == ("failed", "division by zero")
    failures = "madlib_mop_failures_total", "job"
    becomes(worked, {
        ("madlib_mop_jobs", "failed"): before["madlib_mop_jobs", "failed"] + 1, failures: before[failures] + 1,
        ("madlib_mop_job_queue_length",): 0, ("madlib_mop_job_queue_oldest_seconds",): 0,
    })  # fmt: skip
