"""README.md says nothing untrue: its examples run in their order, and what its reference lists is what there is."""

import re
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.plain_keras import assert_keras_reads_them

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ELSEWHERE = "<!-- elsewhere -->"  # marks an example that needs another server
pytestmark = pytest.mark.timeout(900)  # trainers start and trace slowly on a busy machine
FENCE = re.compile(r"^(?:(<!--[^\n]*-->)\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One fenced block: its language and its text."""

    language: str
    text: str


def examples(*languages: str) -> list[Example]:
    """Return the blocks that can run, in their order."""
    return [Example(m[2], m[3]) for m in FENCE.finditer(README) if m[2] in languages and m[1] != ELSEWHERE]


def section(title: str) -> str:
    """Return the text under a heading, down to the next heading."""
    rest = README.partition(f"# {title}\n")[2]
    assert rest, f"there is no section {title}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.fixture(scope="module")
def tour(db, tmp_path_factory):
    """What psql printed when it ran all examples one after the other, as a reader would."""
    folder = tmp_path_factory.mktemp("readme")
    load = [sys.executable, ROOT / "demo" / "digits.py"]
    script = [subprocess.run(load, stdout=subprocess.PIPE, text=True, check=True).stdout]
    for number, example in enumerate(examples("sql", "python")):
        if example.language == "python":
            file = folder / f"{number}.py"
            file.write_text(example.text)
            script.append(f"\\! MADLIB_MOP_DSN='{db.dsn}' '{sys.executable}' '{file}'\n")
        else:
            script.append(re.sub(r"^\\watch .*$", r"\\g", example.text, flags=re.MULTILINE))
    psql = [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", db.dsn]
    is_there = db.value("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'analyst')")  # another test's
    if not is_there:
        db.rows("CREATE ROLE analyst")
    try:
        done = subprocess.run(
            psql, input="".join(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
        if not is_there:
            db.rows("DROP ROLE analyst")
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_the_examples_run_and_their_models_are_usable(tour, db):
    assert db.rows("SELECT mst_key, status FROM tour.models_info ORDER BY mst_key") == [(1, "trained"), (2, "trained")]
    right = "SELECT avg((class_value = digit::text)::integer) FROM tour.predictions JOIN demo.digits USING (id)"
    assert db.value(right) > 0.8
    assert db.value("SELECT count(*) FROM tour.best_three") == 3 * db.value("SELECT count(*) FROM tour.new_rows")
    assert db.value("SELECT metric FROM tour.evaluation") > 0.8


def test_the_script_of_plain_keras_and_the_replay_give_the_same_bits(tour):
    assert re.search("^same bits$", tour, re.MULTILINE), tour[-3000:]
    assert re.search(r"models \| same_bits \n-+\+-+\n +2 \| +2\n", tour)


def test_plain_keras_reads_every_architecture_as_it_is(tour, db):
    with closing(db.connect()) as connection:
        assert assert_keras_reads_them(connection) >= 7


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


def test_the_frozen_layer_kept_its_weights(tour, db):
    start = bytes(db.value("SELECT model_weights FROM tour.networks WHERE model_id = 3"))
    end = bytes(db.value("SELECT model_weights FROM tour.transferred"))
    n_frozen = 4 * (64 * 32 + 32)  # bytes of the first dense layer
    assert start[:n_frozen] == end[:n_frozen] and start[n_frozen:] != end[n_frozen:]


def test_every_function_and_its_arguments_are_in_the_reference(db):
    listed = re.sub(r"\s+", " ", section("Functions"))
    functions = db.rows(
        "SELECT n.nspname || '.' || proname, proargnames[1:pronargs] FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname IN ('madlib', 'madlib_mop')"
        " AND NOT coalesce(proargnames <@ ARRAY['message', 'usage'], true)"
    )
    assert len(functions) > 10
    for name, arguments in functions:
        signatures = re.findall(rf"{re.escape(name)}\((.*?)\) ->", listed)
        names = [[item.split()[0] for item in signature.split(",") if item] for signature in signatures]
        assert [argument for argument in arguments if argument != "caller_path"] in names, name


def columns_of(db, schema: str, tables: str) -> dict[str, set[str]]:
    """Return the columns of the tables and views of a schema whose names match a pattern."""
    rows = db.rows(
        "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns WHERE table_schema = %s"
        " AND table_name ~ %s AND table_name !~ '^model_state_' GROUP BY table_name",
        [schema, tables],
    )
    return {table: set(columns) for table, columns in rows}


def test_the_columns_of_the_record_are_those_in_the_reference(db):
    listed, table = {}, None
    for name, columns in re.findall(r"^\| (?:`(\w+)`)? \| .*?\| `([\w ]+)` \|$", section("Record"), re.MULTILINE):
        table = name or table
        listed[table] = listed.get(table, set()) | set(columns.split())
    assert listed == columns_of(db, "madlib_mop", ".")


def test_the_columns_of_the_output_tables_are_in_the_reference(tour, db):
    text = section("Output tables").replace("<y>", "digit").replace("<x>", "pixels").replace("<id>", "id")
    words = set(re.findall(r"\w+", text))
    made = "^(networks|train_packed|configs|models|evaluation|best_three)(_info|_summary)?$"
    tables = columns_of(db, "tour", made)
    assert len(tables) == 10
    assert {table: columns - words for table, columns in tables.items()} == dict.fromkeys(tables, set())


def test_every_setting_is_listed():
    from madlib_mop.driver.session import settings

    listed = re.findall(r"^\| `(\w+)`", section("Settings"), re.MULTILINE)
    superusers = {"worker_host", "accepted_functions", "sandbox", "pickled_functions"}
    assert set(listed) == {"segments", "hosts", *superusers, *settings.CALLER_SETTINGS, *settings.CALLER_SWITCHES}


def test_messages_in_the_troubleshooting_are_those_of_the_program():
    folders = ("madlib_mop", "plpython", "make", "sql")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".sh", ".sql")]
    sources = "\n".join(file.read_text() for file in files)
    rows = re.findall(r"^\| (`.*?) \|", section("Troubleshooting"), re.MULTILINE)
    assert len(rows) > 8
    for fragment in [text for row in rows for text in re.findall("`(.*?)`", row)]:
        assert fragment in sources or fragment.startswith("permission denied"), fragment


def test_commands_files_and_anchors_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shell = "\n".join(example.text for example in examples("sh"))
    assert set(re.findall(r"\bmake (?:-s )?([a-z]+)", shell + " ".join(re.findall("`(make .*?)`", README)))) <= targets
    titles = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for link in re.findall(r"\]\(([^)]*)\)", README):
        assert link.startswith("http") or link in anchors or (ROOT / link).exists(), link


def test_the_first_screen_has_the_commands_of_the_first_result():
    first = README.splitlines()[:20]
    assert any(line.startswith("make demo") for line in first) and any(line.startswith("make test") for line in first)
