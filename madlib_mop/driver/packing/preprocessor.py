"""The commands training_preprocessor_dl and validation_preprocessor_dl: a source table into a packed one.

Checks come first; then the summary and the packed table are created and filled in the caller's transaction, so an
error leaves neither.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.layout import BadRow, read_header
from madlib_mop.driver.data.decoders import image_decoders
from madlib_mop.driver.data.engine import engine_of
from madlib_mop.driver.packing.columns import PackingKind, PackingSource, read_source, split_columns
from madlib_mop.driver.packing.labels import classes_notice, in_form, not_classes, read_labels
from madlib_mop.driver.packing.segments import Distribution, choose_segments
from madlib_mop.driver.packing.tables import (
    MAX_CLASS_BYTES,
    MAX_CLASSES,
    Classes,
    DistinctValues,
    SourceQueries,
    SummaryRow,
    comment_on,
    create_summary,
    draw_seed,
    row_label,
)
from madlib_mop.driver.packing.training import TrainingTable, read_training_table
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import BytesColumn, CallerSession
from madlib_mop.driver.session.messages import no_rows
from madlib_mop.engines.base.interface import Engine
from madlib_mop.errors import InvalidParameter, NotReady
from madlib_mop.models.parameters.literals import shorten
from madlib_mop.packing.buffers import MAX_VALUE_BYTES, BufferPlan, default_buffer_size, plan_buffers
from madlib_mop.packing.encoders import ArrayEncoder, ClassEncoder, ColumnEncoder, IndexEncoder, row_bytes, value_bytes
from madlib_mop.packing.images import DecoderPool, ImageEncoder
from madlib_mop.packing.packer import PackedBuffer, Packer, RawColumn

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class PackingCall:
    """The checked arguments and source table of a call.

    Attributes
    ----------
    engine : Engine
    source : PackingSource
    output : Relation
        Name of the packed table.
    output_text : str
        The same as written by the caller.
    distribution : Distribution
    buffer_size : int or None
        As asked for.
    constant : float
    n_rows : int
        Rows of the source table.
    image_shape : tuple of int or None
    """

    engine: Engine
    source: PackingSource
    output: Relation
    output_text: str
    distribution: Distribution
    buffer_size: int | None
    constant: float
    n_rows: int
    image_shape: tuple[int, ...] | None


def training_preprocessor_dl(call: Call) -> None:
    """Pack a table for training: rows in an order drawn from the seed, labels one-hot."""
    arguments = call.arguments
    constant = arguments["normalizing_const"]
    seed = draw_seed() if arguments["seed"] is None else arguments["seed"]
    y_names = split_columns(arguments["dependent_varname"], "dependent_varname")
    widths = _read_num_classes(arguments.get("num_classes"), y_names)
    as_index = read_labels(arguments.get("labels"), y_names)
    packing = _prepare(call, y_names, constant, [widths == []] * len(y_names))
    queries = SourceQueries(call.session, packing.source)
    classes = {}
    for i, column in enumerate(packing.source.columns):
        if column.kind is PackingKind.CLASS:
            number = i - len(packing.source.independent)
            found = queries.distinct_values(i)
            classes[i] = _classes(queries, i, found, widths[number] if widths else None, packing.output)
            classes[i] = in_form(classes[i], as_index[number], column)
            call.session.notice(f"{call.function}: {classes_notice(column, found)}")
        elif i >= len(packing.source.independent) and as_index[i - len(packing.source.independent)]:
            raise not_classes(column)
    with image_decoders() as pool:
        encoders = _encoders(packing.source, packing.constant, packing.image_shape, queries, classes, pool)
        for i, width in enumerate(widths or [], len(packing.source.independent)):
            encoder = encoders[i]
            if i not in classes and width is not None and encoder.shape != (width,):
                raise InvalidParameter(
                    f"num_classes has {width} for column {encoder.name!r}, which has arrays of the shape"
                    f" {list(encoder.shape)}. Received: {arguments['num_classes']}",
                    hint="Use NULL for a column that is a numeric array.",
                )
        _pack(call, packing, queries, classes, encoders, seed)


def validation_preprocessor_dl(call: Call) -> None:
    """Pack a table for validation with the constant and classes of a packed training table."""
    training = read_training_table(call.session, call.arguments["training_preprocessor_table"])
    y_names = split_columns(call.arguments["dependent_varname"], "dependent_varname")
    x_names = split_columns(call.arguments["independent_varname"], "independent_varname")
    training.check_counts(x_names, y_names, side_by_side=True)
    as_numbers = [known is None for known in training.classes]
    packing = _prepare(call, y_names, training.constant, as_numbers, separate=len(x_names) == len(training.independent))
    if len(packing.source.independent) != len(training.independent):  # numeric columns are concatenated into one input
        training.check_counts(x_names, y_names)
    training.check_columns(packing.source)
    queries = SourceQueries(call.session, packing.source)
    first_y = len(packing.source.independent)
    classes = {first_y + k: known for k, known in enumerate(training.classes) if known is not None}
    for i, known in classes.items():
        _refuse_unseen(queries, i, known, training)
        classes[i] = replace(known, counts=queries.class_counts(i, known))
    with image_decoders() as pool:
        encoders = _encoders(packing.source, packing.constant, packing.image_shape, queries, classes, pool)
        training.check_shapes(encoders)
        _pack(call, packing, queries, classes, encoders, None)


def _prepare(
    call: Call, y_names: list[str], constant: float, as_numbers: list[bool], separate: bool = False
) -> PackingCall:
    """Check the common arguments of both commands, then the source table."""
    arguments, session = call.arguments, call.session
    x_names = split_columns(arguments["independent_varname"], "independent_varname")
    source = read_source(session, arguments["source_table"], y_names, x_names, as_numbers, separate)
    image_shape = _read_image_shape(arguments.get("image_shape"), source)
    engine = engine_of(call.session)
    distribution = choose_segments(engine, session, arguments.get("distribution_rules"))
    parts = engine.part_suffixes(distribution.segments)
    output = session.output(arguments["output_table"], ("", "_summary", *parts), "output_table")
    n_rows = _count_rows(session, source)
    text = arguments["output_table"].strip()
    return PackingCall(
        engine, source, output, text, distribution, arguments["buffer_size"], constant, n_rows, image_shape
    )


def _count_rows(session: CallerSession, source: PackingSource) -> int:
    """Return the number of rows. Raises InvalidParameter if there is none, or a value is missing."""
    n_rows, counts = SourceQueries(session, source).count_rows()
    if not n_rows:
        raise no_rows(source.text)
    for name, has_classes, n_present in counts:
        if n_present < n_rows and not has_classes:
            raise InvalidParameter(
                f"column {name!r} is NULL in {n_rows - n_present} of {n_rows} rows of {source.text}",
                hint="Exclude such rows with a view.",
            )
    return n_rows


def _read_num_classes(widths: list[int | None] | None, y_names: list[str]) -> list[int | None] | None:
    """Check num_classes: None, [] for regression, or one number or None for each dependent column."""
    if widths is None or widths == []:
        return widths
    if len(widths) != len(y_names):
        raise InvalidParameter(
            f"num_classes has {len(widths)} elements for {len(y_names)} dependent columns. Received: {widths}",
            hint="Pass one number for each dependent column; NULL takes it from the data.",
        )
    for width in widths:
        if width is not None and (not isinstance(width, int) or not 1 <= width <= MAX_CLASSES):
            raise InvalidParameter(f"num_classes must be from 1 to {MAX_CLASSES}. Received: {widths}")
    return widths


def _read_image_shape(shape: list[int] | None, source: PackingSource) -> tuple[int, ...] | None:
    if shape is None:
        return None
    if not any(column.kind is PackingKind.IMAGE for column in source.independent):
        raise InvalidParameter(
            f"image_shape applies to columns of encoded images, but there is none. Received: {shape}",
            hint="An encoded image is a bytea value that contains a JPEG or PNG file.",
        )
    good = len(shape) in (2, 3) and all(isinstance(size, int) and 1 <= size <= 1 << 13 for size in shape)
    if not good or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise InvalidParameter(
            f"image_shape must be {{height,width}} or {{height,width,channels}}. Received: {shape}",
            hint="Sizes are from 1 to 8192; channels are 1 (gray), 3 (RGB) or 4 (RGBA).",
        )
    return tuple(shape)


def _classes(queries: SourceQueries, i: int, found: DistinctValues, wanted: int | None, output: Relation) -> Classes:
    """Return the classes of a dependent column's distinct values."""
    column = queries.source.columns[i]
    if column.column.type_name in ("float4", "float8", "numeric") and (number := queries.special_number(i)):
        raise InvalidParameter(
            f"column {column.name!r} contains {number}, which cannot be a class", hint="Replace it, or exclude the row."
        )
    n_values = found.n_values
    if n_values > MAX_CLASSES:
        raise InvalidParameter(
            f"column {column.name!r} has {n_values} distinct values; at most {MAX_CLASSES} classes are supported",
            hint="For regression, use num_classes => '{}'.",
        )
    if wanted is not None and wanted < n_values:
        raise InvalidParameter(
            f"num_classes has {wanted} for column {column.name!r}, which has {n_values} distinct values",
            hint="Use at least that number; NULL counts as a value.",
        )
    if found.n_bytes > MAX_CLASS_BYTES:
        raise InvalidParameter(
            f"column {column.name!r} has {n_values} distinct values of {found.n_bytes} bytes in all; the classes of a"
            f" column can have at most {MAX_CLASS_BYTES} bytes",
            hint="Replace them by short names or numbers in a view.",
        )
    holder, name = output.with_suffix("_summary"), f"{column.name}_class_values"
    type_sql, has_null, counts = column.column.type_sql, found.texts[0] is None, tuple(found.counts)
    return Classes(found.literal, n_values, wanted or n_values, has_null, type_sql, holder, name, counts=counts)


def _refuse_unseen(queries: SourceQueries, i: int, known: Classes, training: TrainingTable) -> None:
    unseen = queries.unseen_classes(i, known)
    if unseen:
        names = ", ".join("NULL" if value is None else repr(value) for value in unseen)
        where = f"in column {known.column!r} of {known.holder.written}" if known.holder else shorten(known.values)
        raise InvalidParameter(
            f"column {queries.source.columns[i].name!r} has values that are not among the classes of"
            f" {training.table}: {names}",
            hint=f"The classes are {where}.",
        )


def _encoders(
    source: PackingSource,
    constant: float,
    image_shape: tuple[int, ...] | None,
    queries: SourceQueries,
    classes: dict[int, Classes],
    pool: DecoderPool,
) -> list[ColumnEncoder]:
    """Create each column's encoder; shapes are those of an arbitrary row."""
    encoders: list[ColumnEncoder] = []
    first_row = queries.first_row()
    for i, column in enumerate(source.columns):
        if column.kind is PackingKind.CLASS:
            known = classes[i]
            encoder = IndexEncoder(column.name) if known.as_index else ClassEncoder(column.name, (known.width,))
            encoders.append(encoder)
        elif column.kind is PackingKind.IMAGE:
            try:
                shape = pool.decode([first_row[i]], image_shape).shape[1:]
            except BadRow as problem:
                raise InvalidParameter(
                    f"column {column.name!r} {problem.problem} (the first row)", hint=problem.hint
                ) from None
            encoders.append(ImageEncoder(column.name, shape, image_shape, pool))
        else:
            header = read_header(first_row[i])
            if not header.n_elements:
                raise InvalidParameter(
                    f"column {column.name!r} is an empty array (the first row)", hint="Exclude such rows with a view."
                )
            is_y = i >= len(source.independent)
            as_int16 = is_y and column.is_integer_array and queries.fits_smallint(i)
            dtype = np.dtype(np.int16 if as_int16 else np.float32)
            divisor = 1.0 if is_y else constant
            encoders.append(
                ArrayEncoder(column.name, header.shape, header.element_type, dtype, divisor, column.is_narrowed)
            )
    return encoders


def _pack(
    call: Call,
    packing: PackingCall,
    queries: SourceQueries,
    classes: dict[int, Classes],
    encoders: list[ColumnEncoder],
    seed: int | None,
) -> None:
    """Create both tables, and stream the rows through the packer into the packed table."""
    session, source = call.session, packing.source
    segments = packing.distribution.numbers
    wanted = packing.buffer_size or default_buffer_size(packing.n_rows, row_bytes(encoders), len(segments))
    plan = plan_buffers(packing.n_rows, wanted, segments)
    for encoder in encoders:
        if plan.rows_per_buffer * value_bytes(encoder) > MAX_VALUE_BYTES:
            raise InvalidParameter(
                f"buffers of {plan.rows_per_buffer} rows would have {plan.rows_per_buffer * value_bytes(encoder)}"
                f" bytes of column {encoder.name!r}, more than {MAX_VALUE_BYTES}. Received buffer_size:"
                f" {packing.buffer_size}",
                hint=f"At most {max(1, MAX_VALUE_BYTES // value_bytes(encoder))} rows fit.",
            )
    widths = [classes[i].width if i in classes else None for i in range(len(source.independent), len(source.columns))]
    summary = SummaryRow(
        source.text,
        packing.output_text,
        [column.name for column in source.dependent],
        [column.name for column in source.independent],
        [column.vartype for column in source.dependent],
        plan.rows_per_buffer,
        packing.constant,
        widths if any(widths) else [],
        packing.distribution.rules,
        packing.distribution.gpu_config,
        [one.name for column in source.independent for one in column.sources],
    )
    kept = [
        (column.name, classes[i].type_sql if i in classes else column.column.type_sql, classes.get(i))
        for i, column in enumerate(source.dependent, len(source.independent))
    ]
    create_summary(session, packing.output.with_suffix("_summary"), summary, kept)
    names = [column.name for column in source.columns]
    with packing.engine.store(session, packing.output, names, packing.distribution.segments) as store:
        store.create()
        with closing(_buffers(queries, classes, encoders, plan, seed)) as buffers:
            for buffer in buffers:
                store.insert(buffer.segment, buffer.buffer_id, buffer.values, buffer.shapes)
        store.finish()
    _notice_result(call, packing, plan, seed)


def _buffers(
    queries: SourceQueries,
    classes: dict[int, Classes],
    encoders: list[ColumnEncoder],
    plan: BufferPlan,
    seed: int | None,
) -> Generator[PackedBuffer, None, None]:
    """Yield the rows of the source table, encoded, in buffers."""
    source, packer = queries.source, Packer(plan, encoders)
    n_batch = max(1, min(_BATCH_BYTES // row_bytes(encoders), plan.rows_per_buffer, _MAX_BATCH_ROWS))
    with closing(queries.stream(classes, seed, n_batch)) as batches:
        for batch in batches:
            columns = [_raw_column(batch.columns[f"c{i}"]) for i in range(len(encoders))]
            n_before = packer.n_rows
            try:
                yield from packer.add(columns)
            except BadRow as problem:
                place = row_label(batch.columns, problem.row, n_before)
                message = f"column {_column_of(problem, source)!r} {problem.problem} ({place})"
                raise InvalidParameter(message, hint=problem.hint) from None
    yield from packer.finish()
    if packer.n_rows != plan.n_rows:
        raise NotReady(
            f"{source.text} was changed while it was being packed: {plan.n_rows} rows were counted, "
            f"{packer.n_rows} read",
            hint="Call again, or call in a REPEATABLE READ transaction.",
        )


@contextmanager
def encoded_like(
    session: CallerSession, name: str, what: str, training: TrainingTable, image_shape: tuple[int, ...] | None
) -> Iterator[tuple[list[ColumnEncoder], Iterator[PackedBuffer]]]:
    """Encode a table's rows in the order of a scan as the rows of a training table were, without packing them.

    Parameters
    ----------
    session : CallerSession
    name : str
        The table, as written by the caller.
    what : str
        The argument that named it, for messages.
    training : TrainingTable
        Its columns are found by their names; their shapes are not checked.
    image_shape : tuple of int or None
        Of encoded images.

    Yields
    ------
    tuple
        The encoder of each column, inputs first, and the buffers, which can be iterated over once.

    Raises
    ------
    MopError
        If a column is missing or of another kind than in training, or a row cannot be encoded.
    """
    x_names, y_names = ([column.name for column in columns] for columns in (training.independent, training.dependent))
    as_numbers = [known is None for known in training.classes]
    source = read_source(session, name, y_names, x_names, as_numbers, separate=True, arguments=(what, what, what))
    training.check_columns(source)
    queries, n_rows = SourceQueries(session, source), _count_rows(session, source)
    classes = {len(x_names) + k: known for k, known in enumerate(training.classes) if known is not None}
    for i, known in classes.items():
        _refuse_unseen(queries, i, known, training)
    with image_decoders() as pool:
        encoders = _encoders(source, training.constant, image_shape, queries, classes, pool)
        plan = plan_buffers(n_rows, default_buffer_size(n_rows, row_bytes(encoders), 1), [0])
        with closing(_buffers(queries, classes, encoders, plan, None)) as buffers:
            yield encoders, buffers


def _column_of(problem: BadRow, source: PackingSource) -> str | None:
    """Return the source table's column of a row that cannot be packed."""
    parts = next((column.parts for column in source.columns if column.name == problem.column), ())
    return parts[problem.element].name if parts and problem.element is not None else problem.column


def _notice_result(call: Call, packing: PackingCall, plan: BufferPlan, seed: int | None) -> None:
    """Report the result, with the seed, in a NOTICE and in the packed table's comment."""
    text = (
        f"{plan.n_rows} rows of {packing.source.text} packed into {plan.n_buffers} buffers of up to"
        f" {plan.rows_per_buffer} rows on {len(plan.segments)} segments"
    )
    if seed is not None:
        text += f", seed {seed}"
    comment_on(call.session, packing.output, f"madlib_mop: {text}")
    call.session.notice(f"{call.function}: {text}")
    if plan.n_rows < len(plan.segments):
        empty = ", ".join(map(str, plan.segments[plan.n_rows :]))
        call.session.warning(f"{call.function}: there are fewer rows than segments; these segments get none: {empty}")


def _raw_column(column: BytesColumn | list[Any]) -> RawColumn:
    """Return a column's values; a column that is NULL in all rows does not arrive as bytes."""
    return RawColumn(b"", [-1] * len(column)) if isinstance(column, list) else RawColumn(column.data, column.lengths)
