"""`madlib-mop install --greenplum` or `--cloudberry`: one library on all hosts, copied from the coordinator's host.

It installs the library that ``make install`` built there. The library is copied next to the old one on every other
host and tested. When all hosts are ready, each renames it into place and removes the old one. So if one host is not
ready, the whole cluster stays unchanged.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mop_backend.frames import Header

from madlib_mop.cli.cluster.facts import HostFacts, broken, problem, read_facts
from madlib_mop.cli.cluster.layout import Cluster, Layout
from madlib_mop.cli.cluster.remote import Host, RemoteShell
from madlib_mop.errors import MopError, NotReady

_AT_ONCE = 8  # hosts that are processed in parallel


@dataclass(frozen=True)
class Report:
    """The result at one host.

    Attributes
    ----------
    host : Host
        Which.
    facts : HostFacts or None
        The facts of the host, if it was reachable.
    versions : dict or None
        The versions of its library (versions.py).
    done : str
        The action taken there.
    error : MopError or None
        The problem, if any.
    """

    host: Host
    facts: HostFacts | None = None
    versions: Header | None = None
    done: str = ""
    error: MopError | None = None

    @property
    def seen(self) -> HostFacts:
        """The facts of a host that was reached."""
        assert self.facts is not None, "a host without an error was looked at"
        return self.facts

    @property
    def answered(self) -> Header:
        """The library versions of a reachable host."""
        assert self.versions is not None, "a host without an error was asked"
        return self.versions


def install(cluster: Cluster, shell: RemoteShell, say: Callable[[str], None], check_only: bool = False) -> list[Report]:
    """Copy the library to all hosts and check them; return one report for each host, in their order.

    Parameters
    ----------
    cluster : Cluster
        The hosts, of which one at least is this machine.
    shell : RemoteShell
        How to reach the others.
    say : callable
        Called with progress messages.
    check_only : bool
        Whether to change nothing and only report hosts with another library.
    """
    return _Installation(cluster, shell, say).run(check_only)


_Result = TypeVar("_Result")


class _Installation:
    def __init__(self, cluster: Cluster, shell: RemoteShell, say: Callable[[str], None]):
        self._layout: Layout = cluster.layout
        self._shell = shell
        self._print = say
        self._reports = {host: Report(host) for host in cluster.hosts}
        self._source = next(host for host in cluster.hosts if host.is_here)

    def run(self, check_only: bool) -> list[Report]:
        others = [host for host in self._reports if not host.is_here]
        layout = self._layout
        if not check_only:
            self._each(others, lambda host: self._shell.script(host, "sweep", layout.library, layout.extension))
        self._look(list(self._reports))
        ours = self._reports[self._source].facts
        if ours is not None:
            self._judge(lambda report: problem(report.seen, ours, layout))
        outdated = [host for host in others if ours is None or not self._has_ours(host)]
        if check_only:
            self._judge(lambda report: None if report.host not in outdated else _other_library(report.seen))
        elif ours is not None and not self._failed() and outdated:
            self._copy(outdated, ours)
            self._compare(outdated, ours)
        if check_only or not self._failed():
            self._try_out([] if check_only else outdated)
        if not check_only and outdated:
            self._finish(outdated)
        return list(self._reports.values())

    def _look(self, hosts: Sequence[Host]) -> None:
        library, extension = self._layout.library, self._layout.extension
        self._each(
            hosts,
            lambda host: self._facts(host, library, extension),
            lambda report, facts: replace(report, facts=facts),
        )

    def _facts(self, host: Host, library: str, extension: str) -> HostFacts:
        before_s = time.time()
        text = self._shell.script(host, "look", self._layout.bin, library, extension, self._layout.python)
        return read_facts(text, before_s, time.time())

    def _copy(self, hosts: Sequence[Host], ours: HostFacts) -> None:
        names = ", ".join(host.name for host in hosts)
        self._print(f"copying {self._layout.library} ({ours.size_kb >> 10} MB) to {names}")
        self._each(hosts, self._send)

    def _compare(self, hosts: Sequence[Host], ours: HostFacts) -> None:
        """Check that the copied files equal the sent ones, file by file."""
        new = f"{self._layout.library}.new"

        def compare(host: Host) -> None:
            if not self._facts(host, f"{new}/madlib_mop", new).same_library(ours):
                raise NotReady("the files that arrived there differ from those that were sent", hint="Run this again.")

        self._each(hosts, compare)

    def _send(self, host: Host) -> None:
        """Stream an archive of the local installation; afterwards it is next to the old library."""
        library, extension = Path(self._layout.library), self._layout.extension
        files = sorted(file.name for file in Path(extension).glob("madlib_mop--*.sql"))
        archive = subprocess.Popen(
            ["tar", "-c", "-C", str(library.parent), library.name, "-C", extension, *files, "madlib_mop.control"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        stream = archive.stdout
        assert stream is not None, "it is a pipe"
        try:
            self._shell.script(host, "receive", str(library), stdin=stream, timeout_s=None)
        finally:
            stream.close()  # ends tar if the host has stopped reading
            status = archive.wait()
        if status != 0:
            raise NotReady(f"tar could not read {library} on this host")

    def _try_out(self, outdated: Sequence[Host]) -> None:
        self._print(f"importing TensorFlow on {len(self._reports)} host(s)")

        def ask(host: Host) -> Header:
            directory = f"{self._layout.library}.new/madlib_mop" if host in outdated else self._layout.library
            python = f"{directory}/venv/bin/python"
            answer: Header = json.loads(self._shell.run(host, [python, "-I", "-m", "madlib_mop.cli.cluster.versions"]))
            return answer

        self._each(list(self._reports), ask, lambda report, versions: replace(report, versions=versions))
        expected = self._reports[self._source].versions
        if expected is not None:
            self._judge(lambda report: broken(report.answered, expected))

    def _finish(self, outdated: Sequence[Host]) -> None:
        """Rename the copies into place, all or none; then check that they equal the local installation."""
        layout = self._layout
        if self._failed():
            for host in outdated:
                try:
                    self._shell.script(host, "sweep", layout.library, layout.extension)
                except NotReady:
                    continue  # the host's report has this error already; the next installation sweeps
            return
        self._each(
            outdated,
            lambda host: self._shell.script(host, "switch", layout.library, layout.extension),
            lambda report, _: replace(report, done="installed"),
        )

    def _each(
        self,
        hosts: Sequence[Host],
        step: Callable[[Host], _Result],
        note: Callable[[Report, _Result], Report] = lambda report, _: report,
    ) -> None:
        """Run a step at several hosts in parallel; store its result or its error."""
        hosts = [host for host in hosts if self._reports[host].error is None]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tasks = {host: pool.submit(step, host) for host in hosts}
        for host, task in tasks.items():
            report = self._reports[host]
            try:
                self._reports[host] = note(report, task.result())
            except MopError as error:
                self._reports[host] = replace(report, error=error)
            except ValueError as error:  # the output is not one of our reports
                self._reports[host] = replace(report, error=NotReady(f"its response cannot be parsed: {error}"))

    def _judge(self, judge: Callable[[Report], MopError | None]) -> None:
        for host, report in self._reports.items():
            if report.error is None:
                self._reports[host] = replace(report, error=judge(report))

    def _has_ours(self, host: Host) -> bool:
        facts, ours = self._reports[host].facts, self._reports[self._source].facts
        return facts is not None and ours is not None and facts.same_library(ours)

    def _failed(self) -> bool:
        return any(report.error is not None for report in self._reports.values())


def _other_library(facts: HostFacts) -> NotReady:
    found = "another madlib_mop" if facts.library else "no madlib_mop"
    return NotReady(f"it has {found} in {facts.pkglibdir}", hint="Run this without --check.")
