"""Build the extension's control file and versioned SQL from ``sql/`` and ``plpython/``; called by the install scripts.

``build_extension.py --library DIR --output DIR``: DIR of the library holds ``venv/`` and ``backend/``, and is written
into the functions' bodies. Files of ``sql/`` are concatenated in the order of their names. Placeholders:
``@VERSION@``, ``@LIBRARY@`` and ``@PRELUDE@`` (the lines of ``plpython/prelude.py``, with which each body begins);
``@FUNCTIONS@`` and ``@HELP@`` stand for the functions and their help forms, which
``madlib_mop/calls/sql_functions.py`` writes from their specifications, ``@PREDICT@`` for the functions that predict in
queries (``madlib_mop/calls/predictions.py``), ``@PREDICTIONS@`` for their schema, ``@HIGHER_IS_BETTER@`` for the names
of metrics in ``madlib_mop/models/parameters/parser.py``.
``--server greenplum`` makes the form for Greenplum 7, whose SQL is that of PostgreSQL 12 with DISTRIBUTED BY: lines
between ``-- if greenplum`` and ``-- end`` are for that dialect only, and for those that take its lines (`dialects.py`).
There may be an ``-- else`` between them; such lines stand alone, and do not nest. Markers of defences
(``-- defence: NAME``, for the tests) are left out.

``sql/upgrade/`` has what leads from a released version to the next (see ``upgrade_sql.py``), ``sql/released/`` the SQL
of released versions for PostgreSQL, which ``--keep`` writes.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in ("make", "", "plpython")]  # python -I adds none
import upgrade_sql  # noqa: E402
from dialects import DIALECTS  # noqa: E402

GUARD = '\\echo Use "CREATE EXTENSION madlib_mop CASCADE" to load this file. \\quit\n'
GUARD_OF_UPDATE = '\\echo Use "ALTER EXTENSION madlib_mop UPDATE" to load this file. \\quit\n'
PLACEHOLDER = re.compile(r"@[A-Z][A-Z_]*@")
_MARKER_OF_DEFENCE = re.compile(r" *(?:--|#) defence: .*")


class BuildError(Exception):
    """The sources, or the place where the library will be, do not make an extension."""


def read_version(root: Path) -> str:
    """Return the version of the library and of the backend's modules, which must be one, without importing them."""
    files = [root / "madlib_mop" / "__init__.py", root / "plpython" / "mop_backend" / "__init__.py"]
    versions = [
        ast.literal_eval(node.value)
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    if len(versions) != len(files) or len(set(versions)) != 1:
        raise BuildError(f"__version__ must be the same in {files[0]} and {files[1]}. Received: {versions}")
    return versions[0]


def lines_for(server: str, text: str, name: str) -> str:
    """Return the lines of one file's SQL that are for a server.

    Raises
    ------
    BuildError
        If the marks do not go together.
    """
    kept, wanted, opened = [], True, False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        words = line.split()
        if words[:2] == ["--", "if"] and len(words) == 3 and words[2] in DIALECTS and not opened:
            wanted, opened = words[2] in DIALECTS[server].takes, True
        elif words == ["--", "else"] and opened:
            wanted = not wanted
        elif words == ["--", "end"] and opened:
            wanted, opened = True, False
        elif words[:1] == ["--"] and words[1:] in (["else"], ["end"], *(["if", known] for known in DIALECTS)):
            raise BuildError(f"{name}, line {number}: {line.strip()!r} does not match the marks before it")
        elif wanted and not _MARKER_OF_DEFENCE.fullmatch(line.rstrip("\n")):
            kept.append(_MARKER_OF_DEFENCE.sub("", line))
    if opened:
        raise BuildError(f"{name}: the last '-- if' has no '-- end'")
    return "".join(kept)


def build_sql(root: Path, library: str, server: str = "postgres") -> str:
    """Return the text of ``madlib_mop--<version>.sql``.

    Raises
    ------
    BuildError
        If there is no SQL, a placeholder is left, or the library's path cannot stand in a string of SQL and Python.
    """
    return _filled(root, library, GUARD + source_sql(root, server))


def source_sql(root: Path, server: str) -> str:
    """Return the files of ``sql/`` as one text for a server; only what an installation fills in is left out.

    Raises
    ------
    BuildError
        If there is no SQL.
    """
    files = sorted((root / "sql").glob("*.sql"))
    if not files:
        raise BuildError(f"there is no SQL in {root / 'sql'}")
    return "".join(f"\n-- {file.name}\n{_sql_of(file, server).rstrip()}\n" for file in files)


def build_updates(root: Path, library: str, server: str = "postgres") -> dict[str, str]:
    """Return the texts of ``madlib_mop--<released>--<version>.sql`` by the released version.

    Raises
    ------
    BuildError
        As `build_sql`, or if the files of ``sql/upgrade/`` do not lead to the version of the sources.
    """
    folder = root / "sql" / "upgrade"
    try:
        paths = upgrade_sql.path_of_steps(folder, read_version(root))
        sources = source_sql(root, server) if paths else ""
        replacing, revoking = upgrade_sql.replacing(sources), upgrade_sql.revoking(sources)
    except ValueError as error:
        raise BuildError(str(error)) from None
    updates = {}
    for released, steps in paths.items():
        files = [_sql_of(file, server) for file in steps]
        drop, after = (_sql_of(folder / name, server) for name in ("drop.sql", "after.sql"))
        text = "\n".join([GUARD_OF_UPDATE, *files, replacing, drop, revoking, after])
        updates[released] = _filled(root, library, text)
    return updates


def released_sql(root: Path, library: str) -> dict[str, str]:
    """Return the SQL of every released version, as ``sql/released/`` keeps it, with this library; PostgreSQL's only."""
    files = sorted((root / "sql" / "released").glob("*.sql"))
    return {file.stem: _filled(root, library, GUARD + file.read_text(), file.stem) for file in files}


def _filled(root: Path, library: str, text: str, version: str | None = None) -> str:
    if not library.startswith("/") or re.search(r"['\"\\$\n]", library):
        raise BuildError(
            f"the library's directory must be an absolute path without quotes, backslashes and dollar signs. "
            f"Received: {library}"
        )
    prelude = (root / "plpython" / "prelude.py").read_text().strip()
    text = text.replace("@PRELUDE@", prelude).replace("@VERSION@", version or read_version(root))
    text = text.replace("@LIBRARY@", library)
    if left := PLACEHOLDER.search(text):
        raise BuildError(f"unknown placeholder {left.group()} in {root / 'sql'}")
    return text


def _sql_of(file: Path, server: str) -> str:
    text = file.read_text()
    if "@PREDICT@" in text:
        from madlib_mop.calls.predictions import predict_functions  # here: the version is read without it

        text = text.replace("@PREDICT@", predict_functions())
    text = lines_for(server, text, file.name).replace("@PREDICTIONS@", DIALECTS[server].predictions)
    if "@FUNCTIONS@" in text:
        from madlib_mop.calls.sql_functions import sql_functions

        text = text.replace("@FUNCTIONS@", sql_functions())
    if "@HELP@" in text:
        from madlib_mop.calls.sql_functions import help_functions

        text = text.replace("@HELP@", help_functions())
    if "@HIGHER_IS_BETTER@" in text:
        from madlib_mop.models.parameters.parser import PATTERN

        text = text.replace("@HIGHER_IS_BETTER@", PATTERN)
    return text


def build(root: Path, library: str, output: Path, server: str = "postgres", released: bool = False) -> list[Path]:
    """Write the control file, the SQL and the updates into ``output`` and give their paths; older files go.

    With ``released``, the SQL of released versions too, so that tests can begin with them.
    """
    version = read_version(root)
    control = (root / "madlib_mop.control").read_text().replace("@VERSION@", version)
    unknown = DIALECTS[server].not_in_control
    control = "".join(line for line in control.splitlines(keepends=True) if line.partition(" ")[0] not in unknown)
    contents = {f"madlib_mop--{version}.sql": build_sql(root, library, server)}
    for old, text in build_updates(root, library, server).items():
        contents[f"madlib_mop--{old}--{version}.sql"] = text
    if released:
        contents |= {f"madlib_mop--{old}.sql": text for old, text in released_sql(root, library).items()}
    contents["madlib_mop.control"] = control
    output.mkdir(parents=True, exist_ok=True)
    for old in output.glob("madlib_mop--*.sql"):
        if old.name not in contents:
            old.unlink()
    for name, text in contents.items():
        file = output / name
        if not file.exists() or file.read_text() != text:
            draft = output / f".{name}.new"
            draft.write_text(text)
            draft.replace(file)
    return [output / name for name in contents]


def main() -> int:
    """Build as the command line says, and print the paths of the files made."""
    sys.dont_write_bytecode = True  # `sudo make install` leaves no files of root among the sources
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="directory that holds venv/ and backend/")
    parser.add_argument("--output", type=Path, help="directory for the files")
    parser.add_argument("--server", choices=DIALECTS, default="postgres", help="what the extension will run on")
    parser.add_argument("--released", action="store_true", help="also the SQL of released versions")
    parser.add_argument("--keep", action="store_true", help="write sql/released/<version>.sql, build nothing")
    parser.add_argument("--print-version", action="store_true", help="build nothing, print the version")
    arguments = parser.parse_args()
    if not (arguments.print_version or arguments.keep) and not (arguments.library and arguments.output):
        parser.error("--library and --output are needed")
    try:
        if arguments.print_version:
            print(read_version(ROOT))
            return 0
        if arguments.keep:
            file = ROOT / "sql" / "released" / f"{read_version(ROOT)}.sql"
            file.write_text(source_sql(ROOT, "postgres"))
            print(file)
            return 0
        for file in build(ROOT, arguments.library, arguments.output, arguments.server, released=arguments.released):
            print(file)
    except BuildError as error:
        print(f"madlib_mop: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
