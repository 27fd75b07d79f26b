"""Machines with control groups, for tests: the files that the kernel would show."""

import os

from mop_backend import machine

GIB = 1 << 30
#: What /proc/self/mountinfo says of version 2 of control groups, and of a disk.
UNIFIED = """\
25 30 0:23 / /proc rw,nosuid shared:14 - proc proc rw
30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
"""
_AVAILABLE_BYTES = 200 * GIB


class FakeMachine:
    """A machine with 64 processors and 256 GiB of memory, 200 of them available; a test adds its control groups.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    folder : pathlib.Path
        Where its files are.
    """

    def __init__(self, monkeypatch, folder):
        self._folder = folder
        sizes = {"SC_PHYS_PAGES": 256 * GIB // 4096, "SC_PAGE_SIZE": 4096}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        monkeypatch.setattr(machine, "_ROOT", f"{folder}/")
        self.write("proc/meminfo", f"MemTotal:  1 kB\nMemAvailable:  {_AVAILABLE_BYTES >> 10} kB\nBuffers: 7 kB\n")

    def write(self, name, content):
        """Write a file, text or bytes."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def belongs_to(self, groups, mounts=UNIFIED):
        """Set the control groups of the process and the mounts."""
        self.write("proc/self/cgroup", groups)
        self.write("proc/self/mountinfo", mounts)

    def group(self, folder, **files):
        """Write the files of a control group; ``memory_max="1"`` is the file memory.max."""
        for name, content in files.items():
            self.write(f"sys/fs/cgroup/{folder}/{name.replace('_', '.', 1)}", f"{content}\n")

    def limit(self, processors=2, memory_bytes=4 * GIB, used_bytes=GIB):
        """Put the process into a container with these limits."""
        self.belongs_to("0::/\n")
        self.group(
            "", cpu_max=f"{processors * 100000:.0f} 100000", memory_max=memory_bytes, memory_high="max",
            memory_current=used_bytes, memory_stat="anon 1\ninactive_file 0",
        )  # fmt: skip
