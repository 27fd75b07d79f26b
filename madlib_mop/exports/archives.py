"""Reads a zip archive by strict rules: few members with known names, and sizes that are counted, not believed.

Python's zipfile accepts more than a Keras file needs: any names, links, members that overlap, sizes of any kind. This
reader takes the archives that Keras and `madlib_mop.exports.formats` write, and names what is wrong with all others.
Imports, the Python client and the command line read archives with it.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from madlib_mop.errors import MopError, UnreadableText, Unsupported

#: The bytes of a file.
Data = bytes | bytearray | memoryview
#: More members than any archive of Keras without assets has, and than any SavedModel has.
MAX_MEMBERS = 32
#: A member of more than this size may not expand to more than so many times its stored size.
RATIO_FLOOR_BYTES = 1 << 20
MAX_RATIO = 100
_END, _ENTRY, _LOCAL = struct.Struct("<4s4H2LH"), struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_END_MAGIC, _ENTRY_MAGIC, _LOCAL_MAGIC = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x0001
_ZIP64_COUNT, _ZIP64_SIZE = 0xFFFF, 0xFFFFFFFF
_CHUNK_BYTES = 1 << 20
#: In the names of members of archives that torch.save, torch.jit.save and torch.export.save write.
_PYTORCH = (b"/.data/serialization_id", b"/data.pkl", b"/archive_format")
_NAMES_BYTES = 64 << 10
_HINT = "Save the model again with Keras' model.save('model.keras')."


@dataclass(frozen=True)
class ArchiveMember:
    """One member, as the archive's directory describes it.

    Attributes
    ----------
    name : str
    n_bytes, stored_bytes : int
        Its size, and its size in the archive.
    crc : int
    is_deflated : bool
    start : int
        Where its stored bytes begin.
    """

    name: str
    n_bytes: int
    stored_bytes: int
    crc: int
    is_deflated: bool
    start: int


class Archive:
    """The members of an archive; each is checked again when it is read.

    Parameters
    ----------
    data : bytes-like
    most_bytes : mapping of str to int
        The members that may be there, with the largest size of each, in bytes.
    others : int or None
        The largest size of all other members together, in bytes. None: there may be no others.

    Raises
    ------
    UnreadableText
        If the archive is damaged, or contradicts itself.
    Unsupported
        If it has a member that may not be there, or that is too large; or if PyTorch wrote it.
    """

    def __init__(self, data: Data, most_bytes: Mapping[str, int], others: int | None = None):
        self._data = memoryview(data)
        self._most_bytes, self._others = most_bytes, others
        try:
            self._members = {member.name: member for member in self._read_members()}
        except MopError:
            names = bytes(self._data[-_NAMES_BYTES:])
            if any(mark in names for mark in _PYTORCH):
                hint = "Build the model with Keras, which can train it with PyTorch: madlib_mop.backend = 'torch'."
                message = "the file is PyTorch's, whose modules and programs are not imported"
                raise Unsupported(message, hint=hint) from None
            raise

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members, in the order of the archive's directory."""
        return tuple(self._members)

    def read(self, name: str) -> memoryview:
        """Return the bytes of a member. Raises UnreadableText if they are not what the directory says."""
        member = self._members[name]
        stored = self._data[member.start : member.start + member.stored_bytes]
        data = _inflated(member, stored) if member.is_deflated else stored
        if zlib.crc32(data) != member.crc:
            raise _damaged(f"{name} has another checksum than the archive says")
        return data

    def _read_members(self) -> list[ArchiveMember]:
        start, count = self._directory()
        at, members, n_others = start, [], 0
        for _ in range(count):
            member, at = self._entry(at, start)
            members.append(member)
            n_others += 0 if member.name in self._most_bytes else member.n_bytes
            if self._others is not None and n_others > self._others:
                raise _refused(f"its members have more than {self._others:,} bytes")
        if at != len(self._data) - _END.size:
            raise _damaged("its directory is longer or shorter than it says")
        if len({member.name for member in members}) != len(members):  # defence: names-of-members
            raise _damaged("two members have the same name")
        previous = 0
        for member in sorted(members, key=lambda one: one.start):
            if member.start < previous:  # defence: overlapping-members
                raise _damaged(f"{member.name} overlaps another member")
            previous = member.start + member.stored_bytes
        return members

    def _directory(self) -> tuple[int, int]:
        """Return where the directory begins, and its number of entries."""
        if len(self._data) < _END.size:
            raise _damaged("it is cut off")
        end = _END.unpack(self._data[-_END.size :])
        magic, disk, start_disk, count_here, count, n_bytes, start, n_comment = end
        if magic != _END_MAGIC or n_comment:
            raise _damaged("it does not end with its directory")
        if _ZIP64_COUNT in (disk, start_disk, count_here, count) or _ZIP64_SIZE in (n_bytes, start):
            raise _refused("it is of the form zip64, for archives of 4 GB and more")
        if disk or start_disk or count_here != count:
            raise _damaged("it is a part of an archive")
        if count > MAX_MEMBERS:  # defence: number-of-members
            raise _refused(f"it has {count:,} members, and may have {MAX_MEMBERS}")
        if start + n_bytes != len(self._data) - _END.size:
            raise _damaged("its directory is not where it says")
        return start, count

    def _entry(self, at: int, end: int) -> tuple[ArchiveMember, int]:
        """Read an entry of the directory; return it with the place of the next one."""
        if at + _ENTRY.size > len(self._data):
            raise _damaged("its directory is cut off")
        entry = _ENTRY.unpack(self._data[at : at + _ENTRY.size])
        magic, _, _, flags, method, _, _, crc, stored, size, n_name, n_extra, n_comment, _, _, attributes, local = entry
        if magic != _ENTRY_MAGIC:
            raise _damaged("its directory has no entry where it says")
        raw = bytes(self._data[at + _ENTRY.size : at + _ENTRY.size + n_name])
        name = self._checked_name(raw, attributes >> 16)
        if flags & _ENCRYPTED:
            raise _refused(f"{name} is encrypted")
        if method not in (_STORED, _DEFLATED):
            raise _refused(f"{name} is compressed by method {method}, and may be stored or deflated")
        if _ZIP64_SIZE in (stored, size, local):
            raise _refused(f"{name} is of the form zip64, for members of 4 GB and more")
        self._check_size(name, size, stored, method)
        start = self._data_of(local, raw, method, name)
        if start + stored > end:
            raise _damaged(f"{name} ends behind the members")
        member = ArchiveMember(name, size, stored, crc, method == _DEFLATED, start)
        return member, at + _ENTRY.size + n_name + n_extra + n_comment

    def _checked_name(self, raw: bytes, mode: int) -> str:
        name = raw.decode("utf-8", "backslashreplace")
        shown = repr(name[:100])
        if stat.S_ISLNK(mode):  # defence: links-in-archives
            raise _refused(f"{shown} is a link")
        parts = name.removesuffix("/").split("/")
        # defence: paths-in-archives
        if not {"", ".", ".."}.isdisjoint(parts) or "\\" in name or ":" in name or not name.isprintable():
            raise _refused(f"{shown} is a path that leaves the archive, or has other characters than a path of Keras")
        if self._others is None and name not in self._most_bytes:  # defence: members-of-archives
            raise _refused(f"it has a member {shown}, and may have {', '.join(self._most_bytes)} only")
        return name

    def _check_size(self, name: str, size: int, stored: int, method: int) -> None:
        most = self._most_bytes.get(name, self._others or 0)
        if size > most:  # defence: size-of-a-member
            raise _refused(f"{name} has {size:,} bytes, and may have {most:,}")
        if method == _STORED and size != stored:
            raise _damaged(f"{name} has two sizes")
        if size > RATIO_FLOOR_BYTES and size > MAX_RATIO * stored:  # defence: inflated-members
            raise _refused(f"{name} expands from {stored:,} to {size:,} bytes, more than {MAX_RATIO} times")

    def _data_of(self, at: int, raw: bytes, method: int, name: str) -> int:
        """Return where the bytes of a member begin, after its own header, which must agree with the directory."""
        if at + _LOCAL.size > len(self._data):
            raise _damaged(f"{name} is not where the directory says")
        magic, _, flags, own_method, _, _, _, _, _, n_name, n_extra = _LOCAL.unpack(self._data[at : at + _LOCAL.size])
        own = bytes(self._data[at + _LOCAL.size : at + _LOCAL.size + n_name])
        if magic != _LOCAL_MAGIC or own != raw or own_method != method or flags & _ENCRYPTED:
            raise _damaged(f"{name} is not what the directory says")
        return int(at + _LOCAL.size + n_name + n_extra)


def _inflated(member: ArchiveMember, stored: memoryview) -> memoryview:
    """Inflate a member, and stop as soon as there is more than the directory says."""
    out, inflater = bytearray(), zlib.decompressobj(-zlib.MAX_WBITS)
    pending: Data = stored
    try:
        while not inflater.eof:
            chunk = inflater.decompress(pending, min(_CHUNK_BYTES, member.n_bytes - len(out) + 1))
            pending = inflater.unconsumed_tail
            out += chunk
            if len(out) > member.n_bytes:  # defence: longer-members
                raise _damaged(f"{member.name} has more bytes than the archive says")
            if not chunk and not pending:
                break
    except zlib.error as error:
        raise _damaged(f"{member.name} cannot be inflated ({error})") from None
    if not inflater.eof or inflater.unused_data or len(out) != member.n_bytes:
        raise _damaged(f"{member.name} has fewer bytes than the archive says")
    return memoryview(out)


def _damaged(reason: str) -> MopError:
    return UnreadableText(f"the zip archive is damaged: {reason}", hint=_HINT)


def _refused(reason: str) -> MopError:
    return Unsupported(f"the zip archive is no Keras model: {reason}", hint=_HINT)
