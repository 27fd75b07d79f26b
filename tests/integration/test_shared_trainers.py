"""Sessions of one role share trainers where there are many of them; each gets the answers that it gets alone."""

import os
import signal
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.helpers.faults import alive, children, forkservers
from tests.helpers.inference import User
from tests.integration.test_scalar_predict import wait_until

N_SESSIONS = 12
ROWS = (
    "SELECT id, madlib_mop.predict_class('churn', 1, c), madlib_mop.predict('churn', 1, c) FROM customers AS c"
    " WHERE id = %s"
)


@pytest.fixture(scope="module")
def shared(churn_db):
    """The database, whose model two roles may use."""
    for role in ("sharer", "other"):
        churn_db.connect(role).close()
        churn_db.rows(f"SELECT madlib_mop.grant_use('{role}'); GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    return churn_db


def trainers(db) -> set[int]:
    """Return the shared trainers of the database's server: they have sockets, where others have pipes."""
    parents, found = set(forkservers(db)), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) in parents and any(
                str(link.readlink()).startswith("socket:") for link in (process / "fd").iterdir()
            ):
                found.add(int(process.name))
        except OSError:
            pass
    return found


def trainers_of(user: User) -> list[int]:
    """Return the trainers that were started for a session, those that it shares too."""
    return children(user.connection.info.backend_pid, "madlib_mop.trainer")


def sessions(stack: ExitStack, db, role: str, n: int) -> list[User]:
    return [User(stack.enter_context(closing(db.connect(role)))) for _ in range(n)]


def test_many_sessions_that_predict_at_once_get_the_bits_of_one_alone(shared):
    ids = [number for (number,) in shared.rows("SELECT id FROM customers ORDER BY 1 LIMIT 25")]
    with ExitStack() as stack:
        (one,) = sessions(stack, shared, "sharer", 1)
        expected = {number: one.rows(ROWS, number) for number in ids}
        assert all(len(rows) == 1 for rows in expected.values())
        wrong, users = [], sessions(stack, shared, "sharer", N_SESSIONS)

        def run(user: User) -> None:
            wrong.extend(number for number in ids if user.rows(ROWS, number) != expected[number])

        threads = [threading.Thread(target=run, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert 1 <= len(trainers(shared)) <= 2


def test_another_role_gets_trainers_of_its_own(shared):
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        for user in sessions(stack, shared, "sharer", 4):
            user.rows(ROWS, 1)
        first = trainers(shared)
        for user in sessions(stack, shared, "other", 1):
            user.rows(ROWS, 1)
        assert first < trainers(shared)


def test_a_session_that_predicts_as_another_role_shares_no_trainer_any_more(shared):
    """A function of the other role, SECURITY DEFINER, predicts in this role's sessions; no trainer has rows of both."""
    shared.rows("CREATE SCHEMA lent; GRANT ALL ON SCHEMA lent TO other; GRANT USAGE ON SCHEMA lent TO sharer")
    shared.rows(
        "CREATE FUNCTION lent.score(n integer) RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public AS"
        " $$ SELECT madlib_mop.predict_class('churn', 1, c) FROM customers AS c WHERE id = n $$",
        role="other",
    )
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 4)
        for user in users:
            user.rows(ROWS, 1)
        before = trainers(shared)
        changed = users[-1]
        answer = changed.value("SELECT lent.score(1)")
        (own,) = trainers_of(changed)
        assert own not in before and [answer] == [row[1] for row in changed.rows(ROWS, 1)]
        assert trainers_of(changed) == [own]
        changed.connection.close()
        wait_until(lambda: not alive(own))
        assert users[0].rows(ROWS, 1) and trainers(shared) == before


def test_sessions_of_another_login_share_no_trainer_after_set_role(shared):
    shared.rows("GRANT other TO sharer")
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        for user in sessions(stack, shared, "other", 4):
            user.rows(ROWS, 1)
        before = trainers(shared)
        (changed,) = sessions(stack, shared, "sharer", 1)
        changed.rows("SET ROLE other")
        changed.rows(ROWS, 1)
        assert not before & set(trainers_of(changed)) and len(trainers(shared)) == len(before) + 1
    shared.rows("REVOKE other FROM sharer")


@pytest.mark.parametrize("begin", ["", "BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ"])
def test_a_right_that_is_revoked_ends_predictions_though_the_trainer_has_the_model(shared, begin):
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 3)
        if begin:
            for user in users:
                user.rows(begin)
        expected = [user.rows(ROWS, 1) for user in users]
        assert expected == [user.rows(ROWS, 1) for user in users]
        shared.rows("REVOKE SELECT ON churn FROM sharer")
        try:
            assert {user.refused(user.rows, ROWS, 1).sqlstate for user in users} == {"42501"}
        finally:
            shared.rows("GRANT SELECT ON churn TO sharer")
        if begin:
            for user in users:
                user.rows("ROLLBACK")
        assert [user.rows(ROWS, 1) for user in users] == expected


def test_the_others_go_on_when_a_session_is_cancelled_or_ends(shared):
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 6)
        expected = [user.rows(ROWS, 1) for user in users]
        before = trainers(shared)
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        canceller = threading.Timer(0.2, users[0].connection.cancel)
        canceller.start()
        assert users[0].refused(users[0].rows, ROWS, 1).sqlstate == "57014"
        canceller.join()
        for pid in before:
            os.kill(pid, signal.SIGCONT)
        users[1].connection.close()
        assert [user.rows(ROWS, 1) for user in (users[0], *users[2:])] == [expected[0], *expected[2:]]
        assert trainers(shared) == before
    wait_until(lambda: trainers(shared) == set())


def test_sessions_see_no_error_when_their_trainer_is_killed_before_it_works_for_them(shared):
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 6)
        expected = [user.rows(ROWS, 1) for user in users]
        before = trainers(shared)
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        killer = threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGKILL) for pid in before])
        killer.start()  # one of them waits then
        assert [user.rows(ROWS, 1) for user in users] == expected
        killer.join()
        assert len(trainers(shared)) == 2 and not trainers(shared) & before


def test_a_session_that_asks_for_much_has_a_trainer_of_its_own(shared):
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 3)
        expected = [user.rows(ROWS, 1) for user in users]
        before = trainers(shared)
        explained = (
            "SELECT count(*) FROM customers AS c, madlib_mop.explain_prediction('churn', c, 1,"
            " background => 'customers', n_background => 3, n_permutations => 1) WHERE id = 1"
        )
        assert users[2].value(explained) > 0
        assert [user.rows(ROWS, 1) for user in users] == expected
        assert len(set(trainers_of(users[2])) - before) == 1 and trainers(shared) == before


def test_a_role_keeps_its_trainer_under_another_name_but_another_role_of_the_same_name_does_not_get_it(shared):
    shared.rows("CREATE ROLE renamed")
    grants = (
        "SELECT madlib_mop.grant_use('renamed'); GRANT SELECT ON ALL TABLES IN SCHEMA public TO renamed;"
        " GRANT renamed TO sharer"
    )
    shared.rows(grants)
    wait_until(lambda: trainers(shared) == set())
    with ExitStack() as stack:
        (user,) = sessions(stack, shared, "sharer", 1)
        user.rows("SET ROLE renamed")
        expected = user.rows(ROWS, 1)
        before = trainers(shared)
        shared.rows("ALTER ROLE renamed RENAME TO named_anew")
        assert user.rows(ROWS, 1) == expected and trainers(shared) == before and len(before) == 1
        shared.rows("DROP OWNED BY named_anew; DROP ROLE named_anew; CREATE ROLE named_anew")
        shared.rows(grants.replace("renamed", "named_anew"))
        user.rows("SET ROLE named_anew")
        assert user.rows(ROWS, 1) == expected
        assert trainers(shared) & before == set() and len(trainers_of(user)) == 1
    shared.rows("DROP OWNED BY named_anew; DROP ROLE named_anew")


def test_a_superuser_can_have_each_session_use_a_trainer_of_its_own(shared):
    wait_until(lambda: trainers(shared) == set())
    shared.rows("INSERT INTO madlib_mop.setting VALUES ('share_trainers', 'off')")
    try:
        with ExitStack() as stack:
            users = sessions(stack, shared, "sharer", 3)
            users[0].rows("SET madlib_mop.share_trainers = on")
            answers = [user.rows(ROWS, 1) for user in users]
            assert answers == answers[:1] * 3 and len(answers[0]) == 1
            assert trainers(shared) == set() and [len(trainers_of(user)) for user in users] == [1, 1, 1]
    finally:
        shared.rows("DELETE FROM madlib_mop.setting WHERE name = 'share_trainers'")


def test_a_model_that_gives_way_to_those_of_other_sessions_is_loaded_again(shared, keras):
    owner = User(shared.connect())
    owner.write_models("small", {1: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])})
    weights = "set_byte(model_weights, 0, n)"  # one more bit or so: alike models are one
    owner.rows(f"INSERT INTO small SELECT n, {weights}, model_arch FROM small, generate_series(2, 65) AS n")
    owner.rows("INSERT INTO small_info SELECT n, compile_params, fit_params, metrics_type, loss_type, status FROM"
               " small_info, generate_series(2, 65) AS n")  # fmt: skip
    owner.rows("GRANT SELECT ON small, small_info, small_summary TO sharer")
    owner.connection.close()
    query = "SELECT madlib_mop.predict('small', %s, ARRAY[1, 2]::real[])"
    with ExitStack() as stack:
        users = sessions(stack, shared, "sharer", 3)
        expected = [user.value(query, 1) for user in users]
        before = trainers(shared)
        for key in range(2, 66):
            users[2].value(query, key)
        assert [user.value(query, 1) for user in users[:2]] == expected[:2]
        assert [len(trainers_of(user)) for user in users[:2]] == [1, 1] and trainers(shared) == before
