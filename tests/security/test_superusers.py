"""A superuser's session runs no user's code: it accepts only superusers' objects, and no session of mixed roles.

All of mallory's objects here try what a view can do in a superuser's session: RESET ROLE, CREATE ROLE ... SUPERUSER.
"""

import pytest

from tests.helpers.security.attacks import SOFTMAX, record_run, recorded_plan, refusal, refusal_of, user
from tests.helpers.training import script

MALLORY, LEAD = "mallory", "team_lead"
COMPILE = "'{loss=''mse'', optimizer=''Adam()''}'"
TRAPS = """
CREATE FUNCTION mallory.attack() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    BEGIN RESET SESSION AUTHORIZATION; EXCEPTION WHEN OTHERS THEN NULL; END;
    BEGIN RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END;
    BEGIN CREATE ROLE evil SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END;
    RETURN true;
END $$;
CREATE FUNCTION mallory.attack_of_index(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM mallory.attack(); RETURN n; END $$;
CREATE FUNCTION mallory.attack_of_trigger() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM mallory.attack(); RETURN NEW; END $$;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
CREATE VIEW mallory.rows AS SELECT 1 AS id, ARRAY[1, 2]::real[] AS x, 'a'::text AS y WHERE mallory.attack();
CREATE VIEW mallory.rules AS SELECT 1 AS dbid WHERE mallory.attack();
CREATE VIEW mallory.packed AS SELECT 0 AS __dist_key__, ''::bytea AS x, ARRAY[1, 2] AS x_shape, ''::bytea AS y,
    ARRAY[1, 2] AS y_shape, 0 AS buffer_id WHERE mallory.attack();
CREATE VIEW mallory.packed_summary AS SELECT ARRAY['y'] AS dependent_varname, ARRAY['x'] AS independent_varname,
    ARRAY['text'] AS dependent_vartype, 1 AS buffer_size, 1::real AS normalizing_const, ARRAY[2] AS num_classes,
    ARRAY['a', 'b'] AS y_class_values WHERE mallory.attack();
CREATE VIEW mallory.models AS SELECT 1 AS mst_key, ''::bytea AS model_weights, '{}'::json AS model_arch
    WHERE mallory.attack();
CREATE VIEW mallory.models_info AS SELECT 1 AS mst_key, 'c'::text AS compile_params, 'f'::text AS fit_params,
    ARRAY['m'] AS metrics_type, 'l'::text AS loss_type WHERE mallory.attack();
CREATE VIEW mallory.models_summary AS TABLE mallory.packed_summary;
CREATE VIEW mallory.arch AS SELECT 1 AS model_id, '{}'::json AS model_arch, ''::bytea AS model_weights
    WHERE mallory.attack();
CREATE VIEW mallory.mst AS SELECT 1 AS mst_key, 1 AS model_id, ''::text AS compile_params, ''::text AS fit_params
    WHERE mallory.attack();
CREATE VIEW mallory.mst_summary AS SELECT 'mallory.arch'::text AS model_arch_table, NULL::text AS object_table
    WHERE mallory.attack();
CREATE TABLE mallory.loaded (model_id integer, model_arch json, model_weights bytea, name text, description text,
    __internal_madlib_id__ text);
INSERT INTO mallory.loaded VALUES (1);
CREATE TRIGGER trap BEFORE INSERT OR DELETE ON mallory.loaded FOR EACH ROW EXECUTE FUNCTION mallory.attack_of_trigger();
CREATE TABLE mallory.part (id integer, x real[], y text);
INSERT INTO mallory.part VALUES (1, '{1, 2}', 'a');
"""
OURS = """
CREATE TABLE public.rows AS SELECT 1 AS id, ARRAY[1, 2]::real[] AS x, 'a'::text AS y;
CREATE VIEW public.over AS TABLE mallory.rows;
CREATE VIEW public.over_over AS SELECT * FROM public.over;
CREATE VIEW public.calling AS SELECT * FROM public.rows WHERE mallory.attack();
CREATE TABLE public.parent (id integer, x real[], y text);
ALTER TABLE mallory.part INHERIT public.parent;
CREATE TABLE public.indexed AS TABLE public.rows;
CREATE INDEX ON public.indexed ((mallory.attack_of_index(1) + id));
CREATE TABLE public.loaded (LIKE mallory.loaded);
INSERT INTO public.loaded VALUES (1);
CREATE TRIGGER trap BEFORE INSERT OR DELETE ON public.loaded FOR EACH ROW EXECUTE FUNCTION mallory.attack_of_trigger();
DROP ROLE IF EXISTS evil;
"""
PACK = "madlib.training_preprocessor_dl('{}', 'out', 'y', 'x')"
CALLS = {
    "source": PACK.format("mallory.rows"),
    "rules": "madlib.training_preprocessor_dl('rows', 'out', 'y', 'x', distribution_rules := 'mallory.rules')",
    "training table": "madlib.validation_preprocessor_dl('rows', 'out', 'y', 'x', 'mallory.packed')",
    "evaluate": "madlib.madlib_keras_evaluate('mallory.models', 'mallory.packed', 'out', mst_key := 1)",
    "predict": "madlib.madlib_keras_predict('mallory.models', 'rows', 'id', 'x', 'out', mst_key := 1)",
    "byom": "madlib.madlib_keras_predict_byom('mallory.arch', 1, 'rows', 'id', 'x', 'out')",
    "scalar predict": "madlib_mop.predict('mallory.models', 1, ARRAY[1, 2])",
    "load": "madlib.load_keras_model('mallory.loaded', '{}')",
    "delete": "madlib.delete_keras_model('mallory.loaded', 1)",
    "load into ours with her trigger": "madlib.load_keras_model('loaded', '{}')",
    "select": f"madlib.load_model_selection_table('mallory.arch', 'mst', ARRAY[1], {COMPILE}, '{{}}')",
    "fit": "madlib.madlib_keras_fit('mallory.packed', 'out', 'mallory.arch', 1, 'c', 'f', 1)",
    "fit many": "madlib.madlib_keras_fit_multiple_model('mallory.packed', 'out', 'mallory.mst', 1)",
    "our view over hers": PACK.format("over"),
    "our view over our view over hers": PACK.format("over_over"),
    "our view with her function": PACK.format("calling"),
    "our table with her child": PACK.format("parent"),
    "our table with an index of her function": PACK.format("indexed"),
}


@pytest.fixture(scope="module")
def traps(db):
    for role in (MALLORY, LEAD):
        user(db, role)
    script(db, TRAPS, role=MALLORY)
    script(db, OURS)
    db.rows(f"GRANT {db.cluster.superuser} TO {LEAD}")
    yield db
    db.rows(f"REVOKE {db.cluster.superuser} FROM {LEAD}")


def made_superuser(db) -> bool:
    """Return whether mallory has created a superuser; drop it."""
    found = bool(db.rows("SELECT 1 FROM pg_roles WHERE rolname = 'evil'"))
    db.rows("DROP ROLE IF EXISTS evil")
    return found


@pytest.mark.parametrize("call", CALLS)
def test_a_superusers_call_runs_no_code_of_another_role(traps, call):
    error = refusal_of(traps, f"SELECT {CALLS[call]}")
    assert not made_superuser(traps)
    assert error.sqlstate == "42501" and "mallory, who is not a superuser" in error.message, error
    assert "Log in as mallory" in error.hint


def test_nor_does_the_call_of_who_can_become_one(traps):
    error = refusal_of(traps, f"SELECT {CALLS['source']}", role=LEAD)
    assert error.sqlstate == "42501" and "mallory, who is not a superuser" in error.message, error


@pytest.mark.parametrize("switch", ["SET ROLE mallory", "SET SESSION AUTHORIZATION mallory"])
@pytest.mark.parametrize("call", ["source", "scalar predict", "evaluate"])
def test_a_superusers_session_that_took_another_role_is_refused(traps, switch, call):
    connection = traps.connect()
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = mallory; {switch}")
    error = refusal(connection, f"SELECT {CALLS[call]}")
    connection.close()
    assert not made_superuser(traps)
    assert error.sqlstate == "42501" and "superuser rights that RESET ROLE can restore" in error.message, error
    assert error.hint.startswith("Log in as mallory")


def test_nor_is_a_function_that_runs_as_a_superuser_a_way(traps):
    traps.rows(
        "CREATE FUNCTION public.lend() RETURNS void LANGUAGE sql SECURITY DEFINER AS"
        " $$ SELECT madlib.load_keras_model('public.lent', '{}') $$"
    )
    error = refusal_of(traps, "SELECT public.lend()", role=MALLORY)
    assert error.sqlstate == "42501" and "superuser rights that RESET ROLE can restore" in error.message, error


def test_a_role_of_ones_own_may_be_taken_by_who_is_no_superuser(traps):
    user(traps, "group_role")
    traps.rows(f"GRANT group_role TO {MALLORY}")
    connection = traps.connect(MALLORY)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE group_role; SELECT madlib.load_keras_model('group_role.own', %s)", [SOFTMAX])
    connection.close()
    assert traps.value("SELECT count(*) FROM group_role.own") == 1


def test_a_superuser_takes_what_superusers_own(traps):
    script(
        traps,
        "CREATE VIEW public.plain AS SELECT g AS id, ARRAY[g, 2]::real[] AS x, 'a' || g % 2 AS y"
        " FROM generate_series(1, 4) g",
        PACK.format("plain").replace("madlib.", "SELECT madlib.").replace("'out'", "'plain_packed'"),
        f"SELECT madlib.load_keras_model('plain_arch', $${SOFTMAX}$$)",
        "SELECT madlib.delete_keras_model('plain_arch', 1)",
    )
    assert traps.value("SELECT count(*) > 0 FROM plain_packed")


def test_a_superuser_replays_no_run_on_tables_of_another_role(traps):
    plan = recorded_plan("public", "out_31", '"mallory"."packed"')
    run_id = record_run(traps, 31, MALLORY, "finished", plan=plan)
    error = refusal_of(traps, "SELECT madlib_mop.replay(%s, 'again')", [run_id])
    assert error.sqlstate == "42501" and "mallory, who is not a superuser" in error.message, error
