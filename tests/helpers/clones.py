"""A copy of this working tree in another place, for the tests of the installation; its commands run as a user's."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".build", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")


def share_setup(state: Path, other: Path) -> None:
    """Let another state directory use the library and the PostgreSQL of ``state``."""
    (other / "library").symlink_to(state / "library")
    shutil.copy(state / "pg_config", other)


class Clone:
    """A copy of the working tree with a state of its own, in which ``make`` is run.

    Parameters
    ----------
    root : Path
        Where to put the copy; must not exist.
    state : Path or None
        ``MOP_STATE``; None for the scripts' default.
    user : str or None
        The user that runs the scripts (requires root); None for the current user.
    """

    def __init__(self, root: Path, state: Path | None = None, user: str | None = None):
        shutil.copytree(ROOT, root, ignore=NOT_COPIED)
        self.root = root
        self.state = state
        self.user = user
        if user is not None:
            subprocess.run(["chown", "-R", user, root], check=True)

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        """Run a command in the clone, as its user."""
        ours = re.compile("MAKE|MFLAGS|MOP_|MADLIB_MOP|PG|ARGS$|RUN$")
        env = {name: value for name, value in os.environ.items() if not ours.match(name)}
        if self.state is not None:
            env["MOP_STATE"] = str(self.state)
        if self.user is not None:
            command = ("runuser", "-u", self.user, "--", "env", f"HOME={self.root.parent}", *command)
        done = subprocess.run(
            command, cwd=self.root, env={**env, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def make(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        """Run ``make`` in the clone."""
        return self.run("make", *arguments, check=check, **environment)

    def cluster(self, *arguments: str) -> str:
        """Run ``make/cluster.sh`` on the clone's server and return its output."""
        return self.run("make/cluster.sh", *arguments).stdout.strip()

    @property
    def dsn(self) -> str:
        """Return the output of ``make -s dsn``."""
        return self.make("-s", "dsn").stdout.strip()

    def sql(self, statement: str) -> str:
        """Run SQL in database madlib_mop as the clone's user and return the unaligned result."""
        psql = self.cluster("bindir") + "/psql"
        return self.run(psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.dsn, "-c", statement).stdout.strip()
