"""Print the requirements of one group of pyproject.toml, one a line; called by library.sh.

``requirements.py PYPROJECT GROUP``: GROUP is ``library`` (what it needs to be built and to run at a server) or an
extra's name.
"""

import sys
import tomllib


def main(pyproject: str, group: str) -> int:
    """Print the group's lines."""
    with open(pyproject, "rb") as file:
        settings = tomllib.load(file)
    project = settings["project"]
    if group == "library":
        lines = settings["build-system"]["requires"] + project["dependencies"]
        lines += project["optional-dependencies"]["server"]
    else:
        lines = project["optional-dependencies"][group]
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
