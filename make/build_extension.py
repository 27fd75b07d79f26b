"""Build the extension's control file and versioned SQL from ``sql/`` and ``plpython/``; called by the install scripts.

``build_extension.py --library DIR --output DIR``: DIR of the library holds ``venv/`` and ``backend/``, and is written
into the functions' bodies. Files of ``sql/`` are concatenated in the order of their names. Placeholders:
``@VERSION@``, ``@LIBRARY@`` and ``@PRELUDE@`` (the lines of ``plpython/prelude.py``, with which each body begins);
``@ARGUMENTS@`` in a function's body stands for ``'name', name, ...`` of its signature, as json_build_object takes them.
``--server greenplum`` makes the form for Greenplum 7, whose SQL is that of PostgreSQL 12 with DISTRIBUTED BY: lines
between ``-- if greenplum`` (or ``-- if postgres``) and ``-- end`` are for that server only, and there may be an
``-- else`` between them; such lines stand alone, and do not nest.
"""

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUARD = '\\echo Use "CREATE EXTENSION madlib_mop CASCADE" to load this file. \\quit\n'
PLACEHOLDER = re.compile(r"@[A-Z][A-Z_]*@")
HEAD = re.compile(r"^CREATE FUNCTION ([\w.]+)\(", re.MULTILINE)
PARAMETER = re.compile(r"(?P<name>[a-z_]\w*) +(?P<type>[a-z].*?)(?: +DEFAULT +(?P<default>.+))?", re.DOTALL)
SERVERS = ("postgres", "greenplum")


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
        if words[:2] == ["--", "if"] and len(words) == 3 and words[2] in SERVERS and not opened:
            wanted, opened = words[2] == server, True
        elif words == ["--", "else"] and opened:
            wanted = not wanted
        elif words == ["--", "end"] and opened:
            wanted, opened = True, False
        elif words[:1] == ["--"] and words[1:] in (["else"], ["end"], *(["if", known] for known in SERVERS)):
            raise BuildError(f"{name}, line {number}: {line.strip()!r} does not go with the marks before it")
        elif wanted:
            kept.append(line)
    if opened:
        raise BuildError(f"{name}: the last '-- if' has no '-- end'")
    return "".join(kept)


def parameters_of(signature: str, function: str) -> list[tuple[str, str, str | None]]:
    """Return (name, type, default) of each parameter; ``signature`` is what follows the function's opening parenthesis.

    Raises
    ------
    BuildError
        If the parenthesis is not closed, or a parameter is not ``name type [DEFAULT value]``.
    """
    depth, texts = 0, [""]
    for character in signature:
        if character == ")" and not depth:
            break
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            texts.append("")
        else:
            texts[-1] += character
    else:
        raise BuildError(f"{function}: the parenthesis of its signature is not closed")
    found = []
    for text in filter(None, (" ".join(text.split()) for text in texts)):
        match = PARAMETER.fullmatch(text)
        if match is None:
            raise BuildError(f"{function}: a parameter must be: name type [DEFAULT value]. Received: {text!r}")
        found.append(match.group("name", "type", "default"))
    return found


def with_arguments(text: str, name: str) -> str:
    """Return one file's SQL with each ``@ARGUMENTS@`` written out, from the signature above it.

    ``caller_path`` and bytea, which go another way, are left out; JSON goes as the text that the user gave.

    Raises
    ------
    BuildError
        If there is no signature above, or it cannot be read.
    """
    pieces = text.split("@ARGUMENTS@")
    for i in range(1, len(pieces)):
        heads = [*HEAD.finditer("".join(pieces[:i]))]
        if not heads:
            raise BuildError(f"{name}: there is no CREATE FUNCTION above @ARGUMENTS@")
        function, before = heads[-1][1], "".join(pieces[:i])
        pairs = [
            f"'{parameter}', {parameter}{'::text' if type_ == 'json' else ''}"
            for parameter, type_, _ in parameters_of(before[heads[-1].end() :], function)
            if parameter != "caller_path" and type_ != "bytea"
        ]
        if not pairs:
            raise BuildError(f"{name}: {function} has no arguments for @ARGUMENTS@")
        pieces[i] = ", ".join(pairs) + pieces[i]
    return "".join(pieces)


def build_sql(root: Path, library: str, server: str = "postgres") -> str:
    """Return the text of ``madlib_mop--<version>.sql``.

    Raises
    ------
    BuildError
        If there is no SQL, a placeholder is left, or the library's path cannot stand in a string of SQL and Python.
    """
    if not library.startswith("/") or re.search(r"['\"\\$\n]", library):
        raise BuildError(
            f"the library's directory must be an absolute path without quotes, backslashes and dollar signs. "
            f"Received: {library}"
        )
    files = sorted((root / "sql").glob("*.sql"))
    if not files:
        raise BuildError(f"there is no SQL in {root / 'sql'}")
    prelude = (root / "plpython" / "prelude.py").read_text().strip()
    text = GUARD + "".join(
        f"\n-- {file.name}\n{_sql_of(file, server).rstrip()}\n" for file in files
    )
    text = text.replace("@PRELUDE@", prelude).replace("@VERSION@", read_version(root)).replace("@LIBRARY@", library)
    if left := PLACEHOLDER.search(text):
        raise BuildError(f"unknown placeholder {left.group()} in {root / 'sql'}")
    return text


def _sql_of(file: Path, server: str) -> str:
    return with_arguments(lines_for(server, file.read_text(), file.name), file.name)


def build(root: Path, library: str, output: Path, server: str = "postgres") -> list[Path]:
    """Write the control file and the SQL into ``output`` and give their paths; older versions' files go."""
    version = read_version(root)
    control = (root / "madlib_mop.control").read_text().replace("@VERSION@", version)
    if server == "greenplum":  # a parameter of PostgreSQL 13; false there is all that 12 knows
        control = "".join(line for line in control.splitlines(keepends=True) if not line.startswith("trusted"))
    contents = {f"madlib_mop--{version}.sql": build_sql(root, library, server), "madlib_mop.control": control}
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="directory that holds venv/ and backend/")
    parser.add_argument("--output", type=Path, help="directory for the two files")
    parser.add_argument("--root", type=Path, default=ROOT, help="the sources (default: this clone)")
    parser.add_argument("--server", choices=SERVERS, default="postgres", help="what the extension will run on")
    parser.add_argument("--print-version", action="store_true", help="build nothing, print the version")
    arguments = parser.parse_args()
    if not arguments.print_version and not (arguments.library and arguments.output):
        parser.error("--library and --output are needed")
    try:
        if arguments.print_version:
            print(read_version(arguments.root))
            return 0
        for file in build(arguments.root, arguments.library, arguments.output, arguments.server):
            print(file)
    except BuildError as error:
        print(f"madlib_mop: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
