"""A zip archive is read by rules: names, numbers, places and sizes are checked, and sizes are counted."""

import io
import zipfile

import pytest

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import MAX_MEMBERS, Archive
from madlib_mop.exports.formats import archive
from tests.helpers.archives import Entry, zip_of

MOST = {"a": 100, "b": 1 << 24, **{f"m{i}": 10 for i in range(MAX_MEMBERS + 1)}}


def read(data, most=MOST):
    """Open an archive and read all that may be in it."""
    found = Archive(data, most)
    return {name: bytes(found.read(name)) for name in most if name in found}


def test_what_zipfile_writes_is_read():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as file:
            file.writestr("a", b"first")
            with file.open("b", "w") as member:
                member.write(b"second" * 1000)
        assert read(out.getvalue()) == {"a": b"first", "b": b"second" * 1000}
    assert read(archive({"a": b"x"}, {}), {"a": 1}) == {"a": b"x"}


def test_deflated_members_are_inflated():
    data = bytes(range(256)) * 4000
    assert read(zip_of(Entry("b", data, deflated=True), Entry("a", b"", deflated=True))) == {"b": data, "a": b""}


@pytest.mark.parametrize("name, text", [
    ("../a", "'../a' is a path that leaves the archive"),
    ("x/../../a", "is a path that leaves the archive"),
    ("/etc/passwd", "is a path that leaves the archive"),
    ("..\\a", "is a path that leaves the archive"),
    ("C:a", "is a path that leaves the archive"),
    ("data.pkl", "it has a member 'data.pkl', and may have a, b"),
    ("a/", "it has a member 'a/', and may have"),
    ("A", "it has a member 'A', and may have"),
])  # fmt: skip
def test_other_names_are_refused(name, text):
    with pytest.raises(Unsupported, match=text):
        read(zip_of(Entry("a", b"x"), Entry(name, b"y")))


@pytest.mark.parametrize("entry, text", [
    (Entry("a", b"/etc/passwd", mode=0o120777), "'a' is a link"),
    (Entry("a", b"x", flags=1), "a is encrypted"),
    (Entry("a", b"x", method=12), "a is compressed by method 12"),
    (Entry("a", bytes(101)), "a has 101 bytes, and may have 100"),
    (Entry("b", bytes(1 << 24), deflated=True), "b expands from .* to 16,777,216 bytes, more than 100 times"),
    (Entry("a", b"x", size=0xFFFFFFFF), "a is of the form zip64"),
])  # fmt: skip
def test_members_that_keras_does_not_write_are_refused(entry, text):
    with pytest.raises(Unsupported, match=text):
        read(zip_of(entry))


@pytest.mark.parametrize("entry, text", [
    (Entry("b", bytes(1 << 20), deflated=True, size=1000), "b has more bytes than the archive says"),
    (Entry("b", b"x" * 1000, deflated=True, size=1001), "b has fewer bytes than the archive says"),
    (Entry("a", b"abc", size=2), "a has two sizes"),
    (Entry("a", b"abc", crc=7), "a has another checksum than the archive says"),
    (Entry("b", b"\xff" * 30, method=8), "b cannot be inflated"),
    (Entry("a", b"abc", local_name="b"), "a is not what the directory says"),
    (Entry("a", b"abc", at=5), "a is not what the directory says"),
    (Entry("a", b"abc", at=1 << 20), "a is not where the directory says"),
    (Entry("b", b"abc", deflated=True, stored_size=1 << 20), "b ends behind the members"),
])  # fmt: skip
def test_headers_that_lie_are_one_clear_error(entry, text):
    with pytest.raises(UnreadableText, match=f"the zip archive is damaged: {text}"):
        read(zip_of(entry))


def test_ten_gigabytes_of_zeros_are_not_inflated():
    """Their size is either said, and refused, or not said, and counted."""
    honest = Entry("b", bytes(1 << 24), deflated=True)
    with pytest.raises(MopError, match="more than 100 times"):
        read(zip_of(honest), {"b": 10 << 30})
    lying = Entry("b", bytes(1 << 24), deflated=True, size=1 << 20)
    with pytest.raises(MopError, match="more bytes than the archive says"):
        read(zip_of(lying), {"b": 10 << 30})


@pytest.mark.parametrize("data, text", [
    (zip_of(Entry("a"), Entry("a")), "two members have the same name"),
    (zip_of(Entry("a", b"12"), Entry("b", b"34", at=0, local_name="b")), "b is not what the directory says"),
    (zip_of(Entry("a", b"12"), comment=b"more"), "it does not end with its directory"),
    (zip_of(Entry("a", b"12")) + b"more", "it does not end with its directory"),
    (zip_of(Entry("a", b"12"))[:-1], "it does not end with its directory"),
    (zip_of(Entry("a", b"12"))[10:], "its directory is not where it says"),
    (zip_of(Entry("a", b"12"), count=2), "its directory is cut off"),
    (zip_of(Entry("a", b"12"), Entry("b"), count=1), "its directory is longer or shorter than it says"),
    (zip_of()[:20], "it is cut off"),
])  # fmt: skip
def test_an_archive_that_contradicts_itself_is_one_clear_error(data, text):
    with pytest.raises(UnreadableText, match=text):
        read(data)


def test_members_that_overlap_are_refused():
    """Two entries of the directory that stand for the same bytes: how small bombs become large."""
    inner = zip_of(Entry("b", b"inside"))[: 30 + 1 + 6]
    data = zip_of(Entry("a", inner), Entry("b", b"inside", at=31))
    with pytest.raises(UnreadableText, match="overlaps another member"):
        read(data)


def test_many_members_are_refused_before_their_names_are_read():
    with pytest.raises(Unsupported, match=f"it has {MAX_MEMBERS + 1} members, and may have {MAX_MEMBERS}"):
        read(zip_of(*(Entry(f"m{i}") for i in range(MAX_MEMBERS + 1))))
    with pytest.raises(Unsupported, match="zip64"):
        read(zip_of(Entry("a"), count=0xFFFF))


def test_no_change_of_a_byte_escapes_as_another_error():
    data = zip_of(Entry("a", b"first"), Entry("b", b"second" * 20, deflated=True))
    for place in range(len(data)):
        for value in (0, 0xFF, data[place] ^ 1):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                found = read(changed)
            except MopError:
                continue
            assert found == {"a": b"first", "b": b"second" * 20}  # a time, or a version
