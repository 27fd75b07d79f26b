"""Build a private PostgreSQL tree out of an installed one, so that our extension needs no place in the system's.

PostgreSQL finds its share directory relative to its own binary. So a tree with copies of the binaries, links to
the rest, and an ``extension`` directory of our own is a full installation: nothing of the system's is touched, and
no root is needed. Called by setup.sh: ``pgtree.py PG_CONFIG DESTINATION`` prints the tree's directory of binaries.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(pg_config: str, destination: str) -> int:
    """Make the tree, or leave it alone when it was made from this very PostgreSQL."""
    bindir, sharedir, pkglibdir = (ask(pg_config, option) for option in ("--bindir", "--sharedir", "--pkglibdir"))
    tree = Path(destination)
    prefix = os.path.commonpath([bindir, sharedir, pkglibdir])
    own_bin, own_share, own_lib = (tree / os.path.relpath(path, prefix) for path in (bindir, sharedir, pkglibdir))

    stat = (bindir / "postgres").stat()
    stamp = f"{bindir}\n{sharedir}\n{pkglibdir}\n{stat.st_size} {stat.st_mtime_ns}\n"
    stamp_file = tree / "made_from"
    if not (stamp_file.exists() and stamp_file.read_text() == stamp):
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(bindir, own_bin)
        link_entries(pkglibdir, own_lib)
        link_entries(sharedir, own_share, except_for="extension")
        link_entries(sharedir / "extension", own_share / "extension")
        stamp_file.write_text(stamp)
    print(own_bin)
    return 0


def ask(pg_config: str, option: str) -> Path:
    """Return one directory that a pg_config knows."""
    return Path(subprocess.run([pg_config, option], check=True, capture_output=True, text=True).stdout.strip())


def link_entries(source: Path, target: Path, except_for: str | None = None) -> None:
    """Make ``target`` a directory of links to the entries of ``source``; what is ours there is made new each time."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        if entry.name != except_for and not entry.name.startswith("madlib_mop"):
            (target / entry.name).symlink_to(entry)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
