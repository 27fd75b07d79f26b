"""Columns of images in ordinary tables: from a raw table to predictions in a view, beside numbers and categories."""

from contextlib import closing

import numpy as np
import psycopg2
import pytest

from madlib_mop.packing.decoder import decode_image
from tests.helpers.columns import content, pack_with, refusal
from tests.helpers.database import OneSession
from tests.helpers.images import BAD_FILES, N_PETS, encoded, make_pets
from tests.helpers.training import fit, one_thread

pytestmark = pytest.mark.one_session

SIDE = 12


@pytest.fixture(scope="module")
def pets(db):
    one_thread()
    with closing(OneSession(db)) as db:
        make_pets(db)
        db.rows("SELECT madlib_mop.propose_columns('pets', 'pets_columns', 'kind', exclude => '{id}')")
        photo = "SELECT role, kind, impute, indicator, encode, width FROM pets_columns WHERE name = 'photo'"
        db.proposed = db.rows(photo)
        db.rows(f"UPDATE pets_columns SET width = {SIDE} WHERE name = 'photo'")
        call = "pack_columns('pets', 'pets_packed', 'kind', columns => 'pets_columns', validation => 0.25, seed => 1)"
        pack_with(db, 1, call)
        yield db


@pytest.fixture(scope="module")
def trained(pets):
    pets.rows("SELECT madlib_mop.propose_networks('pets_packed', 'nets', 'configs', n_configs => 2, num_iterations=>4)")
    tables = {"source_table": "pets_packed", "validation_table": "pets_packed_validation"}
    fit(pets, "models", "configs", 4, **tables, seed=1)
    return pets


def files_of(db) -> dict[int, bytes | None]:
    return {number: photo and bytes(photo) for number, photo in db.rows("SELECT id, photo FROM pets")}


def test_images_are_proposed_and_their_size_is_editable(pets):
    assert pets.proposed == [("input", "image", "zero", True, "pixels", 64)]
    assert pets.value("SELECT reason FROM pets_columns WHERE name = 'photo'").startswith("Images, resized to 64 by 64")
    described = "SELECT kind, inputs, encoding, nulls, units FROM madlib_mop.describe_preprocessor('pets_packed')"
    assert pets.rows(f"{described} WHERE column_name = 'photo'") == [
        ("image", ["numbers", "photo"], "resized to 12 by 12 pixels, 3 channels (RGB)",
         "black, and a unit that says so", ["photo is NULL"])
    ]  # fmt: skip


def test_packed_images_are_those_that_pillow_decodes(pets):
    expected = [
        np.zeros((SIDE, SIDE, 3), np.uint8) if file is None else decode_image(file, (SIDE, SIDE, 3))
        for file in files_of(pets).values()
    ]
    parts = [content(pets, table) for table in ("pets_packed", "pets_packed_validation")]
    photos = np.concatenate([part["photo"] for part in parts])
    assert photos.dtype == np.uint8 and photos.shape == (N_PETS, SIDE, SIDE, 3)
    assert sorted(one.tobytes() for one in photos) == sorted(one.tobytes() for one in expected)
    null_unit = np.concatenate([part["numbers"] for part in parts])
    black = ~photos.reshape(N_PETS, -1).any(axis=1)
    assert black.sum() == N_PETS // 8
    assert any((null_unit[:, unit] == black).all() for unit in range(null_unit.shape[1]))


def test_a_single_image_for_validation_is_packed(pets):
    """Decoders are killed with the thread that started them: it must be the same one for both packed tables."""
    pets.rows("CREATE VIEW single AS SELECT p.*, id = (SELECT min(id) FROM pets WHERE photo IS NOT NULL) AS held_out"
              " FROM pets p")  # fmt: skip
    pets.rows("SELECT madlib_mop.pack_columns('single', 'most', 'kind', validation => 'held_out', seed => 1)")
    assert len(content(pets, "most_validation")["photo"]) == 1 and len(content(pets, "most")["photo"]) == N_PETS - 1


def test_the_packed_bits_depend_on_no_order_and_no_number_of_segments(pets):
    pets.rows("CREATE VIEW turned AS SELECT * FROM pets ORDER BY id * 31 % 48")
    call = "pack_columns('{}', '{}', 'kind', columns => 'pets_columns', seed => 1)"
    pack_with(pets, 1, call.format("pets", "one"))
    pack_with(pets, 3, call.format("turned", "three"))
    one, three = content(pets, "one"), content(pets, "three")
    assert all(one[name].tobytes() == three[name].tobytes() for name in one)


@pytest.mark.slow
def test_new_rows_are_packed_and_evaluated_by_the_recorded_preprocessor(trained):
    trained.rows("SELECT madlib.validation_preprocessor_dl('pets', 'again', '*', '*', 'pets_packed')")
    photos = content(trained, "again")["photo"]
    parts = [content(trained, table)["photo"] for table in ("pets_packed", "pets_packed_validation")]
    assert sorted(p.tobytes() for p in photos) == sorted(p.tobytes() for part in parts for p in part)
    trained.rows("SELECT madlib.madlib_keras_evaluate('models', 'again', 'evaluation', mst_key => 1)")
    right = trained.value("SELECT avg((madlib_mop.predict_class('models', 1, p) = kind)::int)::float8 FROM pets p")
    assert trained.value("SELECT metric FROM evaluation") == pytest.approx(right)


@pytest.mark.slow
def test_a_view_predicts_what_the_whole_table_gets(trained):
    trained.rows("SELECT madlib.madlib_keras_predict('models', 'pets', 'id', '*', 'predicted', mst_key => 1)")
    trained.rows(
        "CREATE VIEW scored AS SELECT id, madlib_mop.predict_class('models', 1, p) AS best,"
        " madlib_mop.predict_json('models', 1, p) AS each, madlib_mop.predict('models', 1, p) AS x FROM pets p"
    )
    whole = dict(trained.rows("SELECT id, prob FROM predicted WHERE class_value = 'cat'"))
    for number, best, each, values in trained.rows("SELECT * FROM scored"):
        assert values[0] == pytest.approx(whole[number], abs=1e-5) and each["cat"] == pytest.approx(values[0])
        assert best == ("cat" if values[0] > values[1] else "dog")
    assert len(whole) == N_PETS


@pytest.mark.slow
def test_ensembles_and_searches_take_tables_with_images(trained):
    trained.rows("SELECT * FROM madlib_mop.make_ensemble('models', 'pets_packed_validation', 'both')")
    assert trained.value("SELECT count(madlib_mop.predict_class('both', 1, p)) FROM pets p") == N_PETS
    found = trained.rows("SELECT model_id_list FROM madlib_mop.propose_search('pets_packed', 'nets')")
    assert found[0][0]


def test_transform_writes_arrays_of_pixels(pets):
    pets.rows("SELECT madlib_mop.transform('pets_packed', 'pets', 'pets_encoded', keep => 'id')")
    assert pets.rows("SELECT DISTINCT pg_typeof(photo)::text, array_dims(photo) FROM pets_encoded") == [
        ("smallint[]", f"[1:{SIDE}][1:{SIDE}][1:3]")
    ]


def refused(db, query: str, *parameters) -> str:
    with pytest.raises(psycopg2.Error) as caught:
        db.rows(query, parameters or None)
    text = str(caught.value)
    assert "internal error" not in text and "Traceback" not in text and caught.value.pgcode == "22023", text
    return text


CALLS = {
    "pack_columns": "SELECT madlib_mop.pack_columns('bad', 'bad_out', 'kind', columns => 'pets_columns')",
    "transform": "SELECT madlib_mop.transform('pets_packed', 'bad', 'bad_out')",
    "validation": "SELECT madlib.validation_preprocessor_dl('bad', 'bad_out', '*', '*', 'pets_packed')",
    "predict": "SELECT madlib.madlib_keras_predict('models', 'bad', 'id', '*', 'bad_out', mst_key => 1)",
    "one row": "SELECT madlib_mop.predict_class('models', 1, b) FROM bad b WHERE id = 1003",
}


@pytest.mark.parametrize("name", ["damaged", pytest.param("text", marks=pytest.mark.slow)])
def test_an_image_that_cannot_be_decoded_is_one_error_with_its_column_and_row(trained, name):
    file, words = BAD_FILES[name]
    trained.rows("DROP TABLE IF EXISTS bad; CREATE TABLE bad AS TABLE pets LIMIT 0")
    good = encoded(np.zeros((5, 5, 3), np.uint8))
    for number, photo in enumerate((good, None, good, file, good)):
        kind = "dog" if number % 2 else "cat"
        trained.rows("INSERT INTO bad VALUES (%s, %s, 1, 'x', %s)", [1000 + number, photo, kind])
    (ctid,) = trained.rows("SELECT ctid FROM bad WHERE id = 1003")[0]
    for call, query in CALLS.items():
        text = refused(trained, query)
        assert f"column 'photo' {words}" in text or (words in text and "column 'photo' is an image" in text), text
        if call == "predict":
            assert "(row with id = 1003)" in text
        elif call != "one row":
            assert f"(row with ctid {ctid})" in text
        assert trained.value("SELECT to_regclass('bad_out')") is None


def test_a_row_of_a_view_is_named_by_its_number(trained):
    trained.rows("CREATE VIEW bad_view AS SELECT id, CASE id WHEN 4 THEN '\\x00'::bytea ELSE photo END AS photo, age,"
                 " size, kind FROM pets ORDER BY id")  # fmt: skip
    text = refused(trained, CALLS["pack_columns"].replace("'bad'", "'bad_view'"))
    assert "column 'photo' is not a JPEG or PNG image (row 5 in reading order)" in text
    text = refused(trained, CALLS["transform"].replace("'bad'", "'bad_view'"))
    assert "(row 5 in reading order)" in text


def test_null_is_an_error_where_the_proposal_says_so(pets):
    pets.rows("CREATE TABLE strict_columns AS TABLE pets_columns")
    pets.rows("UPDATE strict_columns SET impute = 'error', indicator = false WHERE name = 'photo'")
    error = refusal(pets, "pack_columns('pets', 'strict', 'kind', columns => 'strict_columns')")
    assert "column 'photo' is NULL, and its impute is error" in str(error)
    pets.rows("CREATE VIEW shown AS SELECT * FROM pets WHERE photo IS NOT NULL")
    pets.rows("SELECT madlib_mop.pack_columns('shown', 'strict', 'kind', columns => 'strict_columns', seed => 1)")
    error = refusal(pets, "transform('strict', 'pets', 'strict_out')")
    assert "column 'photo' is NULL" in str(error)


@pytest.mark.slow
def test_a_column_of_another_type_than_at_packing_is_one_error(trained):
    trained.rows("CREATE VIEW retyped AS SELECT id, encode(photo, 'hex') AS photo, age, size, kind FROM pets")
    for name, query in CALLS.items():
        text = refused(trained, query.replace("'bad'", "'retyped'").replace("bad b WHERE id = 1003", "retyped b"))
        assert "'photo'" in text and ("bytea" in text or name == "pack_columns"), text


@pytest.mark.parametrize(("change", "words"), [
    ("width = 4", "width must be from 8 to 512"), ("width = 4096", "width must be from 8 to 512"),
    ("impute = 'mean'", "impute"), ("kind = 'number'", "kind"),
])  # fmt: skip
def test_a_proposal_that_makes_no_sense_is_refused(pets, change, words):
    pets.rows("DROP TABLE IF EXISTS edited; CREATE TABLE edited AS TABLE pets_columns")
    pets.rows(f"UPDATE edited SET {change} WHERE name = 'photo'")
    assert words in str(refusal(pets, "pack_columns('pets', 'never', 'kind', columns => 'edited')"))


def test_buffers_that_could_not_be_read_are_refused(pets):
    pets.rows("CREATE TABLE many AS SELECT NULL::bytea AS photo, i AS age, 'x'::text AS size, i % 2 = 0 AS kind"
              " FROM generate_series(1, 1500) i")  # fmt: skip
    pets.rows("INSERT INTO many VALUES (%s, 1, 'y', true)", [encoded(np.zeros((9, 9, 3), np.uint8))])
    pets.rows("SELECT madlib_mop.propose_columns('many', 'many_columns', 'kind')")
    pets.rows("UPDATE many_columns SET width = 512 WHERE name = 'photo'")
    error = refusal(pets, "pack_columns('many', 'out', 'kind', columns => 'many_columns', buffer_size => 100000)")
    assert "bytes of column 'photo', more than" in str(error)


def test_bytes_that_are_no_images_are_ignored_with_a_reason(pets):
    pets.rows("CREATE TABLE bytes AS SELECT int4send(i) AS code, i % 5 AS n, i % 2 = 0 AS y"
              " FROM generate_series(1, 50) i")  # fmt: skip
    pets.rows("SELECT madlib_mop.propose_columns('bytes', 'bytes_columns', 'y')")
    role, reason = pets.rows("SELECT role, reason FROM bytes_columns WHERE name = 'code'")[0]
    assert role == "ignored" and "no JPEG or PNG image" in reason
    pets.rows("SELECT madlib_mop.pack_columns('bytes', 'bytes_packed', 'y')")


def test_grey_images_are_packed_and_predicted_as_they_are(db):
    """Pictures of 28 x 28 grey pixels became 64 x 64 pixels of three channels."""
    random = np.random.default_rng(5)
    db.rows("CREATE TABLE digits (id integer, picture bytea, y integer)")
    pixels = random.integers(0, 256, (40, 28, 28), np.uint8)
    files = [encoded(picture) for picture in pixels]
    db.rows("INSERT INTO digits SELECT n - 1, f, (n - 1) %% 2 FROM unnest(%s) WITH ORDINALITY AS files (f, n)", [files])
    db.rows("SELECT madlib_mop.propose_columns('digits', 'digits_columns', 'y')")
    assert db.rows("SELECT encode, width FROM digits_columns WHERE name = 'picture'") == [("grey_pixels", 28)]
    pack_with(db, 1, "pack_columns('digits', 'digits_packed', 'y', exclude => '{id}', seed => 1)")
    packed = content(db, "digits_packed")["picture"]
    assert packed.dtype == np.uint8 and packed.shape == (40, 28, 28, 1)
    assert {row.tobytes() for row in packed} == {row.tobytes() for row in pixels}
    db.rows("SELECT madlib_mop.propose_networks('digits_packed', 'digits_networks', 'digits_configs', n_configs => 1)")
    fit(db, "digits_models", "digits_configs", 1, source_table="digits_packed", seed=1)
    found = db.rows("SELECT madlib_mop.predict_class('digits_models', 1, d) FROM digits AS d")
    assert {answer for (answer,) in found} <= {"0", "1"} and len(found) == 40
