"""Read the pages of the manual: their examples, sections and links; used by the tests of the pages."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = "<!-- elsewhere -->"  # marker of an example that needs another server
AFTER_THE_DEMO = "docs/first_steps.md"  # begins with `make demo`: its statements use the demo's tables
#: Pages whose Python is run by tests of their own: test_exports_page.py, test_imports_page.py, test_client_page.py and
#: test_mlflow_models.py.
PYTHON_ELSEWHERE = ("docs/files.md", "docs/python_client.md", "docs/trackers.md")
FENCE = re.compile(r"^(?:(<!--[^\n]*-->)\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One fenced block: its language and its text."""

    language: str
    text: str


def text_of(page: str) -> str:
    """Return the text of a page, given by its path in the repository."""
    return (ROOT / page).read_text()


def every_page() -> list[str]:
    """Return the paths of all pages of the manual."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "docker" / "README.md"]
    return sorted(str(file.relative_to(ROOT)) for file in found)


def examples(page: str, *languages: str) -> list[Example]:
    """Return the blocks of a page that can run, in their order."""
    return [Example(m[2], m[3]) for m in FENCE.finditer(text_of(page)) if m[2] in languages and m[1] != ELSEWHERE]


def psql_script(page: str, dsn: str, folder: Path) -> str:
    r"""Return SQL and Python of a page as a script of psql that ends: a file for a block of Python, \g for \watch."""
    script = []
    for number, example in enumerate(examples(page, "sql", "python")):
        if example.language == "sql":
            script.append(re.sub(r"^\\watch .*$", r"\\g", example.text, flags=re.MULTILINE))
        elif page not in PYTHON_ELSEWHERE:
            file = folder / f"{number}.py"
            file.write_text(example.text.replace("postgresql+psycopg2:///mydb", dsn))
            script.append(f"\\! MADLIB_MOP_DSN='{dsn}' '{sys.executable}' '{file}' || echo failed: '{file}'\n")
    return "".join(script)


def section(page: str, title: str) -> str:
    """Return the text under a heading, down to the next heading."""
    rest = text_of(page).partition(f"# {title}\n")[2]
    assert rest, f"{page} has no section {title}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def prose(page: str) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", text_of(page))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, in the form of GitHub and similar sites."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: str) -> list[str]:
    """Return the targets of a page's links."""
    return re.findall(r"\]\(([^)\s]*)\)", prose(page))
