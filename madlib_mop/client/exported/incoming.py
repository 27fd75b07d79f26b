"""A model as the bytes of a file, for the functions that import: from a path, from bytes, or from a model of Keras."""

import tempfile
from pathlib import Path
from typing import Any

from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.errors import MopError
from madlib_mop.imports.sources import checked, read_path


def bytes_of(source: Any) -> bytes:
    """Return the bytes of a model's file.

    Parameters
    ----------
    source : str, Path, bytes, or keras.Model
        A path, the content of a file, or a model of Keras, which is saved into a temporary file.

    Raises
    ------
    MopError
        If the file cannot be read, is too large to be sent, or is none of a model, such as a pickle.
    """
    try:
        if isinstance(source, str | Path):
            return read_path(Path(source))
        if isinstance(source, bytes | bytearray | memoryview):
            return checked(source)
        if callable(getattr(source, "save", None)) and callable(getattr(source, "to_json", None)):
            return _saved(source)
    except MopError as error:
        raise noted(error) from None
    raise bad_input(
        f"a model's file is a path, bytes, or a model of Keras. Received: {type(source).__name__}",
        "For example 'model.keras', or the model itself.",
    )


def _saved(model: Any) -> bytes:
    """Return what Keras saves of a model, without its optimizer."""
    with tempfile.TemporaryDirectory(prefix="madlib_mop_") as folder:
        path = Path(folder) / "model.keras"
        model.save(path, include_optimizer=False)
        return read_path(path)
