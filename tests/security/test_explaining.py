"""Promise 7 for explanations: by rows that the caller may read only, and no code of others runs to find them."""

import pytest

from tests.helpers.security.attacks import refusal_of, user

pytestmark = pytest.mark.one_session

MALLORY, VICTIM = "mallory_of_explaining", "victim_of_explaining"
EXPLAIN = "SELECT * FROM madlib_mop.explain_prediction({}, (SELECT c FROM customers c WHERE id = 7){})"


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def models(db):
    """A registered model of Mallory's, with which the victim may predict; a view that shows who runs its code."""
    for role in (MALLORY, VICTIM):
        user(db, role)
        db.rows(f"GRANT SELECT ON customers, churn, churn_info, churn_summary TO {role}")
        for table in ("churn", "churn_info", "churn_summary"):
            db.rows(f"CREATE TABLE {role}.{table} AS TABLE {table}", role=role)
    db.rows(f"SELECT madlib_mop.register('of_mallory', '{MALLORY}.churn', 1)", role=MALLORY)
    db.rows(f"SELECT madlib_mop.grant_model('of_mallory', '{VICTIM}', 'predict')", role=MALLORY)
    db.rows(f"CREATE FUNCTION {MALLORY}.steal() RETURNS text LANGUAGE plpgsql AS"
            " $$BEGIN RAISE EXCEPTION 'ran as %', current_user; END$$", role=MALLORY)  # fmt: skip
    db.rows(f"CREATE VIEW {MALLORY}.packed AS SELECT {MALLORY}.steal() AS numbers", role=MALLORY)
    db.rows(f"DROP TABLE {MALLORY}.churn_summary", role=MALLORY)
    db.rows(f"CREATE VIEW {MALLORY}.churn_summary AS SELECT {MALLORY}.steal()::json AS qualified_names",
            role=MALLORY)
    db.rows(f"GRANT USAGE ON SCHEMA {MALLORY} TO {VICTIM}", role=MALLORY)
    db.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA {MALLORY} TO {VICTIM}", role=MALLORY)
    yield db


def test_a_registered_model_runs_no_code_of_its_owner(models):
    error = refusal_of(models, EXPLAIN.format("'of_mallory@1'", ""), role=VICTIM)
    assert error.sqlstate == "22023" and "background is missing" in error.message


@pytest.mark.parametrize("table", [f"{MALLORY}.packed", "public.of_victim"])
def test_a_training_table_of_another_role_is_not_read_unless_it_is_named(models, table):
    """Nor one with the summary of another role."""
    models.rows("DROP TABLE IF EXISTS public.of_victim; DROP VIEW IF EXISTS public.of_victim_summary")
    models.rows("CREATE TABLE public.of_victim (buffer_id integer, numbers bytea, numbers_shape integer[])")
    models.rows(f"ALTER TABLE public.of_victim OWNER TO {VICTIM}")
    models.rows(f"CREATE VIEW public.of_victim_summary AS SELECT {MALLORY}.steal() AS dependent_varname")
    models.rows(f"ALTER VIEW public.of_victim_summary OWNER TO {MALLORY}; GRANT SELECT ON of_victim_summary TO PUBLIC")
    names = f'{{"source_table": "{table}"}}'
    models.rows(f"UPDATE {VICTIM}.churn_summary SET qualified_names = %s", [names], role=VICTIM)
    error = refusal_of(models, EXPLAIN.format(f"'{VICTIM}.churn'", ", 1"), role=VICTIM)
    assert error.sqlstate == "22023" and "background is missing" in error.message


def test_a_training_table_in_the_schema_of_another_role_is_not_read_unless_it_is_named(models):
    """The owner of the schema could drop the table, and put a view in its place before it is read."""
    models.rows(f"GRANT CREATE ON SCHEMA {MALLORY} TO {VICTIM}")
    models.rows(f"CREATE TABLE {MALLORY}.lent AS SELECT * FROM {VICTIM}.churn", role=VICTIM)
    models.rows(f"CREATE TABLE {MALLORY}.lent_summary AS SELECT * FROM {VICTIM}.churn_summary", role=VICTIM)
    names = f'{{"source_table": "{MALLORY}.lent"}}'
    models.rows(f"UPDATE {VICTIM}.churn_summary SET qualified_names = %s", [names], role=VICTIM)
    error = refusal_of(models, EXPLAIN.format(f"'{VICTIM}.churn'", ", 1"), role=VICTIM)
    assert error.sqlstate == "22023" and "background is missing" in error.message


def test_the_background_is_read_with_the_rights_and_the_policies_of_each_caller(models):
    """In one session, one role after the other: a background that was kept for one is not that of the other."""
    models.rows("CREATE TABLE by_role AS SELECT *, 'nobody'::name AS reader FROM customers")
    models.rows(f"UPDATE by_role SET reader = CASE WHEN id <= 50 THEN '{MALLORY}' ELSE '{VICTIM}' END")
    models.rows("ALTER TABLE by_role ENABLE ROW LEVEL SECURITY; GRANT SELECT ON by_role TO PUBLIC;"
                " CREATE POLICY own ON by_role USING (reader = current_user)")  # fmt: skip
    models.rows("GRANT SELECT ON churn, churn_info, churn_summary, customers TO PUBLIC")
    call = EXPLAIN.format("'public.churn'", ", 1, background => 'by_role', n_background => 40").replace(
        "SELECT *", "SELECT DISTINCT base"
    )
    bases = {role: models.rows(call, role=role)[0][0] for role in (MALLORY, VICTIM)}
    assert bases[MALLORY] != bases[VICTIM]
    models.rows(f"CREATE FUNCTION {MALLORY}.base() RETURNS float8 SECURITY DEFINER LANGUAGE sql AS $$ {call} $$;"
                f" GRANT EXECUTE ON FUNCTION {MALLORY}.base() TO {VICTIM}", role=MALLORY)  # fmt: skip
    both = models.rows(f"SELECT {MALLORY}.base(), ({call}), {MALLORY}.base()", role=VICTIM)
    assert both == [(bases[MALLORY], bases[VICTIM], bases[MALLORY])]


def test_a_background_that_one_role_has_read_is_not_shown_to_another(models):
    models.rows("CREATE TABLE of_one AS SELECT * FROM customers WHERE id <= 20")
    models.rows(f"GRANT SELECT ON of_one TO {MALLORY}; GRANT SELECT ON churn, churn_info, churn_summary TO PUBLIC")
    call = EXPLAIN.format("'public.churn'", ", 1, background => 'of_one'").replace("SELECT *", "SELECT DISTINCT base")
    models.rows(f"CREATE FUNCTION {MALLORY}.lent() RETURNS float8 SECURITY DEFINER LANGUAGE sql AS $$ {call} $$;"
                f" GRANT EXECUTE ON FUNCTION {MALLORY}.lent() TO {VICTIM}", role=MALLORY)  # fmt: skip
    error = refusal_of(models, f"SELECT {MALLORY}.lent(), ({call})", role=VICTIM)
    assert error.sqlstate == "42501" and "of_one" in error.message


def test_rows_that_depend_on_a_setting_are_read_anew_when_it_changes(models):
    models.rows("CREATE TABLE by_tenant AS SELECT *, CASE WHEN id <= 50 THEN 'a' ELSE 'b' END AS tenant FROM customers")
    models.rows("ALTER TABLE by_tenant ENABLE ROW LEVEL SECURITY; GRANT SELECT ON by_tenant TO PUBLIC;"
                " CREATE POLICY own ON by_tenant USING (tenant = current_setting('app.tenant'))")  # fmt: skip
    models.rows("GRANT SELECT ON churn, churn_info, churn_summary, customers TO PUBLIC")
    call = EXPLAIN.format("'public.churn'", ", 1, background => 'by_tenant', n_background => 40").replace(
        "SELECT *", "SELECT DISTINCT base"
    )
    models.rows(f"""CREATE FUNCTION {VICTIM}.bases(tenants text) RETURNS float8[] LANGUAGE plpgsql AS $$
        DECLARE
            tenant text;
            found float8[] := '{{}}';
        BEGIN
            FOREACH tenant IN ARRAY string_to_array(tenants, ',') LOOP
                PERFORM set_config('app.tenant', tenant, true);
                found := found || ({call});
            END LOOP;
            RETURN found;
        END $$""", role=VICTIM)  # fmt: skip
    alone = [models.rows(f"SELECT {VICTIM}.bases('{tenant}')", role=VICTIM)[0][0][0] for tenant in "ab"]
    assert alone[0] != alone[1]
    assert models.rows(f"SELECT {VICTIM}.bases('a,b,a')", role=VICTIM)[0][0] == [*alone, alone[0]]
