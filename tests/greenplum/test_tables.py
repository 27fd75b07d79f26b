"""Tables on Greenplum: ours are heap tables with suitable distribution; users' may be replicated or append-only."""

import psycopg2
import pytest

from tests.helpers.engines.surface import make_all_tables, not_heap, our_tables
from tests.helpers.greenplum import n_segments
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.training import fit

pytestmark = pytest.mark.slow
PACK = "SELECT madlib.training_preprocessor_dl('{}', '{}', 'class_text', 'attributes', seed => 1)"
ASK = "SELECT madlib_mop.predict(%s, 1, ARRAY[5.1, 3.5, 1.4, 0.2]::real[])"
#: Copies of model tables in access methods that have no row versions, or other ones than heap.
COPIES = {
    "replicated": "AS TABLE {} DISTRIBUTED REPLICATED",
    "rows": "USING ao_row AS TABLE {} DISTRIBUTED RANDOMLY",
    "columns": "USING ao_column AS TABLE {} DISTRIBUTED RANDOMLY",
    "pax": "USING pax AS TABLE {} DISTRIBUTED RANDOMLY",
}


def need(db, method: str) -> None:
    """Skip if the server lacks an access method; only some builds of Cloudberry have pax."""
    if not db.value("SELECT count(*) FROM pg_am WHERE amname = %s", [method]):
        pytest.skip(f"the server has no access method {method}")


@pytest.fixture(scope="module")
def append_only(greenplum_with):
    """A database whose default tables are append-only and column-oriented, with all our tables."""
    with greenplum_with("default_table_access_method = ao_column") as db:
        make_all_tables(db, n_segments(db))
        yield db


@pytest.fixture(scope="module")
def models(greenplum):
    """Models of iris."""
    load_iris(greenplum)
    pack_iris(greenplum, n_segments(greenplum), "train", "valid")
    load_perceptrons(greenplum, "arch")
    greenplum.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1, 2], ARRAY[%s], ARRAY['batch_size=8'])",
        [ADAM.format(0.01)],
    )
    fit(greenplum, "models", "mst", 1, source_table="train", seed=9, schedule="rotation")
    return greenplum


def test_a_run_ends_without_replaced_states(models):
    """No DELETE removes them there. At the end, the states that stay are moved, and their old slot is emptied."""
    states = "SELECT count(*) FROM madlib_mop.model_state s JOIN madlib_mop.model m USING (run_id, mst_key) WHERE "
    assert models.value(f"{states} s.version = m.state_version AND s.slot = m.state_slot") >= 2
    assert models.value(f"{states} s.version <> m.state_version") == 0


@pytest.mark.timeout(900)
def test_ours_are_heap(append_only):
    """default_table_access_method does not apply to tables that need unique indexes, UPDATE or row versions."""
    of_users = append_only.value("SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 'iris'")
    assert of_users == "ao_column"
    assert {"models", "averaged", "found_mst", "predicted", "evaluated", "madlib_mop.run"} <= {*our_tables(append_only)}
    assert not_heap(append_only) == []


def test_ours_are_spread_sensibly(append_only):
    """By a key, or randomly; not by weights, losses or texts."""
    rows = append_only.rows(
        "SELECT c.oid::regclass::text, pg_get_table_distributedby(c.oid) FROM pg_class c"
        " WHERE c.oid = ANY (%s::regclass[]::oid[])",
        [our_tables(append_only)],
    )
    spread = {name: policy.removeprefix("DISTRIBUTED ") for name, policy in rows}
    in_public = {name: policy for name, policy in spread.items() if not name.startswith("madlib")}
    by_chance = {name for name, policy in in_public.items() if policy == "RANDOMLY"}
    assert by_chance == {"averaged", "evaluated", "gpus", "train_summary", "valid_summary"}
    assert {name: policy for name, policy in in_public.items() if name not in by_chance} == {
        "train": "BY (__dist_key__)", "valid": "BY (__dist_key__)",
        "models": "BY (mst_key)", "models_info": "BY (mst_key)", "found": "BY (mst_key)", "found_info": "BY (mst_key)",
        "arch": "BY (__internal_madlib_id__)", "predicted": "BY (id)", "brackets": "BY (s, i)",
        "mst": "BY (model_id, compile_params, fit_params)", "found_mst": "BY (model_id, compile_params, fit_params)",
        "mst_summary": "BY (model_arch_table)", "found_mst_summary": "BY (model_arch_table)",
        "models_summary": "BY (model)", "averaged_summary": "BY (model)", "found_summary": "BY (model)",
    }  # fmt: skip
    states = {policy for name, policy in spread.items() if "model_state" in name}
    assert states == {"BY (__dist_key__)"}


@pytest.mark.parametrize("form", ["DISTRIBUTED REPLICATED", "DISTRIBUTED RANDOMLY"])
@pytest.mark.parametrize("method", ["heap", "ao_row", "ao_column", "pax"])
def test_a_source_of_any_form_is_packed(models, form, method):
    """The packed rows equal those of the heap table, for any form of the source."""
    need(models, method)
    name = f"{method}_{form.split()[1].lower()}"
    models.rows(f"CREATE TABLE {name} USING {method} AS TABLE iris_train {form}")
    models.rows(PACK.format(name, f"{name}_packed"))
    ours, plain = (
        models.rows(f"SELECT __dist_key__, buffer_id, attributes::text, class_text::text FROM {table} ORDER BY 1")
        for table in (f"{name}_packed", "train")
    )
    assert ours == plain and len(ours) == n_segments(models)


def test_a_bad_row_is_named_by_its_segment_too(models):
    """A ctid identifies a row of one segment; rows of a replicated table have none."""
    models.rows(
        "CREATE TABLE with_null AS SELECT id, CASE WHEN id = 7 THEN array[1, 2, NULL, 4]::real[] ELSE"
        " array[1, 2, 3, 4]::real[] END AS attributes, id % 3 AS class_text FROM generate_series(1, 40) id"
        " DISTRIBUTED BY (id)"
    )
    ctid, segment = models.rows("SELECT ctid::text, gp_segment_id FROM with_null WHERE id = 7")[0]
    with pytest.raises(psycopg2.Error) as caught:
        models.rows(PACK.format("with_null", "not_made"))
    assert caught.value.diag.message_primary.endswith(f"(row with ctid {ctid} at gp_segment_id {segment})")
    models.rows("CREATE TABLE nowhere AS TABLE with_null DISTRIBUTED REPLICATED")
    with pytest.raises(psycopg2.Error, match=r"\(row \d+ in reading order\)"):
        models.rows(PACK.format("nowhere", "not_made"))


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_models_are_predicted_from(models, name):
    """They are identified by content if rows have no versions; a changed copy is read again."""
    if name == "pax":
        need(models, name)
    for suffix in ("", "_info", "_summary"):
        models.rows(f"CREATE TABLE {name}{suffix} " + COPIES[name].format(f"models{suffix}"))
    connection = models.connect()
    with connection, connection.cursor() as cursor:

        def predict(table):
            cursor.execute(ASK, [table])
            return cursor.fetchone()[0]

        assert predict(name) == predict("models")
        zeros = "decode(repeat('00', length(model_weights)), 'hex')"
        cursor.execute(f"UPDATE {name} SET weights_digest = NULL, model_weights = {zeros}")
        assert predict(name) == pytest.approx([1 / 3] * 3)
    connection.close()


def test_the_readmes_ways_to_stop_resume_and_drop_a_run(models):
    """A function that reads tables is called without FROM; the run_id is from a sub-select or the caller."""
    newest = "(SELECT max(run_id) FROM madlib_mop.run)"
    assert models.value(f"SELECT madlib_mop.cancel({newest})") is False
    models.rows(f"SELECT madlib_mop.resume({newest})")
    models.rows(f"SELECT madlib_mop.replay({newest}, 'again')")
    models.rows("SELECT madlib_mop.drop_run((SELECT max(run_id) FROM madlib_mop.run WHERE kind = 'replay'))")
    assert models.rows("SELECT kind FROM madlib_mop.run") == [("fit_multiple_model",)]
