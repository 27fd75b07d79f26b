"""The pages of the manual: valid links, existing commands, limited sizes."""

import os
import re
from collections.abc import Iterator

from tests.helpers.pages import PYTHON_ELSEWHERE, ROOT, anchors, every_page, examples, links, prose, text_of
from tests.helpers.unit.findings import assert_none, places_of

MAX_LINES = {"README.md": 400, "ARCHITECTURE.md": 280}


def target_of(page: str, link: str) -> tuple[str, str]:
    """Return the path in the repository and the anchor of a page's link."""
    path, _, anchor = link.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    return os.path.relpath(file, ROOT), anchor


def broken_links(page: str) -> Iterator[str]:
    """Yield the links of a page to files and headings that do not exist."""
    for link in dict.fromkeys(links(page)):
        if not link.startswith("http"):
            path, anchor = target_of(page, link)
            is_there = (ROOT / path).exists() and not path.startswith("..")
            if not is_there or (anchor and anchor not in anchors(path)):
                yield from (f"{place}: no file or heading {link}" for place in places_of(f"]({link})", page))


def test_links_lead_to_files_and_headings_that_exist():
    assert_none(found for page in every_page() for found in broken_links(page))


def called_targets(page: str) -> set[str]:
    """Return the targets of make that a page calls."""
    shell = "\n".join(example.text for example in examples(page, "sh"))
    said = shell + "\n".join(re.findall("`(make .*?)`", prose(page)))
    return set(re.findall(r"(?:^|sudo |&& |;)make (?:-s )?([a-z-]+)", said, re.MULTILINE))


def test_make_has_the_targets_that_a_page_calls():
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    assert_none(
        f"{place}: make has no target {name}"
        for page in every_page()
        for name in sorted(called_targets(page) - targets)
        for place in places_of(name, page)
    )


def test_the_pages_that_everybody_reads_are_short():
    lines = {page: len(text_of(page).splitlines()) for page in MAX_LINES}
    assert_none(
        f"{page}:{MAX_LINES[page]}: the page has {n} lines" for page, n in lines.items() if n >= MAX_LINES[page]
    )


def test_the_picture_of_the_library_has_every_folder():
    folders = [p for p in (ROOT / "madlib_mop").rglob("*") if p.is_dir() and list(p.glob("*.py"))]
    said = set(re.findall(r"(\w+)/`", text_of("ARCHITECTURE.md")))
    assert {folder.name for folder in folders} <= said


CONTRIBUTORS = [page for page in every_page() if re.search("ARCHITECTURE|CONTRIBUTING|internals", page)]


def named_files(page: str) -> list[str]:
    """Return the files of the sources that a page names, without those that it names again."""
    return list(dict.fromkeys(re.findall(r"`([\w/.-]+\.(?:py|sql|sh))`", text_of(page))))


def test_files_that_the_pages_for_contributors_name_exist():
    folders = [ROOT, ROOT / "madlib_mop", ROOT / "plpython"]
    assert len(CONTRIBUTORS) > 2
    assert_none(
        f"{place}: there is no file {name}"
        for page in CONTRIBUTORS
        for name in named_files(page)
        if not any((folder / name).exists() for folder in folders)
        for place in places_of(f"`{name}`", page)
    )


def test_pages_with_python_of_their_own_tests_exist():
    assert set(PYTHON_ELSEWHERE) <= {page for page in every_page() if examples(page, "python")}


def test_the_first_screen_has_the_commands_of_the_first_result():
    first = text_of("README.md").splitlines()[:20]
    assert any(line.startswith("make demo") for line in first) and any(line.startswith("make test") for line in first)
