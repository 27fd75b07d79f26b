"""Links the compiled modules of this Python and its packages into a folder: compiled.py DIR; called by test.sh.

With PYTHONPYCACHEPREFIX=DIR, Python finds compiled modules below DIR only, so the first tests would compile it all.
"""

import os
import sys
import sysconfig


def main(prefix: str) -> None:
    """Link what the folder lacks; a module that is newer than its link is compiled as usual, and replaces it."""
    for library in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}:
        for folder, _, names in os.walk(library):
            if os.path.basename(folder) == "__pycache__":
                made = prefix + os.path.dirname(folder)
                os.makedirs(made, exist_ok=True)
                known = set(os.listdir(made))
                for name in names:
                    if name not in known:
                        _link(os.path.join(folder, name), os.path.join(made, name))


def _link(old: str, new: str) -> None:
    try:
        os.link(old, new)  # of a tenth of the size of a symbolic link
    except OSError:  # on another disk, or a file of somebody else
        os.symlink(old, new)


if __name__ == "__main__":
    main(*sys.argv[1:])
