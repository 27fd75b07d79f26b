"""The command validation_preprocessor_dl: a table is packed as its training table was.

If `pack_columns` made the training table, its recorded preprocessor encodes the rows; else see `arrays`.
"""

from concurrent.futures import ThreadPoolExecutor

from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.arrays import pack_like_training
from madlib_mop.driver.columns.recorded import check_names, needed_fields
from madlib_mop.driver.columns.rows import read_rows
from madlib_mop.driver.columns.source import read_source
from madlib_mop.driver.columns.writing import check_kept, prepare, write_columns
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.data.packed import read_preprocessor_row
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import InvalidParameter

_TRAINING = "training_preprocessor_table"
_SEED = 0  # the order depends on the content alone, so the same rows have the same bits


def validation_preprocessor_dl(call: Call) -> None:
    """Pack a table for validation, with the encoding of a packed training table."""
    preprocessor = _recorded(call)
    if preprocessor is None:
        pack_like_training(call)
    else:
        pack_recorded(call, preprocessor)


def pack_recorded(call: Call, preprocessor: Preprocessor) -> None:
    """Pack a table of ordinary columns by a recorded preprocessor.

    Raises
    ------
    UndefinedColumn
        If the table lacks an input or a target.
    InvalidParameter
        If a target is NULL, or has a class that the training rows do not have; if other columns are asked for.
    """
    arguments = call.arguments
    if arguments.get("image_shape") is not None:
        raise InvalidParameter(
            f"image_shape applies to tables of training_preprocessor_dl. Received: {arguments['image_shape']}",
            hint=f"Leave it out: images get the size that they have in {arguments[_TRAINING]}.",
        )
    check_names(arguments["dependent_varname"], preprocessor.targets, "dependent_varname")
    check_names(arguments["independent_varname"], preprocessor.inputs, "independent_varname")
    source = read_source(call.session, arguments["source_table"])
    fields = needed_fields(preprocessor.columns, source, "source_table")
    packing = prepare(call, source, _SEED)
    rows = read_rows(call.session, source, fields, _SEED)
    check_kept(rows, [field.name for field in fields], "Pack fewer rows at once.")
    with ThreadPoolExecutor(1) as thread, FileDecoder() as decode:
        encoder, targets = Encoder(preprocessor, decode), Targets(preprocessor)
        write_columns(call, packing, packing.output, packing.output_text, rows, rows.order(), encoder, targets, thread)
    call.session.notice(f"{call.function}: encoded by the preprocessor of {arguments[_TRAINING]}")


def _recorded(call: Call) -> Preprocessor | None:
    """Return the preprocessor of the training table; None if it has none."""
    session, name = call.session, call.arguments[_TRAINING]
    table = session.relation(name, _TRAINING)
    summary = session.existing(table.with_suffix("_summary").sql)
    row = read_preprocessor_row(session, summary) if summary is not None else None
    return Preprocessor.from_json(row.document) if row is not None else None
