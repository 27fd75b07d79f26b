"""Runs commands on the hosts of a cluster, by the remote shell or locally; called by an installation's steps."""

import shlex
import socket
import subprocess
from dataclasses import dataclass
from importlib import resources
from typing import IO

from madlib_mop.errors import NotReady

_SHOWN = 300
_UNREACHED = 255  # exit status of ssh for its own errors, as opposed to those of the command


@dataclass(frozen=True)
class Host:
    """A machine of the cluster.

    Attributes
    ----------
    name : str
        The name in gp_segment_configuration.
    segments : tuple of int
        Its primary segments.
    is_here : bool
        Whether it is this machine.
    """

    name: str
    segments: tuple[int, ...]
    is_here: bool


@dataclass(frozen=True)
class RemoteShell:
    """Runs commands on hosts.

    Attributes
    ----------
    words : tuple of str
        Called with the host's name and one command line after them, as ssh is.
    """

    words: tuple[str, ...]

    def script(
        self,
        host: Host,
        name: str,
        *arguments: str,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        timeout_s: float | None = 120.0,
    ) -> str:
        """Run one of this package's scripts at a host and return its output.

        Raises
        ------
        NotReady
            If the host cannot be reached, or the script fails there.
        """
        text = resources.files(__package__).joinpath(f"{name}.sh").read_text()
        return self.run(host, ["sh", "-c", text, name, *arguments], stdin, timeout_s)

    def run(
        self,
        host: Host,
        command: list[str],
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        timeout_s: float | None = 120.0,
    ) -> str:
        """Run one command at a host and return its output; ``stdin`` is a file. Raises NotReady."""
        words = command if host.is_here else [*self.words, host.name, shlex.join(command)]
        try:
            done = subprocess.run(words, stdin=stdin, capture_output=True, timeout=timeout_s, cwd="/")
        except subprocess.TimeoutExpired:
            raise NotReady(f"it did not answer within {timeout_s:g} s", hint="Check that host.") from None
        except OSError as error:
            raise NotReady(f"{words[0]} cannot be run here: {error.strerror}") from None
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace")
        said = done.stderr.decode("utf-8", "replace").strip()[-_SHOWN:] or f"exit status {done.returncode}"
        said = " ".join(said.split())
        if done.returncode == _UNREACHED and not host.is_here:
            raise NotReady(
                f"it cannot be reached: {said}",
                hint=f"As this user, `{shlex.join([*self.words, host.name, 'true'])}` must work without a password"
                " (set up by gpssh-exkeys).",
            )
        raise NotReady(f"a command failed there: {said}")


def is_this_machine(name: str) -> bool:
    """Return whether a host's name is this machine's: it is the local name, or one of its addresses can be bound
    here."""
    if name in ("localhost", socket.gethostname(), socket.getfqdn()):
        return True
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False
