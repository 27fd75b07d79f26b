"""A database of a released version is updated: nothing is lost, and the result equals a new installation."""

import pytest

from madlib_mop import __version__
from tests.helpers.dumps import RECORDS, contents, restore
from tests.helpers.processors import assert_same_models
from tests.helpers.security.attacks import refusal_of
from tests.helpers.training import fit, one_thread, script
from tests.upgrade.record import PREDICTOR, ROLES, SEED, USER

VERSIONS = sorted(file.name.removesuffix(".sql.gz") for file in RECORDS.glob("*.sql.gz"))


@pytest.fixture(scope="module", params=VERSIONS)
def old(cluster, request):
    """A database of a released version, with the content of `record.fill`."""
    one_thread()
    for role in ROLES:
        cluster.create_role(role)
    database = restore(cluster, request.param, request.param)
    yield database
    cluster.drop(database.name)


@pytest.fixture(scope="module")
def before(old):
    """The content of the record before the update."""
    return contents(old)


IS_SLOT = (
    "c.relnamespace = 'madlib_mop'::regnamespace AND c.relkind = 'r' AND c.relname LIKE 'model\\_state\\_%'"
)
HISTORY = "SELECT * FROM madlib_mop.search_history ORDER BY run_id, ordinal, action_number"


@pytest.fixture(scope="module")
def searched(old):
    """What the searches of the old version were told and decided, before the update."""
    return old.rows(HISTORY)


@pytest.fixture(scope="module")
def updated(old, before, searched):
    """The database after the update."""
    old.rows("CREATE FUNCTION madlib.of_another_version() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    old.rows("ALTER EXTENSION madlib_mop ADD FUNCTION madlib.of_another_version()")
    for (slot,) in old.rows(f"SELECT oid::regclass::text FROM pg_class c WHERE {IS_SLOT}"):
        old.rows(f"GRANT ALL ON {slot} TO PUBLIC, {USER}")  # as default privileges may have done
    old.rows("ALTER EXTENSION madlib_mop UPDATE")
    return old


def test_the_library_says_what_to_do_before_the_update(old, before):
    if old.value("SELECT extversion FROM pg_extension WHERE extname = 'madlib_mop'") == __version__:
        pytest.skip("the update has been made")
    error = refusal_of(old, "SELECT madlib_mop.cancel(1)", role=USER)
    assert "ALTER EXTENSION madlib_mop UPDATE" in f"{error.message} {error.hint}"


def test_an_update_below_a_savepoint_drops_no_other_functions(old, before, db):
    """psql begins a savepoint before each statement of a transaction if ON_ERROR_ROLLBACK is on."""
    connection = old.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT one; SAVEPOINT two; ALTER EXTENSION madlib_mop UPDATE; RELEASE two")
        cursor.execute(OBJECTS["members"])
        found = cursor.fetchall()
    connection.close()
    assert found == db.rows(OBJECTS["members"])


def test_every_row_of_the_record_is_there_after_it(updated, before):
    assert updated.value("SELECT extversion FROM pg_extension WHERE extname = 'madlib_mop'") == __version__
    assert contents(updated, before) == before
    assert {table for table, (_, rows) in before.items() if not rows} <= {"madlib_mop.start_weights"}


def test_metrics_have_the_times_at_which_they_were_computed(updated):
    """Version 1.0.0 wrote the seconds since the start of the run."""
    wrong = updated.value(
        "SELECT count(*) FROM madlib_mop.metric x JOIN madlib_mop.run r USING (run_id)"
        " WHERE abs(extract(epoch FROM x.at - r.created_at) - x.elapsed_s) > 0.001"
    )
    assert updated.value("SELECT count(*) FROM madlib_mop.metric_series") > 0 and wrong == 0
    assert updated.rows("SELECT DISTINCT hyper_parameters::text FROM madlib_mop.model_summary") == [("{}",)]


def test_searches_are_shown_as_before(updated, searched):
    """Their decisions are rows of a table of their own now."""
    assert searched and updated.rows(HISTORY) == searched


OBJECTS = {
    "functions": """
        SELECT pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'),
               has_function_privilege('public', p.oid, 'EXECUTE')
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE n.nspname LIKE 'madlib%' AND prokind <> 'a' ORDER BY 1""",
    "aggregates": """
        SELECT p.oid::regprocedure::text, a.aggtransfn::text, a.aggfinalfn::text, a.agginitval
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace JOIN pg_aggregate a ON a.aggfnoid = p.oid
        WHERE n.nspname LIKE 'madlib%' ORDER BY 1""",
    "columns": """
        SELECT c.oid::regclass::text, c.relkind, c.relrowsecurity, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, a.attstorage, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE n.nspname LIKE 'madlib%' AND c.relkind IN ('r', 'v', 'p') AND NOT c.relispartition
              AND a.attnum > 0 AND NOT a.attisdropped
              AND EXISTS (SELECT FROM pg_depend e WHERE e.objid = c.oid AND e.deptype = 'e') ORDER BY 1, a.attname""",
    "views": """
        SELECT c.oid::regclass::text, pg_get_viewdef(c.oid), c.reloptions::text, obj_description(c.oid, 'pg_class')
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        WHERE n.nspname LIKE 'madlib%' AND relkind = 'v' ORDER BY 1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(c.oid) FROM pg_constraint c
        JOIN pg_class t ON t.oid = conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE n.nspname LIKE 'madlib%' AND NOT t.relispartition
              AND EXISTS (SELECT FROM pg_depend e WHERE e.objid = t.oid AND e.deptype = 'e') ORDER BY 1, 2""",
    "indexes": """
        SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i
        JOIN pg_class t ON t.oid = indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
        WHERE n.nspname LIKE 'madlib%' AND NOT t.relispartition
              AND EXISTS (SELECT FROM pg_depend e WHERE e.objid = t.oid AND e.deptype = 'e') ORDER BY 1""",
    "policies": """
        SELECT polrelid::regclass::text, polname, polcmd, pg_get_expr(polqual, polrelid),
               pg_get_expr(polwithcheck, polrelid)
        FROM pg_policy ORDER BY 1, 2""",
    "triggers": "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
    "members": """
        SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend
        WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
              AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'madlib_mop') ORDER BY 1""",
    "dumped": """
        SELECT config.oid::regclass::text, condition FROM pg_extension,
               unnest(extconfig, extcondition) AS config (oid, condition) WHERE extname = 'madlib_mop' ORDER BY 1""",
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_updated_extension_is_the_one_that_is_created_new(updated, db, kind):
    assert updated.rows(OBJECTS[kind]) == db.rows(OBJECTS[kind])


def test_an_interrupted_run_ends_with_the_bits_of_an_undisturbed_one(updated):
    runs = dict(updated.rows("SELECT split_part(model_output_table, '.', 2), run_id FROM madlib_mop.run"))
    updated.rows("SELECT madlib_mop.resume(%s)", [runs["interrupted"]], USER)
    assert_same_models(updated, runs["interrupted"], "interrupted", runs["twin"], "twin")


def test_a_finished_run_is_replayed_with_the_same_bits(updated):
    for table in ("models", "with_custom", "averaged", "searched"):
        query = "SELECT min(run_id) FROM madlib_mop.run WHERE model_output_table LIKE %s"
        run_id = updated.value(query, [f"%.{table}"])
        updated.rows("SELECT madlib_mop.replay(%s, %s)", [run_id, f"{table}_again"], USER)
        again = updated.value(query, [f"%.{table}\\_again"])
        assert_same_models(updated, again, f"{table}_again", run_id, table)


def test_its_models_predict_and_its_runs_are_gone_on_with(updated):
    query = "SELECT madlib_mop.predict_class('models', 1, x) FROM valid_rows ORDER BY id LIMIT 3"
    as_user = updated.rows(query, role=USER)
    assert len(as_user) == 3 and all(name in map(str, range(10)) for (name,) in as_user)
    updated.rows(f"GRANT SELECT ON valid_rows TO {PREDICTOR}")
    assert updated.rows(query, role=PREDICTOR) == as_user
    old_run = updated.value("SELECT max(run_id) FROM madlib_mop.run")
    again = fit(updated, "models", "mst", 1, warm_start=True, seed=SEED, role=USER)
    assert again.run_id > old_run
    epochs = updated.rows("SELECT DISTINCT epoch FROM madlib_mop.visit WHERE run_id = %s", [again.run_id])
    assert epochs == [(3,)] and "weights only" not in again.notices


def test_roles_keep_their_rights_and_get_those_on_new_functions(updated):
    """A role with a right has all functions of its class, as a role that gets the right now."""
    updated.cluster.create_role("upgrade_newcomer")
    script(updated, "SELECT madlib_mop.grant_use('upgrade_newcomer')")
    rights = (
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace"
        " WHERE n.nspname LIKE 'madlib%%' AND has_function_privilege(%s, p.oid, 'EXECUTE') ORDER BY 1"
    )
    assert updated.rows(rights, [USER]) == updated.rows(rights, ["upgrade_newcomer"])
    assert len(updated.rows(rights, [PREDICTOR])) < len(updated.rows(rights, [USER]))


def test_default_privileges_have_given_nobody_rights_to_states(updated):
    slots = f"SELECT count(*), count(*) FILTER (WHERE o.grantee IS NOT NULL) FROM pg_class c {{}} WHERE {IS_SLOT}"
    others = "LEFT JOIN LATERAL (SELECT grantee FROM aclexplode(relacl) WHERE grantee <> relowner) o ON true"
    ((n_slots, n_grants),) = updated.rows(slots.format(others))
    assert n_slots > 0 and n_grants == 0


def test_a_run_of_the_old_version_can_be_dropped(updated):
    run_id = updated.value("SELECT run_id FROM madlib_mop.run WHERE model_output_table LIKE '%.twin'")
    updated.rows("SELECT madlib_mop.drop_run(%s)", [run_id], USER)
    assert updated.rows("SELECT 1 FROM madlib_mop.model_state WHERE run_id = %s", [run_id]) == []
