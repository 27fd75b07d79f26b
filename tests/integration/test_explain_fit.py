"""explain_fit: an estimate of a call that trains, before it begins. It has no effect, and fails as the call would."""

import json
import re
from contextlib import closing
from dataclasses import dataclass

import psycopg2
import pytest

from madlib_mop.client import connect
from tests.helpers.commands import run as run_command
from tests.helpers.commands import run_here
from tests.helpers.iris import ADAM
from tests.helpers.searches import arguments, prepare
from tests.helpers.training import fit, store_unchecked

pytestmark = pytest.mark.one_session

EXPLAIN = "SELECT item, value, low, high, unit, note FROM madlib_mop.explain_fit(%s, %s)"
FIT, AVERAGE, SEARCH = "madlib_keras_fit_multiple_model", "madlib_keras_fit", "madlib_keras_automl"
FORMS = ("%s", "%s::text", "%s::json", "%s::jsonb", "%s::varchar")
RECORD = ("run", "segment", "model", "model_state", "visit", "evaluation", "metric", "change", "reserved_table")
GIVEN = {
    "source_table": "train", "model_output_table": "longer", "model_selection_table": "mst", "num_iterations": 6,
    "validation_table": "valid",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(db):
    prepare(db)
    rates = [ADAM.format(rate) for rate in (0.1, 0.01)]
    load = "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1, 2], %s, ARRAY['batch_size=7'])"
    db.rows(load, [rates])
    return db


def explained(db, function: str, given: dict) -> dict:
    """Return the rows of an estimate by item."""
    return {item: row for item, *row in db.rows(EXPLAIN, [function, json.dumps(given)])}


def everything(db) -> list:
    """Return what a call can leave behind: rows of the record, relations, roles."""
    counts = [db.value(f"SELECT count(*) FROM madlib_mop.{table}") for table in RECORD]
    relations = db.rows("SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v', 'S', 'p') ORDER BY 1")
    return [counts, relations, db.rows("SELECT rolname FROM pg_roles ORDER BY 1")]


@dataclass(frozen=True)
class Estimate:
    """The rows by item of the first estimate, the modes of its locks, and what there was before and after it."""

    rows: dict
    modes: list[tuple]
    before: list
    after: list


@pytest.fixture(scope="module")
def first(bench):
    bench.rows("DELETE FROM madlib_mop.run")
    before = everything(bench)
    with closing(bench.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        cursor.execute(EXPLAIN, [FIT, json.dumps(GIVEN)])
        rows = {item: row for item, *row in cursor.fetchall()}
        cursor.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation' AND granted"
        )
        modes = cursor.fetchall()
        connection.commit()
    return Estimate(rows, modes, before, everything(bench))


@pytest.fixture(scope="module")
def estimate(first):
    return first.rows


def test_a_fit_is_estimated_by_a_probe_if_nothing_is_recorded(estimate):
    assert estimate["visits"][0] == 4 * 6 * 2
    assert estimate["evaluations"][0] == 4 * 6 * 4, "after each iteration, on the shards of both tables"
    value, low, high, unit, note = estimate["time"]
    assert 0 < low < value < high and unit == "s"
    assert note == "by a probe of 2 of 2 networks" or note == "by a probe of 1 of 2 networks"
    for whole, parts in (("memory", ("trainers", "server processes")), ("disk", ("states", "output tables"))):
        assert estimate[whole][0] == pytest.approx(sum(estimate[part][0] for part in parts), abs=0.2)
    assert "limit 1" in estimate


def test_it_changes_nothing_and_locks_only_to_read(first):
    assert first.modes == [("AccessShareLock",)]
    assert first.after == first.before


def test_the_run_makes_the_visits_that_were_estimated_and_takes_about_the_disk(bench, estimate):
    fitted = fit(bench, "longer", "mst", 6, validation_table="valid")
    n_visits = bench.value("SELECT count(*) FROM madlib_mop.visit WHERE run_id = %s", [fitted.run_id])
    n_evaluations = bench.value("SELECT count(*) FROM madlib_mop.evaluation WHERE run_id = %s", [fitted.run_id])
    assert (n_visits, n_evaluations) == (estimate["visits"][0], estimate["evaluations"][0])
    tables = ["longer", "longer_info", "longer_summary"]
    n_bytes = bench.value("SELECT sum(pg_total_relation_size(t::regclass))::int8 FROM unnest(%s) AS t", [tables])
    assert estimate["output tables"][0] == pytest.approx(n_bytes / 1e6, rel=0.1)
    bench.rows("DROP TABLE longer, longer_info, longer_summary")


def test_the_first_notice_says_how_long_it_should_take(bench):
    """The record has a run of these networks now; before, it had none."""
    notice = fit(bench, "again", "mst", 1).notices.splitlines()[0]
    seconds = r"[\d.]+ m?s"
    words = rf"; it should take about {seconds} \({seconds} to {seconds}\); the trainers are starting"
    assert re.search(words, notice), notice
    bench.rows("DROP TABLE again, again_info, again_summary")


def test_known_networks_are_estimated_by_the_record(bench):
    assert re.fullmatch(r"by runs? \d+(, \d+)*", explained(bench, FIT, GIVEN)["time"][4])


def test_searches_are_estimated(bench):
    found = explained(bench, SEARCH, arguments("found", "asha", "R=9, eta=3, num_configs=9", random_state=1))
    value, low, high = found["visits"][:3]
    assert 2 * 9 <= low <= value <= high <= 2 * 81
    found = explained(bench, SEARCH, arguments("found", "hyperband", "R=9, eta=3", random_state=1, max_seconds=0.3))
    assert found["time"][0] < 10 and any("limit of 0.3 s" in row[4] for item, row in found.items() if "limit" in item)


def test_the_disk_of_model_averaging_is_that_of_its_states_and_its_two_tables(bench):
    given = {
        "source_table": "train", "model": "one", "model_arch_table": "arch", "model_id": 2,
        "compile_params": ADAM.format(0.1), "fit_params": "batch_size=7", "num_iterations": 5,
    }  # fmt: skip
    found = explained(bench, AVERAGE, given)
    assert found["visits"][0] == 10
    arguments = ", ".join(f"{name} => %s" for name in given)
    bench.rows(f"SELECT madlib.madlib_keras_fit({arguments})", [*given.values()])
    run_id = bench.value("SELECT max(run_id) FROM madlib_mop.run")
    like = f"model\\_state\\_{run_id}\\_%"
    n_bytes = bench.value(
        "SELECT sum(pg_total_relation_size(oid))::int8 FROM pg_class WHERE relkind = 'r' AND"
        " (oid IN ('one'::regclass, 'one_summary'::regclass) OR relname LIKE %s)",
        [like],
    )
    assert found["disk"][0] == pytest.approx(n_bytes / 1e6, rel=0.1)
    bench.rows("DROP TABLE one, one_summary")


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (FIT, {**GIVEN, "num_iterations": 0}, "num_iterations must be"),
        (FIT, {**GIVEN, "source_table": "missing"}, "missing"),
        (FIT, {**GIVEN, "model_output_table": "train"}, "exist already"),
        (FIT, {**GIVEN, "iterations": 3}, "has no argument 'iterations'"),
        (FIT, {"source_table": "train"}, "needs model_output_table"),
        ("learn", GIVEN, "function_name must be the name of a function that trains"),
        ("", GIVEN, "function_name is missing"),
    ],
)
def test_it_fails_as_the_call_would(bench, function, given, message):
    with pytest.raises(psycopg2.Error, match=message) as caught:
        explained(bench, function, given)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_arguments_come_in_any_form_of_json(bench, form):
    with pytest.raises(psycopg2.Error, match="madlib_keras_fit needs source_table"):
        bench.rows(f"SELECT * FROM madlib_mop.explain_fit('madlib_keras_fit', {form})", ["{}"])


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_arguments_must_be_an_object(bench, text):
    with pytest.raises(psycopg2.Error, match="arguments"):
        bench.rows(EXPLAIN, [FIT, text])


def test_a_network_that_does_not_build_is_estimated_without_a_probe(bench):
    """The run itself reports it, as the failure of a model."""
    bad = json.dumps({
        "class_name": "Sequential", "config": {"layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 4]}},
            {"class_name": "Reshape", "config": {"target_shape": [5, 5]}},
            {"class_name": "Flatten", "config": {}},
            {"class_name": "Dense", "config": {"units": 3, "activation": "softmax"}}]},
    })  # fmt: skip
    store_unchecked(bench, bad)
    load = "SELECT madlib.load_model_selection_table('arch', 'bad_mst', ARRAY[3], %s, ARRAY['batch_size=7'])"
    bench.rows(load, [[ADAM.format(0.1)]])
    assert explained(bench, FIT, {**GIVEN, "model_selection_table": "bad_mst"})["visits"][0] == 12


def test_the_command_line_prints_it(bench):
    done = run_command(bench, "explain", "fit", "train", "by_cli", "mst", "6", "--validation-table", "valid")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *visits +48 +48 +48 ", done.stdout, re.M)
    assert re.search(r"^ *time .* s +by ", done.stdout, re.M)
    assert run_here(bench, "explain", "fit", "train", "by_cli", "missing", "6").returncode == 1


def test_the_client_returns_it(bench):
    with connect(bench.dsn) as db:
        found = db.explain_fit("train", "mst", epochs=6, validation_table="valid")
    assert found["value"]["visits"] == 48 and found["unit"]["time"] == "s"
