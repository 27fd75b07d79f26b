"""Event files of TensorBoard: files of records in directories of our own; called by `tensorboard`.

The package tensorboard writes the records and has the messages in them (`tensorboard.summary.writer.record_writer`,
`tensorboard.compat.proto`). It belongs to the program that reads them, so the format is right in each version, HParams
and histograms included. Its `EventFileWriter` is not used: it imports TensorFlow where that is installed, as in all of
our installations. It also names files by the time, so writing a run again would double its points, and it needs a
thread and an open file for each directory. tensorboardX is smaller and never imports TensorFlow, but its writer has the
other two properties, too.
"""

import contextlib
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from madlib_mop.errors import InvalidParameter, cannot_be_written
from madlib_mop.trackers.requirements import package


class EventFile:
    """One event file. The first events replace what an earlier call has written, further ones are appended.

    A file is open only while it is written to, so a run can have more files than a process may open.

    Parameters
    ----------
    directory : Path
    created_at : float
        Seconds since 1970, for the file's name and its first event.
    """

    def __init__(self, directory: Path, created_at: float):
        self._path = directory / f"events.out.tfevents.{int(created_at):010d}.madlib_mop"
        self._created_at = created_at
        self._is_begun = False

    def append(self, events: Iterable[Any]) -> None:
        """Write events, messages of `event_pb2.Event`.

        Raises
        ------
        InvalidParameter
            If the file cannot be written, or is not a file.
        """
        with writing(self._path):
            if self._is_begun:
                # defence: link-of-an-event-file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
                descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
                with os.fdopen(descriptor, "ab") as file:
                    file.write(_records(events))
                return
            first = event(self._created_at, 0, None)
            first.file_version = "brain.Event:2"
            replace_file(self._path, _records([first, *events]))
            self._is_begun = True


def event(at: float, step: int, summary: Any) -> Any:
    """Return an event: a message of `summary_pb2.Summary` at a time in seconds since 1970 and a step."""
    (event_pb2,) = package("tensorboard", "compat.proto.event_pb2")
    return event_pb2.Event(wall_time=at, step=step, summary=summary)


def scalar(tag: str, value: float) -> Any:
    """Return the summary of one number; TensorBoard has 32 bits for it."""
    (summary_pb2,) = package("tensorboard", "compat.proto.summary_pb2")
    with np.errstate(over="ignore"):  # greater ones are infinite
        narrow = float(np.float32(value))
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=narrow)])


def subdirectory(parent: Path, name: str) -> Path:
    """Return a directory in a directory, created unless it exists.

    Raises
    ------
    InvalidParameter
        If it cannot be created, or is a link or a file: nothing is written outside of the directory.
    """
    path = parent / name
    with writing(path):
        try:
            path.mkdir()
        except FileExistsError:
            # defence: link-of-a-directory = not stat.S_ISDIR(path.stat().st_mode)
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise InvalidParameter(
                    f"{path} is a {'link' if path.is_symlink() else 'file'}, not a directory",
                    hint="Remove it, or give another directory.",
                ) from None
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there, so that it is replaced as a whole, and no link is followed."""
    beside = path.with_name(f".{os.getpid()}.part")  # without "tfevents" in its name, or TensorBoard would read it
    beside.unlink(missing_ok=True)
    try:
        with open(beside, "xb") as file:
            file.write(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into InvalidParameter with the path and the reason."""
    try:
        yield
    except OSError as error:
        hint = "Give another directory, or change its permissions."
        raise cannot_be_written(path, error.strerror, hint) from None


def _records(events: Iterable[Any]) -> bytes:
    (record_writer,) = package("tensorboard", "summary.writer.record_writer")
    buffer = io.BytesIO()
    writer = record_writer.RecordWriter(buffer)
    for one in events:
        writer.write(one.SerializeToString())
    return buffer.getvalue()
