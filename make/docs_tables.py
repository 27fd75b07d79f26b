"""Write the tables of docs/ that the library knows anew; called by ``make docs-tables``.

The table of a function's arguments stands between ``<!-- arguments: NAME -->`` and ``<!-- end -->``. The table of the
schedules begins with ``<!-- schedules -->``, the tables of the methods of search and of their parameters with
``<!-- methods -->`` and ``<!-- search_parameters -->``. ``--check`` writes nothing: exit status 1 says that a page is
not current.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = "methods|search_parameters|schedules"
MARKED = re.compile(rf"(<!-- (?:arguments: (\w+)|({LISTS})) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Return a page with all marked tables as they are now. Raises KeyError for an unknown function."""
    from madlib_mop.calls import FUNCTIONS
    from madlib_mop.calls.tables import markdown
    from madlib_mop.driver.help.choices import TABLES

    earlier: dict[tuple[str, str], str] = {}

    def table(found: re.Match[str]) -> str:
        made = markdown(FUNCTIONS[found[2]], earlier) if found[2] else TABLES[found[3]]()
        return f"{found[1]}{made}\n{found[4]}"

    return MARKED.sub(table, text)


def outdated(root: Path) -> dict[Path, str]:
    """Return what is to be written into the pages whose tables are not current."""
    pages = {page: page.read_text() for page in sorted((root / "docs").rglob("*.md"))}
    new = {page: with_tables(text) for page, text in pages.items()}
    return {page: text for page, text in new.items() if text != pages[page]}


def main() -> int:
    """Write the pages that are not current, and print their names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    only_checks = parser.parse_args().check
    pages = outdated(ROOT)
    for page, text in pages.items():
        print(page.relative_to(ROOT))
        if not only_checks:
            page.write_text(text)
    return 1 if pages and only_checks else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
