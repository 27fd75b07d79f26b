"""``madlib-mop export``, ``card`` and ``import``: files of models, made or read by the server, written or read here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.queries import query
from madlib_mop.errors import InvalidParameter
from madlib_mop.exports.formats import Format
from madlib_mop.imports.sources import read_path

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Output table, or a registered model such as churn@champion or churn@3.")
]
Key = Annotated[
    int | None, typer.Option("--mst-key", help="Key of the model; required if the table has a column mst_key.")
]
Form = Annotated[
    Format, typer.Option("--format", help="keras, saved_model, onnx or safetensors.", case_sensitive=False)
]
Directory = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Directory to write; created if absent. Default: the name of the model."),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A .keras file; for --weights-of also .h5 or .safetensors.")]
Table = Annotated[
    str | None, typer.Option("--table", help="Table of architectures that gets the model; created if absent.")
]
WeightsOf = Annotated[
    int | None, typer.Option("--weights-of", help="model_id of the row of --table that gets the weights of the file.")
]
ByName = Annotated[bool, typer.Option("--by-name", help="With --weights-of: match layers by their names.")]
SkipMismatch = Annotated[
    bool, typer.Option("--skip-mismatch", help="With --weights-of: leave layers that do not fit as they are.")
]
Register = Annotated[
    str | None, typer.Option("--register", help="Name of the registered model that gets the model as a version.")
]
Classes = Annotated[
    str | None, typer.Option("--classes", help="With --register: names of the classes, with commas.")
]
Constant = Annotated[
    float | None, typer.Option("--normalizing-const", help="With --register: inputs are divided by it.")
]
Compile = Annotated[
    str | None, typer.Option("--compile-params", help="With --register: loss and metrics, for evaluate and deploy.")
]
Name = Annotated[str | None, typer.Option("--name", help="With --table: a name for the model.")]
Note = Annotated[str | None, typer.Option("--note", help="With --register: a note. With --table: a description.")]


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
    statement = "SELECT * FROM madlib_mop.export_parts(%s, %s, %s, caller_path => %s)"
    rows = query(dsn, statement, model, mst_key, form.value, with_path=True, in_turn=True)
    for path in write_directory(directory, form, b"".join(bytes(part) for (part,) in rows)):
        print(path)


@app.command()
def card(model: Model, mst_key: Key = None, dsn: Dsn = "") -> None:
    """Print the card of a model as Markdown: its data, metrics, inputs, outputs and lineage."""
    statement = "SELECT madlib_mop.model_card(%s, %s, caller_path => %s)"
    ((text,),) = query(dsn, statement, model, mst_key, with_path=True)
    sys.stdout.write(text)


@app.command("import")
def import_file(
    file: File,
    table: Table = None,
    weights_of: WeightsOf = None,
    by_name: ByName = False,
    skip_mismatch: SkipMismatch = False,
    register: Register = None,
    classes: Classes = None,
    normalizing_const: Constant = None,
    compile_params: Compile = None,
    name: Name = None,
    note: Note = None,
    dsn: Dsn = "",
) -> None:
    """Import a file: as a row of a table of architectures, as weights of a row, or as a version of a registered model.

    Print the model_id, the number of layers that got weights, or the name of the version. No code of the file is run.
    """
    if (table is None) == (register is None):
        raise InvalidParameter("pass either --table or --register", hint="madlib-mop import --help explains both.")
    if register is not None:
        _refuse("--register", {"--weights-of": weights_of, "--by-name": by_name, "--skip-mismatch": skip_mismatch,
                               "--name": name})  # fmt: skip
        values = None if classes is None else [one.strip() for one in classes.split(",")]
        statement = "SELECT madlib_mop.import_version(%s, %s, %s, %s, %s, %s, caller_path => %s)"
        given = (register, read_path(file), values, normalizing_const, compile_params, note)
        ((version,),) = query(dsn, statement, *given, with_path=True)
        print(f"{register.lower()}@{version}")
        return
    _refuse("--table", {"--classes": classes, "--normalizing-const": normalizing_const,
                        "--compile-params": compile_params})  # fmt: skip
    if weights_of is None:
        _refuse("--table without --weights-of", {"--by-name": by_name, "--skip-mismatch": skip_mismatch})
        statement = "SELECT madlib_mop.import_model(%s, %s, %s, %s, caller_path => %s)"
        ((number,),) = query(dsn, statement, table, read_path(file), name, note, with_path=True)
    else:
        _refuse("--weights-of", {"--name": name, "--note": note})
        statement = "SELECT madlib_mop.import_weights(%s, %s, %s, %s, %s, caller_path => %s)"
        ((number,),) = query(
            dsn, statement, table, weights_of, read_path(file), by_name, skip_mismatch, with_path=True
        )
    print(number)


def _name_of(model: str, mst_key: int | None) -> str:
    """Return the name of a model as that of a directory."""
    name = "".join(c if c.isalnum() or c in "_-@." else "_" for c in model).strip(".")
    if not name:
        raise InvalidParameter(f"MODEL must be the name of a model. Received: {model!r}")
    return name if mst_key is None else f"{name}-{mst_key}"


def _refuse(used: str, options: dict[str, object]) -> None:
    """Raise InvalidParameter for an option that has no meaning together with another one."""
    for option, value in options.items():
        if value not in (None, False):
            raise InvalidParameter(
                f"{option} has no meaning with {used}", hint="madlib-mop import --help explains the options."
            )
