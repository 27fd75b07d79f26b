"""Writes an exported model into a directory: the model's file, and beside it signature, preprocessor and card.

Called by the command line and by the Python client.
"""

import os
import tempfile
from pathlib import Path

from madlib_mop.errors import InvalidParameter, cannot_be_written
from madlib_mop.exports.archives import Data
from madlib_mop.exports.formats import FOLDER, PREPROCESSOR, Format, open_archive, read_additions


def write_directory(directory: Path, form: Format, data: bytes) -> list[Path]:
    """Write an export; files of an earlier export of the same format are replaced, other formats' files stay.

    Parameters
    ----------
    directory : Path
        Created if there is none; its parent must exist.
    form : Format
    data : bytes
        What ``madlib_mop.export_model`` returned.

    Returns
    -------
    list of Path
        The files, and the directory of a SavedModel.

    Raises
    ------
    InvalidParameter
        If something else has one of the names, or a file cannot be written.
    UnreadableText, Unsupported
        If the data are no export.
    """
    check_directory(directory)
    name = "model.zip" if form is Format.SAVED_MODEL else form.file_name
    additions = read_additions(name, data)
    target = directory / form.file_name
    try:
        directory.mkdir(exist_ok=True)
        _check_kinds(directory, form, additions)
        if form is Format.SAVED_MODEL:
            _write_saved_model(target, data)
        else:
            _write(target, data)
        for addition, text in additions.items():
            _write(directory / addition, text.encode())
        if PREPROCESSOR not in additions:  # that of another model is not left beside this one
            (directory / PREPROCESSOR).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_be_written(error.filename or directory, error.strerror, "Name another directory.") from None
    return [target, *(directory / addition for addition in additions)]


def check_directory(directory: Path) -> None:
    """Raise InvalidParameter unless a directory is there, or can be created."""
    if directory.exists() and not directory.is_dir():
        raise InvalidParameter(f"{directory} is no directory", hint="Name another directory.")
    if not directory.absolute().parent.is_dir():
        raise InvalidParameter(
            f"the directory above {directory} does not exist", hint="Create it, or name another directory."
        )


def _check_kinds(directory: Path, form: Format, additions: dict[str, str]) -> None:
    """Raise InvalidParameter if a name is taken by what an export does not replace: a link, or another kind of file."""
    for name in (form.file_name, *additions):
        path, wants_directory = directory / name, form is Format.SAVED_MODEL and name == form.file_name
        if path.is_symlink() or path.exists() and path.is_dir() != wants_directory:
            raise InvalidParameter(f"{path} exists, and is no {'directory' if wants_directory else 'file'}",
                                   hint="Remove it, or name another directory.")  # fmt: skip


def _write(path: Path, data: Data) -> None:
    """Write a file beside its place and move it there, so that it is replaced as a whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "xb") as file:
            file.write(data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _write_saved_model(path: Path, data: bytes) -> None:
    """Unpack the archive beside the directory, and put it in the directory's place."""
    with tempfile.TemporaryDirectory(prefix=".saved_model.", dir=path.parent) as work:
        new, old = Path(work) / "new", Path(work) / "old"
        new.mkdir()
        file = open_archive(data)
        for name in file.names:
            if name.startswith(FOLDER):
                continue
            place = new / name
            if name.endswith("/"):
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, file.read(name))
        if path.exists():
            path.rename(old)
        new.rename(path)
