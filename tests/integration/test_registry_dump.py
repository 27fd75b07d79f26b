"""A dump and a restore keep registered models: versions, aliases with their history, rights and challengers."""

import pytest

from tests.helpers.dumps import restored_copy
from tests.helpers.inference import User
from tests.helpers.registry import X, answer, write_numbers

TABLES = ("registered_model", "model_grant", "model_version", "version_detail", "version_content", "version_part",
          "model_alias", "alias_change", "model_challenger", "challenger_batch", "registry_change", "recording_consent",
          "recording_change")  # fmt: skip
#: Of those, the ones whose rows do not outlive the statement.
PASSING = ("registry_change", "recording_change")
READER = "reader_of_registry_dump"


@pytest.fixture(scope="module")
def made(db, keras):
    db.cluster.create_role(READER)
    user = User(db.connect())
    write_numbers(user, keras, "numbers", [1.0, 2.0, 3.0])
    for version in (1, 2, 3):
        user.rows("SELECT madlib_mop.register('dumped', 'numbers', %s, 'a note')", version)
        user.rows("SELECT madlib_mop.set_alias('dumped', 'champion', %s)", version)
    db.rows(
        "INSERT INTO madlib_mop.version_part SELECT version_id, 0, weights FROM madlib_mop.version_content"
        " JOIN madlib_mop.model_version USING (version_id) WHERE version = 2; UPDATE madlib_mop.version_content"
        " SET weights = NULL WHERE version_id IN (SELECT version_id FROM madlib_mop.version_part)"
    )
    user.rows("SELECT madlib_mop.set_challenger('dumped', 'champion', 1, 1)")
    user.rows("SELECT madlib_mop.grant_model('dumped', %s, 'predict')", READER)
    db.rows("SELECT madlib_mop.allow_recording('dumped')", role=READER)
    assert answer(user, "dumped@champion") == 3.0
    user.connection.close()
    return db


@pytest.fixture(scope="module")
def restored(made):
    """The database restored from its dump, without the table of models."""
    made.rows("DROP TABLE numbers, numbers_info, numbers_summary")
    with restored_copy(made) as copy:
        yield copy


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_kept(made, restored, table):
    query = f"SELECT md5(coalesce(string_agg(t::text, '' ORDER BY t::text), '')), count(*) FROM madlib_mop.{table} t"
    before = made.rows(query)
    assert restored.rows(query) == before and (before[0][1] > 0) == (table not in PASSING)


def test_it_predicts_rolls_back_and_goes_on_there(restored):
    reader, user = User(restored.connect(READER)), User(restored.connect())
    assert reader.value(f"SELECT madlib_mop.predict('dumped@champion', NULL, {X})") == [3.0]
    assert reader.refused(reader.rows, "SELECT * FROM madlib_mop.version_content").sqlstate == "42501"
    assert user.value("SELECT madlib_mop.rollback('dumped', 'champion')") == 2
    assert answer(user, "dumped@2") == 2.0
    assert user.value("SELECT madlib_mop.rollback('dumped', 'champion')") == 1
    newest = user.value("SELECT max(change_id) FROM madlib_mop.alias_change")
    user.rows("SELECT madlib_mop.set_alias('dumped', 'other', 2)")
    assert user.value("SELECT max(change_id) FROM madlib_mop.alias_change") > newest
    for session in (reader, user):
        session.connection.close()
