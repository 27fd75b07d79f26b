"""The pages of the manual: valid links, existing commands, limited sizes."""

import re
from pathlib import PurePosixPath

import pytest

from tests.helpers.pages import ROOT, TOUR, anchors, every_page, examples, links, prose, text_of

MAX_LINES = {"README.md": 400, "ARCHITECTURE.md": 280}


def target_of(page: str, link: str) -> tuple[str, str]:
    """Return the path in the repository and the anchor of a page's link."""
    path, _, anchor = link.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    return str(PurePosixPath(file.resolve().relative_to(ROOT))), anchor


@pytest.mark.parametrize("page", every_page())
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in links(page):
        if not link.startswith("http"):
            path, anchor = target_of(page, link)
            assert (ROOT / path).exists(), link
            assert not anchor or anchor in anchors(path), link


@pytest.mark.parametrize("page", every_page())
def test_make_has_the_targets_that_a_page_calls(page):
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    shell = "\n".join(example.text for example in examples(page, "sh"))
    said = shell + "\n".join(re.findall("`(make .*?)`", prose(page)))
    called = set(re.findall(r"(?:^|sudo |&& |;)make (?:-s )?([a-z-]+)", said, re.MULTILINE))
    assert called <= targets


@pytest.mark.parametrize("page", MAX_LINES)
def test_the_pages_that_everybody_reads_are_short(page):
    assert len(text_of(page).splitlines()) < MAX_LINES[page]


def test_the_picture_of_the_library_has_every_folder():
    folders = [p for p in (ROOT / "madlib_mop").rglob("*") if p.is_dir() and list(p.glob("*.py"))]
    said = set(re.findall(r"(\w+)/`", text_of("ARCHITECTURE.md")))
    assert {folder.name for folder in folders} <= said


CONTRIBUTORS = [page for page in every_page() if re.search("ARCHITECTURE|CONTRIBUTING|internals", page)]


@pytest.mark.parametrize("page", CONTRIBUTORS)
def test_files_that_the_pages_for_contributors_name_exist(page):
    folders = [ROOT, ROOT / "madlib_mop", ROOT / "plpython"]
    names = re.findall(r"`([\w/.]+\.(?:py|sql|sh))`", text_of(page))
    assert [name for name in names if not any((folder / name).exists() for folder in folders)] == []


def test_python_of_the_pages_is_run_with_the_tour():
    # run by tests/integration/test_applications.py, test_client_page.py, test_exports_page.py, test_imports_page.py and
    # test_mlflow_models.py
    elsewhere = [
        "docs/applications.md", "docs/exports.md", "docs/imports.md", "docs/python_client.md", "docs/trackers.md",
    ]  # fmt: skip
    assert [page for page in every_page() if examples(page, "python") and page not in TOUR] == elsewhere
