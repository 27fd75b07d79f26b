"""The limits of control groups reduce what a process may use; files that are missing or odd do not."""

import os

import pytest
from mop_backend.machine import Machine, available_bytes, examine, memory_bytes, processors

from tests.helpers.unit.machines import GIB, UNIFIED, FakeMachine

SERVICE = "system.slice/system-postgresql.slice/postgresql@15-main.service"
#: Version 1 on a host, and a hybrid: memory and cpu in version 1, and an empty hierarchy of version 2.
CONTROLLERS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
"""
HYBRID = CONTROLLERS + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
UNLIMITED = Machine(64, 256 * GIB, 200 * GIB, None, None)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    return FakeMachine(monkeypatch, tmp_path)


def test_the_tightest_limit_along_the_path_counts(fake):
    """Version 2: a limit of a slice applies to each service in it, however large the service's own one is."""
    fake.belongs_to(f"0::/{SERVICE}\n")
    fake.group("system.slice", cpu_max="max 100000", memory_max=32 * GIB)
    fake.group("system.slice/system-postgresql.slice", cpu_max="250000 100000", memory_max="max", memory_high=8 * GIB)
    fake.group(SERVICE, cpu_max="1600000 100000", memory_max=16 * GIB, memory_high="max")
    assert (processors(), memory_bytes()) == (3, 8 * GIB)
    assert (examine().processor_limit, examine().memory_limit_bytes) == (2.5, 8 * GIB)


def test_what_is_left_of_each_limit_is_available(fake):
    """A full slice leaves nothing to a service with memory of its own; the cache of files counts as free."""
    fake.belongs_to(f"0::/{SERVICE}\n")
    stat = f"anon {GIB}\nfile {5 * GIB}\ninactive_file {GIB}\nactive_file {4 * GIB}"
    fake.group(SERVICE, memory_max=16 * GIB, memory_current=6 * GIB, memory_stat=stat)
    assert available_bytes() == 15 * GIB
    fake.group("system.slice", memory_max=64 * GIB, memory_current=60 * GIB, memory_stat="anon 1")
    assert available_bytes() == 4 * GIB
    fake.group("system.slice", memory_max=64 * GIB, memory_high=50 * GIB, memory_current=60 * GIB)
    assert available_bytes() == 0


def test_a_limit_above_the_machine_changes_nothing(fake):
    fake.limit(processors=128, memory_bytes=999 * GIB)
    assert (processors(), memory_bytes(), available_bytes()) == (64, 256 * GIB, 200 * GIB)


@pytest.mark.parametrize("quota, expected", [("1000 100000", 1), ("100000 100000", 1), ("100001 100000", 2)])
def test_a_part_of_a_processor_counts_as_one(fake, quota, expected):
    fake.belongs_to("0::/\n")
    fake.group("", cpu_max=quota)
    assert processors() == expected


def test_the_affinity_of_the_process_counts_too(fake, monkeypatch):
    fake.limit(processors=4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6, 7})
    assert processors() == 3


def test_a_container_sees_its_own_group_as_the_root(fake):
    """Version 2 with a namespace of control groups: ``0::/``, and limits in the mount point."""
    fake.limit(processors=2, memory_bytes=4 * GIB, used_bytes=GIB)
    assert examine() == Machine(2, 4 * GIB, 3 * GIB, 2.0, 4 * GIB)


@pytest.mark.parametrize("path", ["/docker/7f", "/docker/7f/sub", "/elsewhere", "/../7f"])
def test_a_container_without_a_namespace_of_groups_mounts_its_own(fake, path):
    """The path is the host's, and the mount shows the container's group only."""
    fake.belongs_to(f"0::{path}\n", UNIFIED.replace(" / /sys/fs/cgroup", " /docker/7f /sys/fs/cgroup"))
    fake.group("", cpu_max="200000 100000", memory_max=4 * GIB)
    assert (processors(), memory_bytes()) == (2, 4 * GIB)


def test_a_process_that_was_moved_out_of_its_namespace(fake):
    """A group within the namespace, with the name of the one beside it, does not limit the process."""
    fake.belongs_to("0::/../7f\n")
    fake.group("", cpu_max="400000 100000")
    fake.group("7f", cpu_max="100000 100000")
    assert processors() == 4


def test_a_mount_that_shows_the_group_is_preferred(fake):
    """Another mount shows a smaller group that this process is not in."""
    other = "36 25 0:30 /other /mnt/other rw - cgroup2 cgroup2 rw\n"
    fake.belongs_to("0::/mine\n", UNIFIED + other)
    fake.group("mine", cpu_max="400000 100000")
    fake.write("mnt/other/cpu.max", "100000 100000\n")
    assert processors() == 4


def test_a_disk_with_any_name_hides_no_limit(fake):
    disk = b"37 25 0:31 / /mnt/\xff\xfe rw - ext4 /dev/sdb rw\n"
    fake.belongs_to("0::/\n", disk + UNIFIED.encode())
    fake.group("", cpu_max="200000 100000")
    assert processors() == 2


def test_mount_points_with_spaces(fake):
    fake.belongs_to("0::/\n", UNIFIED.replace(" /sys/fs/cgroup ", r" /mnt/own\040groups "))
    fake.write("mnt/own groups/cpu.max", "300000 100000\n")
    assert processors() == 3


@pytest.mark.parametrize("mounts, more", [(CONTROLLERS, ""), (HYBRID, "0::/\n"), (HYBRID, f"0::/{SERVICE}\n")])
def test_version_1_alone_and_beside_version_2(fake, mounts, more):
    fake.belongs_to(f"9:memory:/{SERVICE}\n5:cpu,cpuacct:/{SERVICE}\n3:name=systemd:/{SERVICE}\n{more}", mounts)
    fake.group(f"cpu,cpuacct/{SERVICE}", cpu_cfs_quota_us=-1)
    assert (processors(), memory_bytes(), available_bytes()) == (64, 256 * GIB, 200 * GIB)
    for name, number in (("quota", 150000), ("period", 100000)):
        fake.write(f"sys/fs/cgroup/cpu,cpuacct/system.slice/cpu.cfs_{name}_us", f"{number}\n")
    none, stat = 9223372036854771712, f"inactive_file 5\ntotal_inactive_file {GIB}"
    fake.group(f"memory/{SERVICE}", memory_limit_in_bytes=none, memory_usage_in_bytes=3 * GIB, memory_stat=stat)
    fake.group("memory/system.slice", memory_limit_in_bytes=8 * GIB, memory_usage_in_bytes=6 * GIB, memory_stat=stat)
    assert examine() == Machine(2, 8 * GIB, 3 * GIB, 1.5, 8 * GIB)


def test_version_1_in_a_container(fake):
    """Docker shows the container's group of each controller in its mount point, with the host's path."""
    mounts = CONTROLLERS.replace(" / /sys/fs/cgroup/", " /docker/7f /sys/fs/cgroup/")
    fake.belongs_to("9:memory:/docker/7f\n5:cpu,cpuacct:/docker/7f\n", mounts)
    fake.group("memory", memory_limit_in_bytes=4 * GIB, memory_usage_in_bytes=GIB)
    for name, number in (("quota", 200000), ("period", 100000)):
        fake.write(f"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_{name}_us", f"{number}\n")
    assert examine() == Machine(2, 4 * GIB, 3 * GIB, 2.0, 4 * GIB)


def test_no_limits(fake):
    """Version 2 writes ``max``; the root of a machine has no such files."""
    assert examine() == UNLIMITED  # no control groups at all
    fake.belongs_to(f"0::/{SERVICE}\n")
    assert examine() == UNLIMITED
    fake.group(SERVICE, cpu_max="max 100000", memory_max="max", memory_high="max", memory_current=GIB)
    assert examine() == UNLIMITED


GARBAGE = [b"", b"\n", b"0", b"-5", b"abc", b"\xff\xfe\x00", b"1e9", b"1 GB", b"100000 0", b"9" * 5000, b"9" * 400]
ODD_LINES = [b"0::", b"0::relative", b"0:", b" - cgroup2 ", b"1 2 3 / \\000 - cgroup2 x y", b"1 2 3 x / - cgroup2 x y"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_odd_limits_are_no_limits(fake, garbage):
    fake.belongs_to("0::/\n9:memory:/\n5:cpu,cpuacct:/\n", UNIFIED + CONTROLLERS)
    for name in ("cpu.max", "cpu,cpuacct/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_period_us", "memory.stat"):
        fake.write(f"sys/fs/cgroup/{name}", garbage)
    for name in ("memory.max", "memory.high", "memory/memory.limit_in_bytes", "memory.current"):
        fake.write(f"sys/fs/cgroup/{name}", garbage)
    assert examine() == UNLIMITED


@pytest.mark.parametrize("file", ["proc/self/cgroup", "proc/self/mountinfo", "proc/meminfo"])
@pytest.mark.parametrize("garbage", [*GARBAGE, *ODD_LINES])
def test_odd_files_of_the_process_are_no_limits(fake, monkeypatch, file, garbage):
    """A relative path in them is not looked up in the working directory, which may be gone."""
    monkeypatch.setattr(os, "getcwd", lambda: open("/nowhere/at/all"))
    fake.limit(memory_bytes=250 * GIB, processors=63)
    fake.write(file, garbage)
    assert processors() in (63, 64) and memory_bytes() in (250 * GIB, 256 * GIB)
    assert available_bytes() in (None, 200 * GIB, 249 * GIB)


def test_usage_that_cannot_be_read_leaves_the_limit(fake):
    fake.belongs_to("0::/\n")
    fake.group("", memory_max=4 * GIB)
    assert available_bytes() == 4 * GIB


def test_a_limit_that_changes_is_seen_by_the_next_call(fake):
    fake.limit(processors=2)
    assert processors() == 2
    fake.limit(processors=3)
    assert processors() == 3
