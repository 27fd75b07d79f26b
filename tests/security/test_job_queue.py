"""The queue of jobs: a role learns its own places and nothing of others' jobs; old jobs do not slow it down."""

import pytest

from madlib_mop.catalog.jobs import _NEXT
from tests.helpers.jobs import submit
from tests.helpers.security.attacks import user

ALICE, MALLORY, LEAD, READER = "alice_queues", "mallory_queues", "lead_queues", "reads_queues"
QUEUE = "SELECT * FROM madlib_mop_calls.job_queue() ORDER BY job_id"


@pytest.fixture(scope="module")
def queue(db):
    """Jobs that are due, and no worker: the queue's first one is that of the role with the lower oid."""
    for role in (ALICE, MALLORY, LEAD):
        user(db, role)
    db.cluster.create_role(READER)
    db.rows(f"GRANT {ALICE} TO {LEAD}")
    db.rows(f"SELECT madlib_mop.grant_read('{READER}', '{ALICE}')")
    db.hers, db.his = submit(db, "SELECT 1", ALICE), submit(db, "SELECT 1", MALLORY)
    return db


def test_a_role_sees_the_places_of_its_own_jobs(queue):
    assert queue.rows(QUEUE, role=MALLORY) == [(queue.his, 2)], "alice's job counts, and is not named"
    assert queue.rows(QUEUE, role=ALICE) == queue.rows(QUEUE, role=READER) == [(queue.hers, 1)]
    assert queue.rows(QUEUE, role=LEAD) == [(queue.hers, 1)]
    assert queue.rows(QUEUE) == [(queue.hers, 1), (queue.his, 2)]


def test_the_role_that_counts_is_the_one_that_acts(queue):
    connection = queue.connect(LEAD)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {ALICE}")
        cursor.execute(QUEUE)
        assert cursor.fetchall() == [(queue.hers, 1)]
    connection.close()


def test_the_view_shows_the_places_that_may_be_seen(queue):
    shown = "SELECT job_id, queue_position, waits_for FROM madlib_mop.job ORDER BY job_id"
    none = "a worker: none is running (madlib-mop work)"
    assert queue.rows(shown, role=MALLORY) == [(queue.his, 2, none)]
    assert queue.rows(shown, role=READER) == [(queue.hers, 1, none)]


def read_rows(node: dict) -> float:
    """Return how many rows the nodes of a plan have returned."""
    children = sum(map(read_rows, node.get("Plans", ())))
    return node["Actual Rows"] * node["Actual Loops"] + node.get("Rows Removed by Filter", 0) + children


@pytest.mark.parametrize("what", ["claim", "queue"])
def test_jobs_that_have_ended_are_not_read_for_the_next_one(queue, what):
    """300,000 of them slowed each claim from 16 to 338 ms."""
    queue.rows(
        "INSERT INTO madlib_mop.job_record (statement_id, owner, submitted_by, as_superuser, state, due_at, started_at,"
        f" ended_at) SELECT 1, '{ALICE}', '{ALICE}', false, 'finished', now(), now(), now()"
        " FROM generate_series(1, 20000)"
    )
    queue.rows("ANALYZE madlib_mop.job_record")
    query = _NEXT if what == "claim" else queue.value("SELECT prosrc FROM pg_proc WHERE proname = 'job_queue'")
    plan = queue.value(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
    assert read_rows(plan[0]["Plan"]) < 500
