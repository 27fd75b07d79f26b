"""Promise 7 for the registry: rights for each name, weights that a role may use but not read, no way around them."""

import json

import pytest

from tests.helpers.inference import User
from tests.helpers.registry import X, write_numbers
from tests.helpers.security.attacks import refusal, user

OWNER, TEAM, PREDICTS, SEES, DEPLOYS, TRAINS, STRANGER = (
    f"{word}_of_registry" for word in ("owner", "team", "predicts", "sees", "deploys", "trains", "stranger")
)
TABLES = ("registered_model", "model_grant", "model_version", "version_detail", "version_content", "version_part",
          "model_alias", "alias_change", "model_challenger", "challenger_batch", "registry_change", "recording_consent",
          "recording_change")  # fmt: skip
#: Of those with rows, what roles with the right to see a model see.
SEEN = ("version_detail", "alias_change", "challenger_batch", "alias_history", "challenger_comparison")
VIEWS = ("registry", "alias_history", "version_lineage", "challenger_comparison")
#: Moves the weights of version 2 into parts.
IN_PARTS = """
INSERT INTO madlib_mop.version_part (version_id, part, data)
SELECT c.version_id, n, substring(c.weights FROM 1 + 8 * n FOR 8)
FROM madlib_mop.version_content c JOIN madlib_mop.model_version v USING (version_id), generate_series(0, 1) AS n
WHERE v.name = 'secret' AND v.version = 2;
UPDATE madlib_mop.version_content SET weights = NULL
WHERE version_id IN (SELECT version_id FROM madlib_mop.version_part)
"""
PREDICT = f"SELECT madlib_mop.predict('secret@champion', NULL, {X})"


@pytest.fixture(scope="module")
def models(db, keras):
    """The owner's model with two versions; roles with one right each."""
    for role in (OWNER, DEPLOYS, TRAINS, STRANGER):
        user(db, role)
    for role in (TEAM, PREDICTS, SEES):
        db.cluster.create_role(role)
    owner = User(db.connect(OWNER))
    owner.rows(f"SET search_path = {OWNER}")
    write_numbers(owner, keras, "numbers", [1.0, 2.0])
    for key in (1, 2):
        owner.rows("SELECT madlib_mop.register('secret', 'numbers', %s, 'a note')", key)
    db.rows(IN_PARTS)
    owner.rows("SELECT madlib_mop.set_alias('secret', 'champion', 1)")
    owner.rows("SELECT madlib_mop.set_challenger('secret', 'champion', 2, 1)")
    owner.rows(PREDICT)
    db.rows("SELECT madlib_mop.grant_model('secret', %s, 'predict')", [PREDICTS])
    db.rows("SELECT madlib_mop.grant_model('secret', %s, 'see')", [SEES])
    owner.rows("SELECT madlib_mop.grant_model('secret', %s, 'deploy')", DEPLOYS)
    yield db
    owner.connection.close()


def session(db, role):
    return User(db.connect(role))


def counts(db, role: str) -> dict[str, int | None]:
    """Return the number of rows that a role sees of each table and view; None without the right to read it."""
    found = {}
    connection = db.connect(role)
    for name in (*TABLES, *VIEWS):
        with connection.cursor() as cursor:
            cursor.execute("SELECT has_table_privilege(%s, 'SELECT')", [f"madlib_mop.{name}"])
            if cursor.fetchone()[0]:
                cursor.execute(f"SELECT count(*) FROM madlib_mop.{name}")
                found[name] = cursor.fetchone()[0]
            else:
                found[name] = None
    connection.close()
    return found


def test_a_role_that_may_predict_predicts_and_reads_no_weights(models):
    predicts = session(models, PREDICTS)
    assert predicts.value(PREDICT) == [1.0]
    assert predicts.value("SELECT madlib_mop.predict_version('secret@champion')") == 1
    for table in (*SEEN, "version_content", "version_part", "registry", "registry_change"):
        assert predicts.refused(predicts.rows, f"SELECT * FROM madlib_mop.{table}").sqlstate == "42501", table
    assert predicts.refused(predicts.rows, f"SELECT * FROM {OWNER}.numbers").sqlstate == "42501"
    assert predicts.rows("SELECT madlib_mop_calls._read_version()::text") == [("",)]
    for call in ("set_alias('secret', 'champion', 2)", "register('mine', 'numbers')", "grant_model('secret',"
                                                                                      " current_user, 'see')"):
        assert predicts.refused(predicts.rows, f"SELECT madlib_mop.{call}").sqlstate == "42501", call
    predicts.connection.close()
    seen = {name: n for name, n in counts(models, PREDICTS).items() if n is not None}
    assert seen == {
        "registered_model": 1, "model_grant": 1, "model_version": 2, "model_alias": 1, "model_challenger": 1,
        "recording_consent": 0,
    }  # fmt: skip


def test_a_role_that_may_see_sees_and_does_not_predict(models):
    sees = session(models, SEES)
    row = "SELECT version, aliases, owner, note, digest IS NULL FROM madlib_mop.registry ORDER BY version"
    assert sees.rows(row) == [(1, ["champion"], OWNER, "a note", False), (2, [], OWNER, "a note", False)]
    assert sees.rows("SELECT change, to_version, changed_by FROM madlib_mop.alias_history") == [("set_alias", 1, OWNER)]
    assert sees.value("SELECT n_rows FROM madlib_mop.challenger_comparison") >= 1
    assert sees.refused(sees.rows, PREDICT).sqlstate == "42501"
    assert sees.refused(sees.rows, "SELECT * FROM madlib_mop.version_content").sqlstate == "42501"
    sees.connection.close()
    models.rows(f"SELECT madlib_mop.grant_predict('{SEES}', '{OWNER}.numbers')")  # the functions, not this name
    sees = session(models, SEES)
    error = sees.refused(sees.rows, PREDICT)
    assert (error.sqlstate, error.message) == ("42501", "predict: you may see registered model secret, but not"
                                                        " predict with it")
    sees.connection.close()


def test_a_role_with_another_right_sees_no_history(models):
    models.rows("SELECT madlib_mop.grant_model('secret', %s, 'predict')", [TRAINS])
    seen = counts(models, TRAINS)
    assert [seen[name] for name in (*SEEN, "version_content", "version_part")] == [0] * 7
    assert 0 not in [counts(models, SEES)[name] for name in SEEN]
    row = "SELECT version, aliases, note, digest, metrics FROM madlib_mop.registry WHERE version = 1"
    assert models.rows(row, role=TRAINS) == [(1, ["champion"], None, None, None)]
    assert models.value(PREDICT, role=TRAINS) == [1.0]


def test_a_role_that_may_predict_gets_the_model_from_no_command_of_the_driver(models):
    """The command predict answers the session's Python with the architecture and the preprocessor."""
    models.rows("SELECT madlib_mop.grant_model('secret', %s, 'predict')", [TRAINS])
    trains = session(models, TRAINS)
    assert trains.value(PREDICT) == [1.0]
    call = "SELECT madlib_mop_calls.call('predict', json_build_object('model_table', %s::text), '')"
    for name in ("secret@champion", "secret@1", f"{OWNER}.numbers"):
        error = trains.refused(trains.rows, call, name)
        assert (error.sqlstate, error.message) == ("0A000", "predict: this command cannot be called from SQL"), name
    trains.connection.close()


def test_a_role_that_may_deploy_moves_aliases_and_reads_no_weights(models):
    deploys = session(models, DEPLOYS)
    assert deploys.value(PREDICT) == [1.0]
    deploys.rows("SELECT madlib_mop.set_alias('secret', 'shadow', 2)")
    assert deploys.value("SELECT madlib_mop.deploy('secret', 'shadow', 1)") is True
    assert deploys.value("SELECT madlib_mop.rollback('secret', 'shadow')") == 2
    deploys.rows("SELECT madlib_mop.drop_alias('secret', 'shadow')")
    assert deploys.rows("SELECT * FROM madlib_mop.version_content") == []
    assert deploys.rows("SELECT * FROM madlib_mop.version_part") == []
    for call in ("drop_version('secret', 2)", "drop_registered('secret')", f"grant_model('secret', '{DEPLOYS}',"
                                                                           f" 'predict')",
                 f"revoke_model('secret', '{PREDICTS}', 'predict')"):  # fmt: skip
        error = deploys.refused(deploys.rows, f"SELECT madlib_mop.{call}")
        assert error.sqlstate == "42501" and "may use registered model secret, but not change it" in error.message
    n_batches = counts(models, OWNER)["challenger_batch"]
    assert counts(models, DEPLOYS) == {
        "registered_model": 1, "model_grant": 1, "model_version": 2, "version_detail": 2, "version_content": 0,
        "version_part": 0, "model_alias": 1, "alias_change": 5, "model_challenger": 1, "challenger_batch": n_batches,
        "registry_change": None, "recording_consent": 0, "recording_change": None,
        "registry": 2, "alias_history": 5, "version_lineage": 0, "challenger_comparison": 1,
    }  # fmt: skip
    deploys.connection.close()


def test_a_stranger_sees_nothing_and_takes_no_name(models):
    assert {n for n in counts(models, STRANGER).values()} == {0, None}
    stranger = session(models, STRANGER)
    for call in ("set_alias('secret', 'champion', 2)", "rollback('secret', 'champion')", "drop_version('secret', 2)",
                 "drop_registered('secret')", f"grant_model('secret', '{STRANGER}', 'predict')",
                 f"predict('secret@1', NULL, {X})", f"predict('secret@champion', NULL, {X})"):  # fmt: skip
        error = stranger.refused(stranger.rows, f"SELECT madlib_mop.{call}")
        assert (error.sqlstate, "there is no registered model of this name" in error.message) == ("22023", True), error
    stranger.connection.close()


def test_a_name_of_another_role_cannot_be_registered(models, keras):
    stranger = session(models, STRANGER)
    stranger.rows(f"SET search_path = {STRANGER}")
    write_numbers(stranger, keras, "evil", [666.0])
    error = stranger.refused(stranger.rows, "SELECT madlib_mop.register('secret', 'evil')")
    assert (error.sqlstate, error.message) == ("42501", "register: secret is a registered model of another role")
    stranger.rows("SELECT madlib_mop.register('evil', 'evil')")
    stranger.connection.close()
    assert models.value(PREDICT, role=PREDICTS) == [1.0]


def test_no_statement_reaches_the_tables_around_the_functions(models):
    """All that a role with grant_use can write is a change in its own name, and content of a version of its own."""
    stranger = session(models, STRANGER)
    content = "(SELECT version_id FROM madlib_mop.model_version LIMIT 1)"
    ours = models.value("SELECT version_id::text FROM madlib_mop.model_version WHERE name = 'secret' AND version = 2")
    for statement in (
        f"INSERT INTO madlib_mop.registry_change (change, name, alias, version, changed_by) VALUES ('set_alias',"
        f" 'secret', 'champion', 2, '{OWNER}')",
        f"INSERT INTO madlib_mop.version_content (version_id, document, weights) VALUES ('{ours}', '{{}}', '')",
        f"INSERT INTO madlib_mop.version_part (version_id, part, data) VALUES ('{ours}', 2, '')",
        "INSERT INTO madlib_mop.model_grant TABLE madlib_mop.model_grant",
        "UPDATE madlib_mop.model_alias SET version = 2",
        f"UPDATE madlib_mop.version_content SET weights = '' WHERE version_id = {content}",
        "DELETE FROM madlib_mop.alias_change",
        "DELETE FROM madlib_mop.registry_change",
        "TRUNCATE madlib_mop.model_alias",
        "DO $$ BEGIN LOCK TABLE madlib_mop.model_alias IN ACCESS EXCLUSIVE MODE; END $$",
        "DO $$ BEGIN LOCK TABLE madlib_mop.registry_change IN ROW EXCLUSIVE MODE; END $$",
        "SELECT madlib_mop_calls._change_registry()",
        "SELECT madlib_mop_internal.usable_version('x', 'secret', 1)",
        "SELECT nextval('madlib_mop.alias_change_change_id_seq')",
        "SELECT name FROM madlib_mop.model_alias FOR UPDATE",
    ):
        error = refusal(stranger.connection, statement)
        assert error.sqlstate == "42501", (statement, error)
        assert error.message.startswith("permission denied") or " madlib_mop.version_" in statement, (statement, error)
    before = models.rows("SELECT * FROM madlib_mop.model_alias")
    error = refusal(
        stranger.connection,
        "INSERT INTO madlib_mop.registry_change (change, name, alias, version) VALUES ('set_alias', 'secret',"
        " 'champion', 2)",
    )
    assert error.sqlstate == "22023" and models.rows("SELECT * FROM madlib_mop.model_alias") == before
    stranger.connection.close()


def test_details_that_a_view_could_not_show_are_refused(models):
    """Superusers, and roles that a hostile owner lets see his model, query the lineage of all versions at once."""
    stranger = session(models, STRANGER)
    insert = "INSERT INTO madlib_mop.registry_change (change, name, details) VALUES ('register', 'forged', %s)"
    whole = {"digest": "", "n_bytes": 0, "model_arch": {}}
    for details in (
        {"lineage": 5}, {"lineage": None}, {"metrics": [1]}, {"lineage": {"visits": 1}}, {"lineage": {"visits": None}},
        {"lineage": {"visits": [1]}}, {"lineage": {"visits": [{"epoch": "a"}]}},
        {"lineage": {"visits": [{"ended_at": "13/02/2026"}]}},
    ):  # fmt: skip
        error = refusal(stranger.connection, insert, [json.dumps({**whole, **details})])
        assert error.sqlstate in ("22023", "22P02", "22007", "22008"), (details, error)
    stranger.rows("SET DateStyle = 'ISO, DMY'")  # here, this is a date
    visits = [{"epoch": 1, "ended_at": "13/02/2026"}, {"epoch": 2, "ended_at": "now", "more": [1]}]
    stranger.rows(insert, json.dumps({**whole, "lineage": {"visits": visits}}))
    lineage = "SELECT epoch, ended_at > '2026-02-12' FROM madlib_mop.version_lineage WHERE name = 'forged'"
    assert models.rows(lineage) == stranger.rows(lineage) == [(1, True), (2, True)]
    stranger.rows("SELECT madlib_mop.drop_registered('forged')")
    stranger.connection.close()


def test_the_owner_cannot_change_the_content_of_a_version(models):
    owner = session(models, OWNER)
    one = "(SELECT version_id FROM madlib_mop.model_version WHERE name = 'secret' AND version = 1)"
    for statement, state in (
        (f"INSERT INTO madlib_mop.version_content (version_id, document, weights) VALUES ({one}, '{{}}', '')", "23505"),
        (f"UPDATE madlib_mop.version_content SET document = '{{}}' WHERE version_id = {one}", "42501"),
        (f"DELETE FROM madlib_mop.version_content WHERE version_id = {one}", "42501"),
        (f"INSERT INTO madlib_mop.version_part (version_id, part, data) VALUES ({one}, 0, '')", "42501"),
        ("INSERT INTO madlib_mop.version_part (version_id, part, data) TABLE madlib_mop.version_part", "23505"),
        ("UPDATE madlib_mop.version_part SET data = ''", "42501"),
        ("DELETE FROM madlib_mop.version_part", "42501"),
    ):
        assert refusal(owner.connection, statement).sqlstate == state, statement
    assert owner.value("SELECT count(*) FROM madlib_mop.version_content") == 2
    owner.connection.close()


def test_members_of_the_owner_act_as_the_owner_and_revoked_rights_end_with_the_next_statement(models):
    models.rows(f"GRANT {OWNER} TO {TEAM}")
    try:
        team = session(models, TEAM)
        assert team.value(PREDICT) == [1.0] and team.value("SELECT count(*) FROM madlib_mop.version_content") == 2
        team.connection.close()
    finally:
        models.rows(f"REVOKE {OWNER} FROM {TEAM}")
    predicts = session(models, PREDICTS)
    assert predicts.value(PREDICT) == [1.0]  # its trainer has the model now
    models.rows("SELECT madlib_mop.revoke_model('secret', %s, 'predict')", [PREDICTS], role=OWNER)
    try:
        assert predicts.refused(predicts.rows, PREDICT).sqlstate == "22023"
    finally:
        models.rows("SELECT madlib_mop.grant_model('secret', %s, 'predict')", [PREDICTS], role=OWNER)
    assert predicts.value(PREDICT) == [1.0]
    predicts.connection.close()


def test_an_owner_lets_only_those_predict_who_may_call_the_functions(models):
    owner = session(models, OWNER)
    for privilege in ("predict", "see", "deploy"):
        hint = "grant_use(" if privilege == "deploy" else "grant_model('secret'"
        error = owner.refused(owner.rows, f"SELECT madlib_mop.grant_model('secret', '{TEAM}', '{privilege}')")
        assert (error.sqlstate, hint in error.hint) == ("42501", True), error
    assert models.value("SELECT count(*) FROM madlib_mop.model_grant WHERE role = %s::regrole", [TEAM]) == 0
    owner.connection.close()


def test_a_dropped_role_takes_nothing_with_it_and_its_name_gets_nothing(models, keras):
    passing = "passing_of_registry"
    models.rows(f"CREATE ROLE {passing}; SELECT madlib_mop.grant_use('{passing}'); CREATE SCHEMA {passing}")
    owner = User(models.connect())
    write_numbers(owner, keras, f"{passing}.numbers", [5.0])
    owner.rows(f"GRANT ALL ON SCHEMA {passing} TO {passing}; GRANT ALL ON ALL TABLES IN SCHEMA {passing} TO {passing}")
    owner.connection.close()
    models.rows(f"GRANT {passing} TO {STRANGER}")
    stranger = session(models, STRANGER)
    stranger.rows(f"SET ROLE {passing}; SELECT madlib_mop.register('passing', '{passing}.numbers')")
    stranger.rows(f"SELECT madlib_mop.grant_model('passing', '{DEPLOYS}', 'predict')")
    stranger.connection.close()
    models.rows("SELECT madlib_mop.grant_model('secret', %s, 'predict')", [passing])
    models.rows(f"DROP SCHEMA {passing} CASCADE; DROP OWNED BY {passing}; DROP ROLE {passing}")
    ask = f"SELECT madlib_mop.predict('passing@1', NULL, {X})"
    assert models.value(ask, role=DEPLOYS) == [5.0] and models.value(PREDICT, role=PREDICTS) == [1.0]
    models.rows(f"CREATE ROLE {passing}; SELECT madlib_mop.grant_use('{passing}'); GRANT {passing} TO {STRANGER}")
    stranger = session(models, STRANGER)
    stranger.rows(f"SET ROLE {passing}")
    for statement in (ask, PREDICT, "SELECT madlib_mop.drop_registered('passing')"):
        assert stranger.refused(stranger.rows, statement).sqlstate == "22023", statement
    stranger.connection.close()
    models.rows(f"DROP OWNED BY {passing}; DROP ROLE {passing}; SELECT madlib_mop.drop_registered('passing')")


def test_a_view_of_another_role_reads_the_model_with_the_rights_of_who_asks(models):
    models.rows(f"CREATE VIEW {OWNER}.scored AS SELECT madlib_mop.predict('secret@champion', NULL, {X}) AS p;"
                f" GRANT USAGE ON SCHEMA {OWNER} TO {STRANGER}, {PREDICTS};"
                f" GRANT SELECT ON {OWNER}.scored TO {STRANGER}, {PREDICTS}")  # fmt: skip
    assert models.value(f"SELECT p FROM {OWNER}.scored", role=PREDICTS) == [1.0]
    stranger = session(models, STRANGER)
    assert stranger.refused(stranger.rows, f"SELECT p FROM {OWNER}.scored").sqlstate == "22023"
    stranger.connection.close()
