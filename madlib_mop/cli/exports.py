"""``madlib-mop export`` and ``madlib-mop card``: a model as files, made by the server and written here."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.queries import query
from madlib_mop.errors import InvalidParameter
from madlib_mop.exports.formats import Format

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Output table, or a registered model such as churn@champion or churn@3.")
]
Key = Annotated[
    int | None, typer.Option("--mst-key", help="Key of the model; required if the table has a column mst_key.")
]
Form = Annotated[
    Format, typer.Option("--format", help="keras, saved_model, onnx, safetensors or tflite.", case_sensitive=False)
]
Directory = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Directory to write; created if absent. Default: the name of the model."),
]


@app.command()
def export(
    model: Model, mst_key: Key = None, form: Form = Format.KERAS, output: Directory = None, dsn: Dsn = ""
) -> None:
    """Write a model into a directory: its file, signature, preprocessor and card. Print the files.

    The server makes the file, so this works from any machine, with the login of a role that may export the model. Files
    of an earlier export of the same format are replaced.
    """
    from madlib_mop.exports.directory import check_directory, write_directory

    directory = output if output is not None else Path(_name_of(model, mst_key))
    check_directory(directory)
    statement = "SELECT madlib_mop.export_model(%s, %s, %s)"
    for path in write_directory(directory, form, _bytes(query(dsn, statement, model, mst_key, form.value))):
        print(path)


@app.command()
def card(model: Model, mst_key: Key = None, dsn: Dsn = "") -> None:
    """Print the card of a model as Markdown: its data, metrics, inputs, outputs and lineage."""
    ((text,),) = query(dsn, "SELECT madlib_mop.model_card(%s, %s)", model, mst_key)
    sys.stdout.write(text)


def _name_of(model: str, mst_key: int | None) -> str:
    """Return the name of a model as that of a directory."""
    name = "".join(c if c.isalnum() or c in "_-@." else "_" for c in model).strip(".")
    if not name:
        raise InvalidParameter(f"MODEL must be the name of a model. Received: {model!r}")
    return name if mst_key is None else f"{name}-{mst_key}"


def _bytes(rows: list[tuple[Any, ...]]) -> bytes:
    ((value,),) = rows
    return bytes(value)
