"""The bytes of a model's file on the machine of the caller, read for the server; the client and the command line."""

from pathlib import Path

from madlib_mop.errors import InvalidParameter, cannot_be_read
from madlib_mop.exports.archives import Data
from madlib_mop.imports.kinds import kind_of

#: Drivers send a bytea as text of twice its size, and a statement has at most 1 GB.
MAX_SENT_BYTES = (1 << 29) - (1 << 20)
_HINT = (
    "A superuser can let the server read the file:"
    " SELECT madlib_mop.import_model('networks', pg_read_binary_file('/path/model.keras'));"
)


def read_path(path: Path) -> bytes:
    """Return the content of a file that is one of a model.

    Raises
    ------
    InvalidParameter
        If it cannot be read, or is too large to be sent.
    UnreadableText, Unsupported
        If it is of another kind, such as a pickle.
    """
    try:
        n_bytes = path.stat().st_size
        if path.is_dir():
            raise InvalidParameter(f"{path} is a directory", hint="Name the file of the model in it.")
        check_sent(n_bytes, str(path))
        data = path.read_bytes()
    except OSError as error:
        raise cannot_be_read(path, error.strerror, "Name another file.") from None
    kind_of(data)
    return data


def check_sent(n_bytes: int, what: str) -> None:
    """Raise InvalidParameter if something is too large for a statement."""
    if n_bytes > MAX_SENT_BYTES:
        raise InvalidParameter(
            f"{what} has {n_bytes:,} bytes, and a statement holds a file of at most {MAX_SENT_BYTES:,}", hint=_HINT
        )


def checked(data: Data) -> bytes:
    """Return the bytes of a file; raises as `read_path`."""
    check_sent(len(data), "the file")
    kind_of(data)
    return bytes(data)
