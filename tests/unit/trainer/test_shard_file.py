"""Rows that do not fit into a trainer's memory: arrays in its file, with the same bits, and nothing that stays."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from mop_backend import shard_file as opening
from mop_backend.shard_file import HandedFile, open_shard_file

from madlib_mop.trainer.data import shard_file, shards
from madlib_mop.trainer.data.arrival import Arrival, RowsMissing
from madlib_mop.trainer.data.shard_file import FileFull, ReadAhead, ShardFile
from madlib_mop.trainer.process.failures import RequestFailure
from tests.unit.trainer.test_shards import build, columns

PAGE = resource.getpagesize()
F4 = np.dtype(np.float32)


def opened(directory, limit_bytes=1 << 20) -> HandedFile:
    found = open_shard_file({"shard_disk_bytes": limit_bytes, "shard_directory": str(directory)})
    assert found is not None
    return found


@pytest.fixture
def file(tmp_path):
    """A file of 16 pages."""
    made = opened(tmp_path, 16 * PAGE)
    yield ShardFile(made.fd, made.limit_bytes, str(tmp_path))
    made.close()


def disk_bytes(fd) -> int:
    return os.fstat(fd).st_blocks * 512


class TestOpening:
    def test_it_has_no_name_and_the_size_of_its_limit_but_takes_no_space(self, tmp_path):
        made = opened(tmp_path, 7 * PAGE + 5)
        assert not list(tmp_path.iterdir())
        found = os.fstat(made.fd)
        assert (found.st_nlink, found.st_size, found.st_blocks) == (0, 7 * PAGE, 0)
        made.close()

    def test_where_files_must_have_names_it_loses_its_own_at_once(self, tmp_path, monkeypatch):
        real = os.open

        def without_tmpfile(path, flags, *more, **others):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not supported")
            return real(path, flags, *more, **others)

        monkeypatch.setattr(os, "open", without_tmpfile)
        made = opened(tmp_path)
        assert not list(tmp_path.iterdir()) and os.fstat(made.fd).st_nlink == 0
        made.close()

    def test_by_default_it_is_where_the_server_has_its_temporary_files(self, tmp_path, monkeypatch):
        """A backend works in the data directory."""
        (tmp_path / "base").mkdir()
        monkeypatch.chdir(tmp_path)
        made = open_shard_file({"shard_disk_bytes": 1 << 20})
        assert made.directory == str(tmp_path / "base" / "pgsql_tmp") and made.fd is not None
        assert (tmp_path / "base" / "pgsql_tmp").stat().st_mode & 0o777 == 0o700
        made.close()

    def test_a_file_that_cannot_be_made_is_a_reason_not_an_error(self, tmp_path):
        made = opened(tmp_path / "none")
        assert made.fd is None and made.problem == "No such file or directory"
        with pytest.raises(FileFull, match=f"cannot be made in {tmp_path}/none: No such file or directory"):
            ShardFile.of(made.header(None)["shard_file"])

    @pytest.mark.parametrize("start", [{}, {"shard_disk_bytes": 0}, {"shard_disk_bytes": 1 << 30, "gpus": [0]}])
    def test_there_is_none_without_a_limit_and_with_gpus(self, start):
        assert open_shard_file(start) is None
        assert ShardFile.of(None) is None

    def test_it_is_never_larger_than_its_file_system(self, tmp_path):
        made = opened(tmp_path, 1 << 60)
        found = os.statvfs(tmp_path)
        assert made.problem or made.limit_bytes <= found.f_blocks * found.f_frsize
        made.close()


class TestArrays:
    def test_they_hold_what_is_written_and_share_no_page(self, file):
        first, second = file.arrays([((3, 2), F4), ((5,), np.dtype(np.int64))])
        first[:], second[:] = 1.5, 7
        assert first.tolist() == [[1.5, 1.5]] * 3 and second.tolist() == [7] * 5
        assert (file.offset_of(first), file.offset_of(second)) == (0, PAGE)
        assert file.offset_of(np.zeros(3)) is None
        assert file.n_bytes == 2 * PAGE
        assert first.ctypes.data % 64 == 0 and first.flags.writeable  # or backends would copy it

    def test_space_is_reserved_before_it_is_written_to(self, file):
        held = file.arrays([((4 * PAGE,), np.dtype(np.uint8))])
        assert disk_bytes(file._fd) >= 4 * PAGE
        del held
        assert file.n_bytes == 0 and disk_bytes(file._fd) == 0, "what is not needed any more is freed"

    def test_a_view_keeps_the_space(self, file):
        (array,) = file.arrays([((PAGE,), np.dtype(np.uint8))])
        part = array.reshape(2, -1)[1:].view(np.float32)
        del array
        assert file.n_bytes == PAGE
        del part
        assert file.n_bytes == 0

    def test_freed_space_is_joined(self, file):
        held = [file.arrays([((PAGE,), np.dtype(np.uint8))])[0] for _ in range(16)]
        with pytest.raises(FileFull, match="may take 0 MB .madlib_mop.shard_disk_mb"):
            file.arrays([((1,), F4)])
        for number in (5, 7, 6):
            held[number] = None
        (array,) = file.arrays([((3 * PAGE,), np.dtype(np.uint8))])
        assert file.offset_of(array) == 5 * PAGE

    def test_all_or_none(self, file):
        with pytest.raises(FileFull):
            file.arrays([((PAGE,), np.dtype(np.uint8)), ((16 * PAGE,), np.dtype(np.uint8))])
        assert file.n_bytes == 0

    def test_a_full_disk_is_a_reason(self, file, monkeypatch):
        monkeypatch.setattr(opening, "LEAST_FREE_BYTES", 1 << 60)
        with pytest.raises(FileFull, match="has room for 0 MB"):
            file.arrays([((1,), F4)])

    def test_what_the_file_system_says_is_a_reason(self, tmp_path):
        made = opened(tmp_path, 16 * PAGE)
        file = ShardFile(made.fd, made.limit_bytes, "/there")
        read_only = os.open(f"/proc/self/fd/{made.fd}", os.O_RDONLY)
        file._fd = read_only
        with pytest.raises(FileFull, match="/there: Bad file descriptor"):
            file.arrays([((1,), F4)])
        assert file.n_bytes == 0
        os.close(read_only)
        made.close()

    def test_a_write_to_what_is_sealed_ends_the_process(self, tmp_path):
        code = f"""
import sys
sys.path[:0] = {sys.path!r}
import numpy as np
from mop_backend.shard_file import open_shard_file
from madlib_mop.trainer.data.shard_file import ShardFile
made = open_shard_file({{"shard_disk_bytes": 1 << 20, "shard_directory": {str(tmp_path)!r}}})
file = ShardFile(made.fd, made.limit_bytes, "")
(array,) = file.arrays([((10,), np.dtype(np.float32))])
array[:] = 3
file.seal(array)
print(array.sum(), flush=True)
array[0] = 4
print("written")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.returncode) == ("30.0\n", -signal.SIGSEGV), done.stderr


class TestShards:
    def cache(self, file, capacity=0):
        return shards.ShardCache(capacity, file, "no file")

    def load(self, cache, n=20, **more):
        data = columns(n)
        shard = build(data, [n // 2], planned_rows=n, allocate=cache.allocate, **more)
        return shard, data

    def test_a_shard_in_the_file_is_that_in_memory(self, file):
        shard, data = self.load(self.cache(file))
        assert shard.file is file and shard.fingerprint == build(data).fingerprint
        for got, expected in zip((*shard.xs, *shard.ys), data, strict=True):
            assert file.offset_of(got) is not None
            assert np.array_equal(got, expected) and got.dtype == expected.dtype

    def test_what_fits_beside_the_others_stays_in_memory(self, file):
        n_bytes = build(columns()).n_bytes
        cache = self.cache(file, 2 * n_bytes)
        for key, where in (("a", None), ("b", None), ("c", file), ("d", file)):
            shard, _ = self.load(cache)
            assert shard.file is where, key
            assert cache.add(key, shard)
        assert cache.keys() == list("abcd") and cache.n_bytes == 2 * n_bytes
        assert cache.file_bytes == 4 * PAGE
        assert cache.take("a").file is None and cache.take("c").file is file

    def test_the_least_recently_used_in_the_file_gives_way(self, file):
        cache = self.cache(file)
        for key in "abcdefgh":
            cache.add(key, self.load(cache)[0])
        cache.take("a")
        cache.add("i", self.load(cache)[0])
        assert cache.keys() == list("cdefghai")

    def test_without_room_in_the_file_it_is_kept_in_memory_for_one_visit(self, file):
        cache = self.cache(file)
        shard, _ = self.load(cache, 4000)
        assert shard.file is None and not cache.add("big", shard)
        assert cache.take("big") is shard

    def test_no_room_at_all_is_one_error(self, file, monkeypatch):
        def full(*_):
            raise MemoryError

        monkeypatch.setattr(shards, "aligned_empty", full)
        with pytest.raises(RequestFailure) as caught:
            self.load(self.cache(file), 4000)
        error = caught.value.error
        assert caught.value.kind == "input" and error.sqlstate == "53000"
        assert "rows of the shard take 0 MB" in error.message and "the file may take 0 MB" in error.message
        assert "shard_directory" in error.hint

    @pytest.mark.parametrize("planned", [19, 21])
    def test_other_rows_than_planned_are_counted_for_the_run_to_refuse(self, file, planned):
        builder = shards.ShardBuilder(1, 1, 1.0, planned_rows=planned, allocate=self.cache(file).allocate)
        for part in np.split(np.arange(20), [7]):
            rows = [column[part] for column in columns()]
            builder.add([row.shape for row in rows], [row.tobytes() for row in rows])
        shard = builder.finish()
        assert shard.n_rows == 20 and shard.fingerprint == build(columns()).fingerprint
        assert builder.is_whole == (planned == 21) == (len(shard.xs[0]) == 20)

    def test_rows_of_numbers_are_dealt_out_into_the_file(self, file):
        x = np.arange(60, dtype=np.float32).reshape(20, 3)
        shard = build([x], planned_rows=20, allocate=self.cache(file).allocate)
        dealt = shards.dealt_out(shard, 3)
        assert [file.offset_of(one) is not None for one in dealt.xs] == [True] * 3
        assert np.array_equal(np.concatenate(dealt.xs, 1), x)

    def test_class_weights_in_parts_are_those_of_all_rows(self, file, monkeypatch):
        y = np.eye(3, dtype=np.int16)[np.arange(20) % 3]
        shard = build([np.zeros((20, 1), np.float32), y], planned_rows=20, allocate=self.cache(file).allocate)
        whole = shards.row_weights_of(build([np.zeros((20, 1), np.float32), y]), {0: 0.5, 2: 4.0})
        monkeypatch.setattr(shards, "_ROWS_AT_ONCE", 7)
        in_parts = shards.row_weights_of(shard, {0: 0.5, 2: 4.0})
        assert file.offset_of(in_parts) is not None and in_parts.tobytes() == whole.tobytes()


class Waited(Arrival):
    """Rows that come when they are waited for."""

    def __init__(self):
        super().__init__()
        self.waited_for = []

    def wait_for(self, n_rows):
        self.waited_for.append(n_rows)


class TestReadingAhead:
    def test_each_stretch_is_read_while_the_one_before_it_is_trained_on(self, file, monkeypatch):
        (x,) = file.arrays([((12, PAGE // 4), F4)])
        monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 2 * PAGE)
        monkeypatch.setattr(file, "is_in_memory", lambda offset: False)
        read = []
        monkeypatch.setattr(file, "read_ahead", lambda begins, ends: read.append((begins // PAGE).tolist()))
        order = np.array([5, 1, 9, 3, 0, 11, 2, 4, 6, 8, 10, 7])
        ahead = ReadAhead(file, [x, np.zeros(12)], order, 2)
        assert ahead.n_batches == 1
        for batch in range(6):
            ahead.reach(batch)
            assert len(read) == min(batch + 2, 6)
        assert read == [sorted(order[i : i + 2].tolist()) for i in range(0, 12, 2)]

    def test_rows_of_all_places_are_read(self, file, monkeypatch):
        (x,) = file.arrays([((4, PAGE // 4), F4)])
        monkeypatch.setattr(file, "is_in_memory", lambda offset: False)
        read = []
        monkeypatch.setattr(file, "read_ahead", lambda begins, ends: read.append((begins // PAGE).tolist()))
        ReadAhead(file, [x], np.array([[0, 1], [3, 0]]), 2).reach(0)
        assert read == [[0, 0, 1, 3]]

    def test_pages_of_neighbours_are_read_together(self, file, monkeypatch):
        asked = []

        class Map:
            def madvise(self, option, start, length):
                asked.append((start // PAGE, length // PAGE))

        monkeypatch.setattr(file, "_map", Map())
        begins = np.array([0, 100, PAGE, 3 * PAGE + 10, 7 * PAGE, 8 * PAGE - 1])
        file.read_ahead(begins, begins + 2)
        assert asked == [(0, 2), (3, 1), (7, 2)]

    def test_what_is_in_memory_is_not_read(self, file, monkeypatch):
        (x,) = file.arrays([((2, PAGE), np.dtype(np.uint8))])
        x[:] = 1
        assert file.is_in_memory(0) and file.is_in_memory(2 * PAGE - 1)
        monkeypatch.setattr(file, "read_ahead", None)
        ReadAhead(file, [x], np.arange(2), 1).reach(0)

    def test_the_kernel_reads_what_it_is_told_to(self, tmp_path):
        made = opened(tmp_path, 4096 * PAGE)
        file = ShardFile(made.fd, made.limit_bytes, str(tmp_path))
        (x,) = file.arrays([((4096, PAGE), np.dtype(np.uint8))])
        os.pwrite(made.fd, b"1" * 4096 * PAGE, 0)
        os.fsync(made.fd)
        os.posix_fadvise(made.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if file.is_in_memory(1000 * PAGE):
            pytest.skip("this file system keeps its pages in memory")
        ReadAhead(file, [x], np.arange(1000, 1010), 5).reach(0)
        deadline = time.monotonic() + 20
        while not file.is_in_memory(1005 * PAGE) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert file.is_in_memory(1005 * PAGE)
        made.close()

    def test_a_page_that_was_not_read_ahead_is_read_alone(self, tmp_path):
        """By default, the kernel reads what is around it too, which a pass in random order does not need next."""
        made = opened(tmp_path, 4096 * PAGE)
        file = ShardFile(made.fd, made.limit_bytes, str(tmp_path))
        (x,) = file.arrays([((4096, PAGE), np.dtype(np.uint8))])
        os.pwrite(made.fd, b"1" * 4096 * PAGE, 0)
        os.fsync(made.fd)
        os.posix_fadvise(made.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if any(file.is_in_memory(number * PAGE) for number in range(4096)):
            pytest.skip("this file system keeps its pages in memory")
        with ReadAhead(file, [x], np.arange(4096), 1):
            assert x[2000, 0] == ord("1")
        assert [number for number in range(4096) if file.is_in_memory(number * PAGE)] == [2000]
        made.close()

    def test_a_stretch_waits_for_the_last_of_its_rows(self, file, monkeypatch):
        """Also of rows in memory. Those to come are not read from the file."""
        monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 2 * PAGE)
        monkeypatch.setattr(file, "is_in_memory", lambda offset: False)
        read = []
        monkeypatch.setattr(file, "read_ahead", lambda begins, ends: read.append(len(begins)))
        (in_file,) = file.arrays([((6, PAGE // 4), F4)])
        for where, x in (None, np.zeros((6, PAGE // 4), np.float32)), (file, in_file):
            for order, expected in ([0, 1, 2, 3, 4, 5], [2, 4, 6]), ([1, 4, 0, 2, 5, 3], [5, 3, 6]):
                arrival = Waited()
                ahead = ReadAhead.of_pass(where, [x], np.array(order), 2, arrival)
                with ahead:
                    for batch in range(3):
                        ahead.reach(batch)
                assert ahead.n_batches == 1 and arrival.waited_for == expected
        assert read == [2] * 6

    def test_rows_that_do_not_come_end_the_pass(self, monkeypatch):
        monkeypatch.setattr(shard_file, "_AHEAD_BYTES", 1)
        arrival = Arrival()
        ahead = ReadAhead.of_pass(None, [np.zeros((4, 2))], np.arange(4), 2, arrival)
        arrival.reach(2, None)
        ahead.reach(0)
        arrival.end(None)
        for batch in range(2):  # the first rows may be those of a shard that was refused
            with pytest.raises(RowsMissing):
                ahead.reach(batch)
        with pytest.raises(RowsMissing):
            ReadAhead.of_pass(None, [np.zeros((4, 2))], np.arange(4), 2, arrival)

    def test_rows_that_have_all_come_need_none(self):
        arrival = Arrival()
        arrival.reach(4, None)
        arrival.end(build(columns(4)))
        assert ReadAhead.of_pass(None, [np.zeros((4, 2))], np.arange(4), 2, arrival) is None

    def test_rows_in_memory_need_none(self, file):
        arrays, order = [np.zeros((4, 2))], np.arange(4)
        assert ReadAhead.of_pass(None, arrays, order, 2) is None
        assert ReadAhead.of_pass(file, arrays, order, 2) is None
