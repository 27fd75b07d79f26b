"""Exports are more than predictions: only the owner, and roles that the owner lets, get the weights of a name."""

import pytest

from tests.helpers.inference import User, weights_of
from tests.helpers.registry import X, number_net, write_numbers
from tests.helpers.security.attacks import refusal_of, user

OWNER, TEAM, EXPORTS, PREDICTS, SEES, DEPLOYS, STRANGER = (
    f"{word}_of_exports" for word in ("owner", "team", "exports", "predicts", "sees", "deploys", "stranger")
)
EXPORT = "SELECT madlib_mop.export_model('hidden@1', format => 'safetensors')"
PARTS = "SELECT * FROM madlib_mop.export_parts('hidden@1', format => 'safetensors')"
CARD = "SELECT madlib_mop.model_card('hidden@1')"
REPORT = "SELECT madlib_mop.report('hidden@1')"


@pytest.fixture(scope="module")
def models(db, keras):
    """A registered model of the owner; each other role has one right. All may call all functions."""
    for role in (OWNER, TEAM, EXPORTS, PREDICTS, SEES, DEPLOYS, STRANGER):
        user(db, role)
    owner = User(db.connect(OWNER))
    owner.rows(f"SET search_path = {OWNER}")
    write_numbers(owner, keras, "numbers", [7.0])
    owner.rows("SELECT madlib_mop.register('hidden', 'numbers', 1, 'a secret note')")
    for role, privilege in ((EXPORTS, "export"), (PREDICTS, "predict"), (SEES, "see"), (DEPLOYS, "deploy")):
        owner.rows("SELECT madlib_mop.grant_model('hidden', %s, %s)", role, privilege)
    owner.connection.close()
    db.weights = weights_of(number_net(keras, 7.0))
    return db


def test_the_owner_and_a_role_with_the_right_export(models):
    for role in (OWNER, EXPORTS):
        data = bytes(models.value(EXPORT, role=role))
        assert models.weights[-4:] in data and b"a secret note" in data
        assert bytes(models.value(PARTS, role=role)) == data
    assert models.rows("SELECT * FROM madlib_mop.version_content", role=EXPORTS) == []  # by the function only
    error = refusal_of(models, f"SELECT madlib_mop.predict('hidden@1', NULL, {X})", role=EXPORTS)
    assert error.sqlstate == "42501"


@pytest.mark.parametrize("role", [PREDICTS, SEES, DEPLOYS])
def test_rights_to_predict_to_see_and_to_deploy_are_no_right_to_export(models, role):
    for statement, function in ((EXPORT, "export_model"), (PARTS, "export_parts")):
        error = refusal_of(models, statement, role=role)
        assert (error.sqlstate, error.message) == (
            "42501", f"{function}: you may use registered model hidden, but not export it",
        )  # fmt: skip
        assert error.hint.endswith("grant_model('hidden', 'your_role', 'export');")


def test_a_stranger_finds_no_name_and_reads_no_table(models):
    for statement in (EXPORT, PARTS, CARD, REPORT):
        assert refusal_of(models, statement, role=STRANGER).sqlstate == "22023", statement
    for call in ("export_model", "model_card"):
        error = refusal_of(models, f"SELECT madlib_mop.{call}('{OWNER}.numbers', 1)", role=STRANGER)
        assert error.sqlstate in ("42501", "42P01"), error


def test_a_card_needs_the_right_to_see(models):
    for role in (OWNER, EXPORTS, SEES, DEPLOYS):
        assert "a secret note" in models.value(CARD, role=role), role
    error = refusal_of(models, CARD, role=PREDICTS)
    assert (error.sqlstate, error.message) == (
        "42501", "model_card: you may use registered model hidden, but not see its card",
    )  # fmt: skip


def test_a_report_by_name_needs_the_right_to_see(models):
    error = refusal_of(models, REPORT, role=PREDICTS)
    assert error.sqlstate == "42501"
    assert error.message == "report: you may use registered model hidden, but not see its run"
    assert "has no run" in refusal_of(models, REPORT, role=SEES).message


def test_a_revoked_right_ends_exports_and_members_of_the_owner_have_it(models):
    models.rows("SELECT madlib_mop.revoke_model('hidden', %s, 'export')", [EXPORTS], role=OWNER)
    try:
        assert refusal_of(models, EXPORT, role=EXPORTS).sqlstate == "22023"
    finally:
        models.rows("SELECT madlib_mop.grant_model('hidden', %s, 'export')", [EXPORTS], role=OWNER)
    models.rows(f"GRANT {OWNER} TO {TEAM}")
    try:
        assert models.weights[-4:] in bytes(models.value(EXPORT, role=TEAM))
    finally:
        models.rows(f"REVOKE {OWNER} FROM {TEAM}")


def test_without_grant_use_nobody_calls_the_functions(models):
    nobody = "nobody_of_exports"
    models.cluster.create_role(nobody)
    for statement in (EXPORT, PARTS, CARD):
        assert refusal_of(models, statement, role=nobody).sqlstate == "42501"
