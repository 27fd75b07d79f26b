"""README.md and the pages that continue its tour are correct: their examples run in order."""

import re
import subprocess
import sys
from contextlib import closing

import pytest

from tests.helpers.pages import ROOT, TOUR, examples, section, text_of
from tests.helpers.plain_keras import assert_keras_reads_them

pytestmark = pytest.mark.timeout(1200)  # trainers start and trace slowly on a busy machine


def without_watch(script: str) -> str:
    r"""Return a script of psql's that ends: \watch becomes \g."""
    return re.sub(r"^\\watch .*$", r"\\g", script, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def tour(db, tmp_path_factory):
    """psql's output of all examples, run one after the other as a reader would."""
    folder = tmp_path_factory.mktemp("readme")
    load = [sys.executable, ROOT / "demo" / "digits.py"]
    script = [subprocess.run(load, stdout=subprocess.PIPE, text=True, check=True).stdout]
    for number, example in enumerate(e for page in TOUR for e in examples(page, "sql", "python")):
        if example.language == "python":
            file = folder / f"{number}.py"
            file.write_text(example.text)
            script.append(f"\\! MADLIB_MOP_DSN='{db.dsn}' '{sys.executable}' '{file}'\n")
        else:
            script.append(without_watch(example.text))
    psql = [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", db.dsn]
    is_there = db.value("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'analyst')")  # created by another test
    if not is_there:
        db.rows("CREATE ROLE analyst")
    try:
        done = subprocess.run(psql, input="".join(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        if not is_there:
            db.rows("DROP ROLE analyst")
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_examples_run_and_their_models_are_usable(tour, db):
    assert db.rows("SELECT mst_key, status FROM tour.models_info ORDER BY mst_key") == [(1, "trained"), (2, "trained")]
    right = "SELECT avg((class_value = digit::text)::integer) FROM tour.predictions JOIN demo.digits USING (id)"
    assert db.value(right) > 0.8
    assert db.value("SELECT count(*) FROM tour.best_three") == 3 * db.value("SELECT count(*) FROM tour.new_rows")
    assert db.value("SELECT metric FROM tour.evaluation") > 0.8


@pytest.mark.slow
def test_the_script_of_plain_keras_and_the_replay_give_the_same_bits(tour):
    assert re.search("^same bits$", tour, re.MULTILINE), tour[-3000:]
    assert re.search(r"models \| same_bits \n-+\+-+\n +4 \| +4\n", tour)


@pytest.mark.slow
def test_plain_keras_reads_every_architecture_as_it_is(tour, db):
    with closing(db.connect()) as connection:
        assert assert_keras_reads_them(connection) >= 7


@pytest.mark.slow
def test_plain_keras_predicts_what_the_page_predicts(tour, db):
    import keras
    import numpy as np

    arch, weights = db.rows("SELECT model_arch::text, model_weights FROM tour.models WHERE mst_key = 1")[0]
    plain, values = keras.models.model_from_json(arch), np.frombuffer(bytes(weights), np.float32)
    ends = np.cumsum([weight.size for weight in plain.get_weights()])[:-1]
    plain.set_weights([v.reshape(w.shape) for v, w in zip(np.split(values, ends), plain.get_weights(), strict=True)])
    rows = db.rows("SELECT pixels, madlib_mop.predict('tour.models', 1, pixels) FROM tour.new_rows")
    x = np.array([pixels for pixels, _ in rows], np.float32).reshape(-1, 8, 8, 1) / np.float32(16)
    assert np.allclose(plain.predict(x, verbose=0), [scores for _, scores in rows], atol=1e-6)


@pytest.mark.slow
def test_the_frozen_layer_kept_its_weights(tour, db):
    start = bytes(db.value("SELECT model_weights FROM tour.networks WHERE model_id = 3"))
    end = bytes(db.value("SELECT model_weights FROM tour.transferred"))
    n_frozen = 4 * (64 * 32 + 32)  # bytes of the first dense layer
    assert start[:n_frozen] == end[:n_frozen] and start[n_frozen:] != end[n_frozen:]


def columns_of(db, tables: str) -> dict[str, set[str]]:
    """Return the columns of the tour's tables whose names match a pattern."""
    rows = db.rows(
        "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns WHERE table_schema = 'tour'"
        " AND table_name ~ %s GROUP BY table_name",
        [tables],
    )
    return {table: set(columns) for table, columns in rows}


@pytest.mark.slow
def test_the_columns_of_the_output_tables_are_in_the_reference(tour, db):
    text = section("docs/reference.md", "Output tables")
    words = set(re.findall(r"\w+", text.replace("<y>", "digit").replace("<x>", "pixels").replace("<id>", "id")))
    made = "^(networks|train_packed|configs|models|evaluation|best_three)(_info|_summary)?$"
    tables = columns_of(db, made)
    assert len(tables) == 10
    assert {table: columns - words for table, columns in tables.items()} == dict.fromkeys(tables, set())


def test_the_first_screen_has_the_commands_of_the_first_result():
    first = text_of("README.md").splitlines()[:20]
    assert any(line.startswith("make demo") for line in first) and any(line.startswith("make test") for line in first)
