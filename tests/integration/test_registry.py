"""The registry: versions, aliases, rollbacks and conditions; predictions by a registered name in every form."""

import threading
import time

import pytest

from tests.helpers.faults import wait_for
from tests.helpers.inference import User
from tests.helpers.registry import WIDTH, X, answer, write_classifiers, write_numbers
from tests.helpers.sessions import undone

pytestmark = pytest.mark.one_session

ONE_HOT = "(SELECT array_agg((i % 3 = j)::integer::real ORDER BY j) FROM generate_series(0, 2) j)"


@pytest.fixture(scope="module")
def user(db, keras):
    """A session with tables of models: numbers (1.0, 2.0, 3.0) and classifiers (right, first class, wrong)."""
    user = User(db.connect())
    write_numbers(user, keras, "numbers", [1.0, 2.0, 3.0])
    write_classifiers(user, keras, "classifiers", [1.0, 0.0, -1.0])
    user.rows(
        "CREATE TABLE points AS SELECT i AS id, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS y,"
        f" {ONE_HOT} AS x FROM generate_series(1, 60) i"
    )
    user.rows("SET madlib_mop.segments = 2; SELECT madlib.training_preprocessor_dl('points', 'packed', 'y', 'x')")
    yield user
    user.connection.close()


@pytest.fixture(scope="module")
def churn(user):
    """The name churn with versions 1, 2 and 3, which predict 1.0, 2.0 and 3.0."""
    for key in (1, 2, 3):
        assert user.value("SELECT madlib_mop.register('churn', 'numbers', %s, %s)", key, f"note {key}") == key
    return user


@pytest.fixture(scope="module")
def kinds(user):
    """The name kinds with three versions of a classifier, the best one as champion."""
    for key in (1, 2, 3):
        user.rows("SELECT madlib_mop.register('kinds', 'classifiers', %s)", key)
    user.rows("SELECT madlib_mop.set_alias('kinds', 'champion', 1)")
    return user


@pytest.mark.parametrize("form", ["predict", "predict_class", "predict_named"])
def test_a_name_and_an_array_are_enough(kinds, form):
    query = "SELECT madlib_mop.{}({}, x) FROM points ORDER BY id"
    by_key = kinds.rows(query.format(form, "'kinds@2', NULL"))
    assert kinds.rows(query.format(form, "'Kinds@2'")) == by_key != kinds.rows(query.format(form, "'kinds@1'"))
    many = "SELECT * FROM madlib_mop.{}_rows({}, ARRAY(SELECT x FROM points ORDER BY id))"
    assert kinds.rows(many.format(form, "'kinds@2'")) == by_key


def test_a_name_alone_is_its_newest_and_never_a_table(kinds):
    """A table cannot take the place of a model, nor a model that of a table."""
    write = "SELECT madlib_mop.predict_class('only', x) FROM points"
    kinds.rows("SELECT madlib_mop.register('only', 'classifiers', 1), madlib_mop.register('only', 'classifiers', 2)")
    kinds.rows('CREATE TABLE "only" AS SELECT * FROM classifiers')
    error = kinds.refused(kinds.rows, write)
    assert error.message == "predict: only has no alias newest. Received: 'only@newest'"
    for version in (2, 1):
        kinds.rows("SELECT madlib_mop.set_alias('only', 'newest', %s)", version)
        assert kinds.rows(write) == kinds.rows(write.replace("only", f"only@{version}"))
    error = kinds.refused(kinds.rows, write.replace("only", "classifiers"))
    assert "no registered model of this name" in error.message and "pass mst_key too" in error.hint
    error = kinds.refused(kinds.rows, write.replace("only", '"classifiers"'))
    assert error.sqlstate == "22023" and "pass mst_key too" in error.hint
    assert error.message == "predict: model must be the name of a registered model. Received: '\"classifiers\"'"


def test_a_name_alone_in_a_view_and_in_a_prepared_statement(kinds):
    kinds.rows("SELECT madlib_mop.register('viewed', 'classifiers', 1), madlib_mop.set_alias('viewed', 'newest', 1)")
    kinds.rows("CREATE VIEW viewing AS SELECT id, madlib_mop.predict_class('viewed', x) AS y FROM points")
    kinds.rows("PREPARE ask_by_name (text, real[]) AS SELECT madlib_mop.predict_class($1, $2)")
    assert kinds.value("SELECT count(*) FROM viewing JOIN points USING (id, y)") == 60
    for _ in range(7):  # the server changes to a plan without the values
        assert kinds.value("EXECUTE ask_by_name ('viewed', '{1, 0, 0}')") == "a"


def history(user, name, alias):
    return user.rows(
        "SELECT change, from_version, to_version, is_current FROM madlib_mop.alias_history"
        " WHERE name = %s AND alias = %s ORDER BY change_id",
        *(name, alias),
    )


def test_a_version_predicts_as_its_table_did_and_stays_when_the_table_goes(churn, keras):
    write_numbers(churn, keras, "passing", [7.0])
    assert churn.value("SELECT madlib_mop.register('passing', 'passing', note => 'the only model')") == 1
    expected = churn.value(f"SELECT madlib_mop.predict('passing', 1, {X})")
    churn.rows("UPDATE passing SET model_weights = model_weights || '\\x00'; DROP TABLE passing, passing_info,"
               " passing_summary")
    assert churn.value(f"SELECT madlib_mop.predict('passing@1', NULL, {X})") == expected == [7.0]
    row = (
        "SELECT version, aliases, note, model_table, mst_key, run_id, n_bytes, length(digest) FROM"
        " madlib_mop.registry"
    )
    assert churn.rows(f"{row} WHERE name = 'passing'") == [
        (1, [], "the only model", "public.passing", 1, None, 4 * (WIDTH + 1), 64)
    ]


def test_every_form_of_predict_takes_a_registered_name(kinds):
    p = "madlib_mop.predict"
    table = "'classifiers', 1"
    for name in ("'kinds@champion', NULL", "'kinds@1', NULL", "' Kinds@CHAMPION ', NULL"):
        for form in (
            "SELECT {p}({m}, x) FROM points WHERE id = 7",
            "SELECT {p}({m}, ARRAY[madlib_mop.array_bytes(x)]) FROM points WHERE id = 7",
            "SELECT {p}_class({m}, x) FROM points WHERE id = 7",
            "SELECT {p}_named({m}, x) FROM points WHERE id = 7",
            "SELECT {p}_rows({m}, array_agg(x ORDER BY id)) FROM points",
            "SELECT {p}_class_rows({m}, array_agg(x ORDER BY id)) FROM points",
            "SELECT {p}_named_rows({m}, array_agg(x ORDER BY id)) FROM points",
        ):
            assert kinds.rows(form.format(p=p, m=name)) == kinds.rows(form.format(p=p, m=table)), form
    kinds.predict("kinds@champion", "points", "by_name", pred_type="response")
    assert kinds.value("SELECT count(*) FROM by_name JOIN points USING (id) WHERE class_value <> y") == 0
    kinds.evaluate("kinds@3", "packed", "of_worst")
    assert kinds.rows("SELECT metric, metrics_type FROM of_worst") == [(0.0, ["accuracy"])]


def test_a_table_whose_name_has_an_at_sign_is_a_table(churn):
    """A registered model of the same spelling does not take its place."""
    churn.rows("CREATE TABLE \"churn@1\" AS TABLE numbers; CREATE TABLE \"churn@1_info\" AS TABLE numbers_info;"
               " CREATE TABLE \"churn@1_summary\" AS TABLE numbers_summary")  # fmt: skip
    assert churn.value(f"SELECT madlib_mop.predict('\"churn@1\"', 3, {X})") == [3.0]
    assert churn.value(f"SELECT madlib_mop.predict('public.\"churn@1\"', 2, {X})") == [2.0]
    assert answer(churn, "churn@1") == 1.0
    assert churn.value("SELECT madlib_mop.register('of-table', '\"churn@1\"', 2)") == 1
    assert answer(churn, "of-table@1") == 2.0


def test_two_rollbacks_go_back_two_versions_and_stay_in_the_history(churn):
    for version in (1, 2, 3):
        churn.rows("SELECT madlib_mop.set_alias('churn', 'twice', %s, %s)", version, f"because {version}")
    assert answer(churn, "churn@twice") == 3.0
    assert churn.value("SELECT madlib_mop.rollback('churn', 'twice', reason => 'complaints')") == 2
    assert answer(churn, "churn@twice") == 2.0
    assert churn.value("SELECT madlib_mop.rollback('churn', 'twice')") == 1
    assert answer(churn, "churn@twice") == 1.0
    error = churn.refused(churn.rows, "SELECT madlib_mop.rollback('churn', 'twice')")
    assert (error.sqlstate, error.message) == ("22023", "rollback: churn@twice can go back 0 steps. Received: 1")
    assert history(churn, "churn", "twice") == [
        ("set_alias", None, 1, True), ("set_alias", 1, 2, False), ("set_alias", 2, 3, False),
        ("rollback", 3, 2, False), ("rollback", 2, 1, False),
    ]  # fmt: skip
    who = (
        "SELECT changed_by = current_user, reason FROM madlib_mop.alias_history WHERE alias = 'twice' ORDER BY"
        " change_id"
    )
    reasons = ["because 1", "because 2", "because 3", "complaints", None]
    assert churn.rows(who) == [(True, reason) for reason in reasons]


def test_after_a_rollback_a_new_version_can_be_set_and_rolled_back(churn):
    for version in (1, 2):
        churn.rows("SELECT madlib_mop.set_alias('churn', 'branch', %s)", version)
    assert churn.value("SELECT madlib_mop.rollback('churn', 'branch')") == 1
    churn.rows("SELECT madlib_mop.set_alias('churn', 'branch', 3)")
    churn.rows("SELECT madlib_mop.set_alias('churn', 'branch', 3)")  # nothing changes, and no step is added
    assert churn.value("SELECT madlib_mop.rollback('churn', 'branch')") == 1, "not to version 2, which was rolled back"
    churn.rows("SELECT madlib_mop.set_alias('churn', 'branch', 2); SELECT madlib_mop.set_alias('churn', 'branch', 3)")
    assert churn.value("SELECT madlib_mop.rollback('churn', 'branch', 2)") == 1
    churn.rows("SELECT madlib_mop.drop_alias('churn', 'branch', 'the end')")
    assert history(churn, "churn", "branch")[-1][:3] == ("drop_alias", 1, None)
    churn.rows("SELECT madlib_mop.set_alias('churn', 'branch', 2)")
    assert churn.refused(churn.rows, "SELECT madlib_mop.rollback('churn', 'branch')").sqlstate == "22023"


def test_the_version_that_answers_is_known_in_the_same_statement(churn):
    churn.rows("SELECT madlib_mop.set_alias('churn', 'known', 2)")
    query = (
        f"SELECT DISTINCT madlib_mop.predict('churn@known', NULL, {X}), madlib_mop.predict_version('churn@known'),"
        " madlib_mop.predict_version('churn@3') FROM generate_series(1, 50)"
    )
    assert churn.rows(query) == [([2.0], 2, 3)]
    churn.rows("PREPARE ask AS " + query)
    churn.rows("SELECT madlib_mop.set_alias('churn', 'known', 1)")
    assert churn.rows("EXECUTE ask") == [([1.0], 1, 3)]


def test_a_transaction_sees_its_own_changes_and_others_see_them_after_it(db, churn):
    churn.rows("SELECT madlib_mop.set_alias('churn', 'own', 1)")
    with undone(db, User) as other:
        assert answer(other, "churn@own") == 1.0
        other.rows("SELECT madlib_mop.set_alias('churn', 'own', 2)")
        assert answer(other, "churn@own") == 2.0 and answer(churn, "churn@own") == 1.0
        other.rows("SELECT madlib_mop.register('uncommitted', 'numbers', 3)")
        assert answer(other, "uncommitted@1") == 3.0
    assert answer(churn, "churn@own") == 1.0
    assert churn.refused(answer, churn, "uncommitted@1").sqlstate == "22023"
    with undone(db, User) as other:
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert answer(other, "churn@own") == 1.0
        churn.rows("SELECT madlib_mop.set_alias('churn', 'own', 3)")
        assert answer(other, "churn@own") == 1.0, "the snapshot of the transaction"
        assert answer(churn, "churn@own") == 3.0


def test_sessions_that_register_at_once_get_versions_of_their_own(db, churn):
    versions = []

    def register():
        session = User(db.connect())
        versions.extend(session.value("SELECT madlib_mop.register('at-once', 'numbers', 1)") for _ in range(3))
        session.connection.close()

    register_twice = [threading.Thread(target=register) for _ in range(2)]
    for thread in register_twice:
        thread.start()
    for thread in register_twice:
        thread.join()
    assert sorted(versions) == [1, 2, 3, 4, 5, 6]


def test_two_sessions_that_create_an_alias_at_once_are_both_in_its_history(db, churn):
    first, second = User(db.connect()), User(db.connect())
    first.rows("BEGIN; SELECT madlib_mop.set_alias('churn', 'raced', 1)")
    waits = threading.Thread(target=second.rows, args=("SELECT madlib_mop.set_alias('churn', 'raced', 2)",))
    waits.start()
    locked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%raced%%'"
    wait_for(lambda: churn.rows(locked), what="the second session")
    first.rows("COMMIT")
    waits.join()
    for session in (first, second):
        session.connection.close()
    assert churn.value("SELECT madlib_mop.rollback('churn', 'raced')") == 1


@pytest.mark.parametrize("n, before, after, message", [
    (1, "set_alias('raced-1', 'a', 2)", "drop_version('raced-1', 2)",
     "drop_version: version 2 of raced-1 has the alias a"),
    (2, "drop_version('raced-2', 2)", "set_alias('raced-2', 'a', 2)", "set_alias: raced-2 has no version 2"),
    (3, "drop_registered('raced-3')", "set_alias('raced-3', 'a', 2)",
     "set_alias: there is no registered model of this name that you may use. Received: 'raced-3'"),
    (4, "drop_registered('raced-4')", "register('raced-4', 'numbers', 1)", None),
])  # fmt: skip
def test_a_change_of_a_model_sees_the_change_that_it_has_waited_for(db, churn, n, before, after, message):
    for _ in range(2):
        churn.rows(f"SELECT madlib_mop.register('raced-{n}', 'numbers', 1)")
    first, second = User(db.connect()), User(db.connect())
    first.rows(f"BEGIN; SELECT madlib_mop.{before}")
    found = []

    def change():
        if message is None:
            found.append(second.value(f"SELECT madlib_mop.{after}"))
        else:
            found.append(second.refused(second.rows, f"SELECT madlib_mop.{after}").message)

    waits = threading.Thread(target=change)
    waits.start()
    locked = f"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%raced-{n}%%'"
    wait_for(lambda: churn.rows(locked), what="the second session")
    first.rows("COMMIT")
    waits.join()
    for session in (first, second):
        session.connection.close()
    assert found == [message or 1]


def test_predictions_in_a_read_only_transaction(churn):
    churn.rows("BEGIN READ ONLY")
    try:
        assert answer(churn, "churn@2") == 2.0
    finally:
        churn.rows("ROLLBACK")
    churn.rows("SET default_transaction_read_only = on")
    try:
        for call in ("register('churn', 'numbers', 1)", "deploy('churn', 'champion', 1)"):
            error = churn.refused(churn.rows, f"SELECT madlib_mop.{call}")
            assert error.sqlstate == "25006" and "read-only transaction" in error.message, error
    finally:
        churn.rows("RESET default_transaction_read_only")


def test_what_is_aliased_cannot_be_dropped_and_numbers_are_not_used_again(churn):
    name = "'dropped'"
    for _ in range(3):
        churn.rows(f"SELECT madlib_mop.register({name}, 'numbers', 1)")
    churn.rows(f"SELECT madlib_mop.set_alias({name}, 'one', 1); SELECT madlib_mop.set_alias({name}, 'one', 2)")
    error = churn.refused(churn.rows, f"SELECT madlib_mop.drop_version({name}, 2)")
    assert (error.sqlstate, error.message) == ("2BP01", "drop_version: version 2 of dropped has the alias one")
    error = churn.refused(churn.rows, f"SELECT madlib_mop.drop_registered({name})")
    assert (error.sqlstate, error.message) == ("2BP01", "drop_registered: dropped has the aliases one")
    assert churn.refused(churn.rows, "DELETE FROM madlib_mop.model_version WHERE name = 'dropped'").sqlstate == "23503"
    churn.rows(f"SELECT madlib_mop.drop_version({name}, 1); SELECT madlib_mop.drop_version({name}, 3)")
    error = churn.refused(churn.rows, f"SELECT madlib_mop.rollback({name}, 'one')")
    assert error.message == "rollback: 1 step(s) back is version 1 of dropped, which was dropped"
    assert churn.value(f"SELECT madlib_mop.register({name}, 'numbers', 1)") == 4
    churn.rows(f"SELECT madlib_mop.drop_alias({name}, 'one'); SELECT madlib_mop.drop_registered({name})")
    count = "SELECT (SELECT count(*) FROM madlib_mop.registry WHERE name = 'dropped') + (SELECT count(*)"
    assert churn.value(f"{count} FROM madlib_mop.alias_history WHERE name = 'dropped')") == 0
    orphans = (
        "SELECT count(*) FROM madlib_mop.version_content c LEFT JOIN madlib_mop.model_version v USING"
        " (version_id)"
    )
    assert churn.value(f"{orphans} WHERE v.version_id IS NULL") == 0


@pytest.mark.slow
def test_a_deploy_checks_a_metric(kinds):
    def deploy(version, **conditions):
        given = "".join(f", {name} => %s" for name in conditions)
        call = f"SELECT madlib_mop.deploy('kinds', 'gated', %s{given})"
        kinds.notices()
        return kinds.value(call, version, *conditions.values()), kinds.notices()

    packed = {"test_table": "packed", "metric": "accuracy"}
    done, said = deploy(2, at_least=0.9, **packed)
    assert (done, said) == (False, "NOTICE:  deploy: kinds@gated was not changed: version 2 has accuracy 0.333333,"
                                   " below 0.9\n")
    assert deploy(2, better_than_current=True, **packed) == (True, ""), "the first version of an alias has none to beat"
    done, said = deploy(3, better_than_current=True, test_table="packed")
    assert not done and "version 3 has accuracy 0, version 2 has 0.333333" in said
    assert deploy(1, better_than_current=True, at_least=0.99, reason="better", **packed) == (True, "")
    assert deploy(3, metric="loss", at_most=0.1, test_table="packed")[0] is False
    assert deploy(1, better_than_current=True, **packed)[1].endswith("it has version 1 already\n")
    assert deploy(2) == (True, "")
    assert kinds.value("SELECT madlib_mop.rollback('kinds', 'gated')") == 1
    rows = kinds.rows("SELECT change, to_version, reason, evidence FROM madlib_mop.alias_history WHERE alias = 'gated'"
                      " ORDER BY change_id")  # fmt: skip
    assert [row[:3] for row in rows] == [
        ("deploy", 2, None), ("deploy", 1, "better"), ("deploy", 2, None), ("rollback", 1, None)
    ]  # fmt: skip
    assert rows[1][3] == {
        "metric": "accuracy", "test_table": "public.packed", "value": 1.0, "at_least": 0.99, "at_most": None,
        "current_version": 2, "current_value": pytest.approx(1 / 3),
    }  # fmt: skip
    assert rows[2][3] is None


@pytest.mark.slow
def test_a_model_that_changes_while_its_baseline_is_read_is_not_registered(db, kinds, keras):
    write_classifiers(kinds, keras, "shifting", [1.0, 0.0])
    first, second = User(db.connect()), User(db.connect())
    first.rows("BEGIN; LOCK TABLE packed")
    register = "SELECT madlib_mop.register('shifted', 'shifting', 1, baseline => 'packed')"
    found = []
    waits = threading.Thread(target=lambda: found.append(second.refused(second.rows, register)))
    waits.start()
    locked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%shifted%%'"
    wait_for(lambda: kinds.rows(locked), what="the second session")
    first.rows("UPDATE shifting SET model_weights = (SELECT model_weights FROM shifting WHERE mst_key = 2)"
               " WHERE mst_key = 1; COMMIT")  # fmt: skip
    waits.join()
    for session in (first, second):
        session.connection.close()
    assert found[0].sqlstate == "55000" and "was changed while it was being read" in found[0].message, found
    assert kinds.rows("SELECT 1 FROM madlib_mop.registered_model WHERE name = 'shifted'") == []


def test_no_prediction_fails_while_an_alias_is_switched_a_hundred_times_a_second(db, churn):
    churn.rows("SELECT madlib_mop.set_alias('churn', 'busy', 1)")
    stop, failures, seen = threading.Event(), [], []
    query = (
        f"SELECT array_agg(DISTINCT p[1]), min(madlib_mop.predict_version('churn@busy')) FROM (SELECT"
        f" madlib_mop.predict('churn@busy', NULL, {X}) AS p FROM generate_series(1, 5)) AS rows"
    )

    def ask():
        session = User(db.connect())
        try:
            while not stop.is_set():
                ((values, version),) = session.rows(query)
                seen.append(version)
                if values != [float(version)]:
                    failures.append(f"one statement had {values}, but version {version}")
        except Exception as error:
            failures.append(repr(error))
        finally:
            session.connection.close()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        while len(seen) < 80 and not failures and time.monotonic() < deadline:
            time.sleep(0.05)  # all sessions have their trainers
        n_before, began, n_switches = len(seen), time.monotonic(), 0
        while time.monotonic() - began < 1:
            n_switches += 1
            churn.rows("SELECT madlib_mop.set_alias('churn', 'busy', %s)", 1 + n_switches % 3)
            time.sleep(max(0, began + n_switches / 100 - time.monotonic()))
        rate = n_switches / (time.monotonic() - began)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(f"{rate:.0f} switches a second, {len(seen) - n_before} statements meanwhile")
    assert failures == []
    assert set(seen[n_before:]) == {1, 2, 3} and rate > 50


@pytest.mark.slow
def test_aliases_and_versions_are_there_after_a_restart_of_the_server(db, churn):
    churn.rows("SELECT madlib_mop.set_alias('churn', 'kept', 1); SELECT madlib_mop.set_alias('churn', 'kept', 2)")
    churn.connection.close()
    db.cluster.stop_immediate()
    db.cluster.start()
    churn.connection = db.connect()
    assert answer(churn, "churn@kept") == 2.0
    assert churn.value("SELECT madlib_mop.rollback('churn', 'kept')") == 1 and answer(churn, "churn@kept") == 1.0
