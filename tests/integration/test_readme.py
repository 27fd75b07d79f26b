"""README.md says nothing untrue: its examples run in their order, and what its reference lists is what there is."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ELSEWHERE = "<!-- elsewhere -->"  # marks an example that needs another server


@dataclass(frozen=True)
class Example:
    """One fenced block: its language and its text."""

    language: str
    text: str


def examples() -> list[Example]:
    """Give the blocks of SQL and Python that can run, in their order."""
    fence = re.compile(r"(?:^(<!--.*-->)\n)?^```(sql|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Example(m[2], m[3]) for m in fence.finditer(README) if m[1] != ELSEWHERE]


def section(title: str) -> str:
    """Give the text under a heading, down to the next of its level or above."""
    level = re.search(rf"^(#+) {re.escape(title)}$", README, re.MULTILINE)[1]
    found = re.search(rf"^{level} {re.escape(title)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", README, re.MULTILINE | re.DOTALL)
    return found[1]


@pytest.fixture(scope="module")
def tour(db, tmp_path_factory):
    """What psql printed when it ran all examples one after the other, as a reader would."""
    folder = tmp_path_factory.mktemp("readme")
    script = []
    for number, example in enumerate(examples()):
        if example.language == "python":
            (folder / f"{number}.py").write_text(example.text)
            script.append(f"\\! MADLIB_MOP_DSN='{db.dsn}' '{sys.executable}' '{folder / f'{number}.py'}'\n")
        else:
            script.append(re.sub(r"^\\watch .*$", r"\\g", example.text, flags=re.MULTILINE))
    digits = subprocess.run([sys.executable, ROOT / "demo" / "digits.py"], stdout=subprocess.PIPE, text=True, check=True)
    db.rows("CREATE ROLE analyst")
    psql = [db.cluster.bindir / "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", db.dsn]
    try:
        done = subprocess.run(
            psql, input=digits.stdout + "".join(script), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
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


def test_the_frozen_layer_kept_its_weights(tour, db):
    query = "SELECT model_weights FROM tour.{} WHERE {} = %s"
    start = bytes(db.value(query.format("networks", "model_id"), [3]))
    end = bytes(db.value(query.format("transferred", "mst_key"), [1]))
    frozen = 4 * (64 * 32 + 32)  # the weights of the first dense layer come first
    assert start[:frozen] == end[:frozen] and start != end


def test_every_function_and_its_arguments_are_in_the_reference(db):
    listed = re.sub(r"\s+", " ", section("Functions"))
    functions = db.rows(
        "SELECT n.nspname || '.' || proname, proargnames[1:pronargs] FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname IN ('madlib', 'madlib_mop')"
        " AND left(proname, 1) <> '_' AND proname !~ '^(worker_|array_bytes$|call$|may_see$)'"
        " AND NOT coalesce(proargnames <@ ARRAY['message', 'usage'], true)"
    )
    assert len(functions) > 10
    for name, arguments in functions:
        signatures = re.findall(rf"{re.escape(name)}\((.*?)\)(?= ->)", listed)
        names = [[item.split()[0] for item in signature.split(",")] for signature in signatures]
        assert [argument for argument in arguments if argument != "caller_path"] in names, f"{name}: {names}"


@pytest.mark.parametrize("title, schema, pattern", [
    ("Record", "madlib_mop", "^[a-z_]+$"),
    ("Output tables", "tour", "^(models|predictions|evaluation|networks|configs|train_packed)(_info|_summary)?$"),
])  # fmt: skip
def test_every_column_is_in_the_reference(tour, db, title, schema, pattern):
    columns = db.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s AND table_name ~ %s"
        " AND table_name !~ '^model_state_'",
        [schema, pattern],
    )
    words = set(re.findall(r"\w+", section(title).replace("<y>", "digit").replace("<x>", "pixels").replace("<id>", "id")))
    assert len(columns) > 30
    assert not {column for _, column in columns if column not in words}


def test_every_setting_is_listed():
    from madlib_mop.driver import settings

    listed = set(re.findall(r"^\| `(\w+)`", section("Settings"), re.MULTILINE))
    assert listed == {"segments", "worker_host", "sandbox", *settings.CALLER_SETTINGS}


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
    assert set(re.findall(r"make (?:-s )?([a-z]+)(?=[\s`]| [A-Z])", "\n".join(re.findall("```sh(.*?)```", README, re.DOTALL)))) <= targets
    anchors = {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in re.findall(r"^#+ (.*)$", README, re.MULTILINE)}
    for link in re.findall(r"\]\(([^)]*)\)", README):
        if not link.startswith("http"):
            assert link[1:] in anchors if link.startswith("#") else (ROOT / link).exists(), link


def test_the_first_screen_has_the_commands_of_the_first_result():
    first = README.splitlines()[:20]
    assert any(line.startswith("make demo") for line in first) and any(line.startswith("make test") for line in first)
