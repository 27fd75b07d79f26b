"""A type is identified by its schema and name: reading a table runs no cast, check or operator of another user."""

import numpy as np
import pytest

from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.security.attacks import refusal_of, user
from tests.helpers.training import script

pytestmark = pytest.mark.one_session

ALICE, MALLORY = "alice", "mallory"
# Each type has the name of a built-in one, and casts to and from types that our statements might use.
TYPES = """
CREATE TABLE mallory.log (what text, role text DEFAULT current_user);
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
GRANT SELECT, INSERT ON mallory.log TO PUBLIC;
CREATE FUNCTION mallory.spy(what text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO mallory.log (what) VALUES (what); RETURN true; END $$;
CREATE TYPE mallory.float4 AS (n pg_catalog.float4);
CREATE FUNCTION mallory.f(v mallory.float4) RETURNS pg_catalog.float4 LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('float4'); RETURN v.n; END $$;
CREATE CAST (mallory.float4 AS pg_catalog.float4) WITH FUNCTION mallory.f(mallory.float4) AS IMPLICIT;
CREATE FUNCTION mallory.t(v mallory.float4) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('float4 as text'); RETURN 'x'; END $$;
CREATE CAST (mallory.float4 AS pg_catalog.text) WITH FUNCTION mallory.t(mallory.float4) AS IMPLICIT;
CREATE TYPE mallory.bytea AS (n pg_catalog.bytea);
CREATE FUNCTION mallory.b(v mallory.bytea) RETURNS pg_catalog.bytea LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('bytea'); RETURN v.n; END $$;
CREATE CAST (mallory.bytea AS pg_catalog.bytea) WITH FUNCTION mallory.b(mallory.bytea) AS IMPLICIT;
CREATE DOMAIN mallory.int4 AS pg_catalog.int4 CHECK (mallory.spy('domain'));
CREATE TYPE mallory.mood AS ENUM ('sad', 'it''s "ok", {so}', 'glad');
CREATE FUNCTION mallory.m(v mallory.mood) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('mood as text'); RETURN 'x'; END $$;
CREATE CAST (mallory.mood AS pg_catalog.text) WITH FUNCTION mallory.m(mallory.mood) AS IMPLICIT;
CREATE FUNCTION mallory.ms(v mallory.mood[]) RETURNS pg_catalog.text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('moods as text'); RETURN '{x}'; END $$;
CREATE CAST (mallory.mood[] AS pg_catalog.text) WITH FUNCTION mallory.ms(mallory.mood[]) AS IMPLICIT;
CREATE FUNCTION mallory.tm(v pg_catalog.text) RETURNS mallory.mood LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('text as mood'); RETURN 'sad'; END $$;
CREATE CAST (pg_catalog.text AS mallory.mood) WITH FUNCTION mallory.tm(pg_catalog.text) AS IMPLICIT;
CREATE FUNCTION mallory.tms(v pg_catalog.text) RETURNS mallory.mood[] LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('text as moods'); RETURN '{sad}'; END $$;
CREATE CAST (pg_catalog.text AS mallory.mood[]) WITH FUNCTION mallory.tms(pg_catalog.text) AS IMPLICIT;
CREATE FUNCTION mallory.mi(v mallory.mood) RETURNS pg_catalog.int8 LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.spy('mood as int8'); RETURN 1; END $$;
CREATE CAST (mallory.mood AS pg_catalog.int8) WITH FUNCTION mallory.mi(mallory.mood) AS IMPLICIT;
CREATE FUNCTION mallory.eq(a mallory.mood, b mallory.mood) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RETURN mallory.spy('operator'); END $$;
CREATE OPERATOR mallory.= (LEFTARG = mallory.mood, RIGHTARG = mallory.mood, FUNCTION = mallory.eq);
CREATE FUNCTION mallory.eq(a pg_catalog.int4, b pg_catalog.int4) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RETURN mallory.spy('operator of int4'); END $$;
CREATE OPERATOR mallory.= (LEFTARG = pg_catalog.int4, RIGHTARG = pg_catalog.int4, FUNCTION = mallory.eq);

CREATE TABLE mallory.rows AS
    SELECT g AS id, ARRAY[g, 1]::pg_catalog.float4[] AS x, ROW(g)::mallory.float4 AS number,
           ARRAY[ROW(g)::mallory.float4] AS numbers, ROW('')::mallory.bytea AS image, g::mallory.int4 AS n,
           ('{sad,"it''s \\"ok\\", {so}",glad}'::pg_catalog.text[])[g % 3 + 1] AS word, NULL::mallory.mood AS mood,
           (g % 2)::pg_catalog.int4 AS y
    FROM pg_catalog.generate_series(1, 12) g;
UPDATE mallory.rows SET mood = 'sad' WHERE word = 'sad';
UPDATE mallory.rows SET mood = 'glad' WHERE word = 'glad';
UPDATE mallory.rows SET mood = $$it's "ok", {so}$$ WHERE mood IS NULL;
DELETE FROM mallory.log;
GRANT SELECT ON mallory.rows TO PUBLIC;
"""
COMPILE = "loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['accuracy']"


@pytest.fixture(scope="module")
def types(db):
    for role in (ALICE, MALLORY):
        user(db, role)
    script(db, TYPES, role=MALLORY)
    return db


@pytest.fixture
def alice(types):
    connection = types.connect(ALICE)
    session = User(connection)
    session.rows("SET search_path = alice, mallory; SET madlib_mop.segments = 1")
    yield session
    assert types.rows("SELECT * FROM mallory.log") == []
    connection.close()


@pytest.mark.parametrize("column", ["number", "numbers", "image", "n"])
@pytest.mark.parametrize("y", [False, True])
def test_a_users_type_of_a_known_name_is_not_packed(alice, column, y):
    names = (column, "x") if y else ("y", column)
    error = alice.refused(alice.rows, "SELECT madlib.training_preprocessor_dl('mallory.rows', 'p', %s, %s)", *names)
    assert error.sqlstate == "22023" and "cannot be packed" in error.message
    assert "Received type: mallory." in error.message


def test_labels_of_a_users_enum_are_packed_without_its_casts(alice):
    alice.rows("SELECT madlib.training_preprocessor_dl('mallory.rows', 'p', 'mood', 'x', num_classes := ARRAY[4])")
    held = "textin(array_out(mood_class_values))::text[], pg_typeof(mood_class_values)::text"
    ((values, kind),) = alice.rows(f"SELECT {held} FROM p_summary")
    assert (values, kind) == (["sad", 'it\'s "ok", {so}', "glad", None], "mood[]")
    alice.rows("SELECT madlib.validation_preprocessor_dl('mallory.rows', 'v', 'mood', 'x', 'p')")
    packed = alice.rows("SELECT encode(mood, 'hex'), mood_shape FROM p ORDER BY 1")
    assert len(packed) == 1 and packed[0][1] == [12, 4]


def test_class_values_of_another_type_than_the_labels_are_refused(types, alice):
    """The owner wrote the summary: its types may be any text."""
    script(
        types,
        "SELECT madlib.training_preprocessor_dl('mallory.rows', 'mallory.liar', 'mood', 'x')",
        "UPDATE mallory.liar_summary SET dependent_vartype = ARRAY['integer'];"
        "GRANT SELECT ON mallory.liar, mallory.liar_summary TO PUBLIC; DELETE FROM mallory.log",
        role=MALLORY,
    )
    call = "SELECT madlib.validation_preprocessor_dl('mallory.rows', 'w', 'y', 'x', 'mallory.liar')"
    error = alice.refused(alice.rows, call)
    assert error.sqlstate == "22023" and "was packed from" in error.message


@pytest.mark.parametrize("suffix, column", [("", "x"), ("_summary", "normalizing_const")])
def test_a_packed_table_with_a_users_type_is_refused(types, alice, suffix, column):
    kind = "mallory.bytea" if column == "x" else "mallory.float4"
    name = f"odd_{column}"
    script(
        types,
        f"SELECT madlib.training_preprocessor_dl('mallory.rows', 'mallory.{name}', 'y', 'x')",
        f"CREATE VIEW mallory.{name}_v AS SELECT * FROM mallory.{name};"
        f"CREATE TABLE mallory.{name}_v_summary AS TABLE mallory.{name}_summary;",
        f"DROP VIEW mallory.{name}_v; CREATE TABLE mallory.{name}_v AS TABLE mallory.{name};"
        f"ALTER TABLE mallory.{name}_v{suffix} DROP COLUMN {column};"
        f"ALTER TABLE mallory.{name}_v{suffix} ADD COLUMN {column} {kind};"
        f"UPDATE mallory.{name}_v{suffix} SET {column} = ROW(NULL)::{kind};"
        "GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO PUBLIC; DELETE FROM mallory.log",
        role=MALLORY,
    )
    for call in (
        f"madlib.validation_preprocessor_dl('mallory.rows', 'w', 'y', 'x', 'mallory.{name}_v')",
        f"madlib.madlib_keras_evaluate('none', 'mallory.{name}_v', 'o')",
        f"madlib.madlib_keras_fit_multiple_model('mallory.{name}_v', 'o', 'none', 1)",
    ):
        error = alice.refused(alice.rows, f"SELECT {call}")
        assert error.sqlstate == "22023" and f"of type {kind}, which is user-defined" in error.message, (call, error)


def models(keras, session, name: str, values_type: str) -> None:
    """Write a model of two inputs and three classes."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="softmax")])
    facts = ModelTable(
        compile_params=COMPILE,
        dependent=[Dependent(name="mood", vartype="mallory.mood", values=["sad", "glad", 'it\'s "ok", {so}'],
                             values_type=values_type)],
    )  # fmt: skip
    session.write_one_model(name, model, facts)


def test_predictions_keep_an_enums_values_without_its_casts(types, alice, keras):
    mallory = User(types.connect(MALLORY))
    models(keras, mallory, "mallory.guess", "mallory.mood[]")
    mallory.rows("GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO PUBLIC; DELETE FROM mallory.log")
    mallory.connection.close()
    alice.rows(
        "SELECT madlib.madlib_keras_predict('mallory.guess', 'mallory.rows', 'mood', 'x', 'by_mood')",
    )
    found = alice.rows("SELECT DISTINCT textin(enum_out(mood)), class_value FROM by_mood ORDER BY 1, 2")
    labels = ["glad", 'it\'s "ok", {so}', "sad"]
    assert found == [(one, other) for one in labels for other in labels]


@pytest.mark.parametrize("column", ["number", "n"])
def test_an_id_of_a_users_type_is_refused(types, alice, column, keras):
    mallory = User(types.connect(MALLORY))
    models(keras, mallory, f"mallory.by_{column}", "text[]")
    mallory.rows("GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO PUBLIC; DELETE FROM mallory.log")
    mallory.connection.close()
    call = f"SELECT madlib.madlib_keras_predict('mallory.by_{column}', 'mallory.rows', '{column}', 'x', 'never')"
    error = alice.refused(alice.rows, call)
    assert error.sqlstate == "22023" and "which another role created" in error.message


def test_an_id_of_ones_own_domain_stays_one(types, alice, keras):
    mallory = User(types.connect(MALLORY))
    models(keras, mallory, "mallory.by_own", "text[]")
    mallory.rows("GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO PUBLIC; DELETE FROM mallory.log")
    mallory.connection.close()
    alice.rows("CREATE DOMAIN alice.key AS integer CHECK (value > 0)")
    alice.rows("CREATE TABLE mine AS SELECT id::alice.key AS id, x FROM mallory.rows")
    alice.rows("SELECT madlib.madlib_keras_predict('mallory.by_own', 'mine', 'id', 'x', 'of_mine')")
    assert alice.value("SELECT DISTINCT pg_typeof(id)::text FROM of_mine") == "key"


def test_a_selection_with_a_users_type_is_refused(types, alice, keras):
    document = keras.Sequential([keras.Input((2,))]).to_json()
    script(
        types,
        "CREATE TABLE mallory.arch (model_id integer, model_arch json, model_weights mallory.bytea)",
        "CREATE TABLE mallory.mst (mst_key integer, model_id integer, compile_params mallory.float4, fit_params text)",
        "CREATE TABLE mallory.mst_summary AS SELECT 'mallory.arch'::text AS model_arch_table,"
        " NULL::text AS object_table",
        "SELECT madlib.training_preprocessor_dl('mallory.rows', 'mallory.packed', 'y', 'x')",
        "GRANT SELECT ON ALL TABLES IN SCHEMA mallory TO PUBLIC; DELETE FROM mallory.log",
        role=MALLORY,
    )
    types.rows("INSERT INTO mallory.arch VALUES (1, %s, ROW('')::mallory.bytea)", [document], MALLORY)
    types.rows("INSERT INTO mallory.mst VALUES (1, 1, ROW(1)::mallory.float4, '')", role=MALLORY)
    for call in (
        "madlib.madlib_keras_fit_multiple_model('mallory.packed', 'o', 'mallory.mst', 1)",
        "madlib.madlib_keras_fit('mallory.packed', 'o', 'mallory.arch', 1, 'c', 'f', 1)",
        "madlib.madlib_keras_predict_byom('mallory.arch', 1, 'mallory.rows', 'id', 'x', 'o')",
    ):
        error = alice.refused(alice.rows, f"SELECT {call}")
        assert error.sqlstate == "22023" and "which is user-defined" in error.message, (call, error)


def test_a_superusers_own_types_are_as_good_as_the_servers(types):
    script(
        types,
        "CREATE DOMAIN public.score AS real; CREATE TYPE public.kind AS ENUM ('a', 'b')",
        "CREATE TABLE public.known AS SELECT g AS id, ARRAY[g]::real[] AS x, 'a'::public.kind AS y"
        " FROM generate_series(1, 4) g",
        "SELECT madlib.training_preprocessor_dl('public.known', 'public.known_packed', 'y', 'x')",
        "SELECT madlib.validation_preprocessor_dl('public.known', 'public.known_v', 'y', 'x', 'public.known_packed')",
    )
    assert types.value("SELECT y_class_values::text FROM public.known_packed_summary") == "{a}"
    error = refusal_of(types, "SELECT madlib.training_preprocessor_dl('mallory.rows', 'p', 'y', 'x')")
    assert error.sqlstate == "42501"


def test_numbers_are_read_as_they_were(alice):
    alice.rows("SELECT madlib.training_preprocessor_dl('mallory.rows', 'plain', 'y', 'x')")
    data, shape = alice.rows("SELECT x, x_shape FROM plain")[0]
    assert sorted(np.frombuffer(data, np.float32).reshape(shape)[:, 0].tolist()) == [float(n) for n in range(1, 13)]
