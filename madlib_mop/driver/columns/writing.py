"""Packed tables: their output names and segments, their encoded rows, and the summaries of those of `pack_columns`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Relation
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import ClassTarget, Targets
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.review import ColumnToCheck
from madlib_mop.columns.raw import MAX_LEVELS, RawColumn
from madlib_mop.driver.columns.rows import SourceRows, naming_rows
from madlib_mop.driver.columns.source import SourceTable
from madlib_mop.driver.columns.threads import computed_ahead
from madlib_mop.driver.data.copied import array_literal, quoted
from madlib_mop.driver.data.engine import engine_of
from madlib_mop.driver.data.packed import CHECKS
from madlib_mop.driver.packing.dropping import PackedDrop, if_there
from madlib_mop.driver.packing.segments import Distribution, choose_segments
from madlib_mop.driver.packing.tables import Classes, SummaryRow, comment_on, create_summary
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.engines.base.interface import Engine
from madlib_mop.errors import InvalidParameter
from madlib_mop.packing.buffers import MAX_VALUE_BYTES, BufferPlan, default_buffer_size, plan_buffers

Array = npt.NDArray[np.generic]
#: Encodes some rows: the tensors of the inputs, then those of the targets.
Encode = Callable[[Mapping[str, RawColumn]], list[Array]]
_OWN_TYPES = ("boolean", "smallint", "integer", "bigint")  # class values of other types are stored as text


@dataclass(frozen=True)
class Packing:
    """What is known once the arguments were checked.

    Attributes
    ----------
    engine : Engine
    source : SourceTable
    output : Relation
    output_text : str
        Its name as the caller wrote it.
    distribution : Distribution
    buffer_size : int or None
        As asked for.
    seed : int or None
        Of the order of rows; None keeps their order.
    drops : tuple of PackedDrop
        The packed table that is replaced, to be dropped before the new tables are made.
    """

    engine: Engine
    source: SourceTable
    output: Relation
    output_text: str
    distribution: Distribution
    buffer_size: int | None
    seed: int | None
    drops: tuple[PackedDrop, ...] = ()


def prepare(call: Call, source: SourceTable, seed: int | None, companions: Sequence[str] = ()) -> Packing:
    """Check the arguments about the output, before any row is read.

    Parameters
    ----------
    call : Call
    source : SourceTable
    seed : int or None
        As of `Packing`.
    companions : sequence of str
        The suffixes of the packed tables that are made beside it, such as ``_validation``.

    Raises
    ------
    MopError
        If an output table exists and cannot be replaced, or segments cannot be chosen.
    """
    session, arguments = call.session, call.arguments
    engine = engine_of(session)
    distribution = choose_segments(engine, session, arguments.get("distribution_rules"))
    parts = engine.part_suffixes(distribution.segments)
    suffixes = [of + suffix for of in ("", *companions) for suffix in ("", "_summary", *parts)]
    drops: list[PackedDrop] = []
    existing = if_there(call, "output_table", drops)
    output = session.output(arguments["output_table"], suffixes, "output_table", existing)
    text = arguments["output_table"].strip()
    buffer_size = arguments["buffer_size"]
    return Packing(engine, source, output, text, distribution, buffer_size, seed, tuple(drops))


def check_kept(rows: SourceRows, names: Sequence[str], hint: str) -> None:
    """Raise InvalidParameter if one of these columns has more distinct texts than can be kept."""
    for name in names:
        if name in rows.overflowed:
            raise InvalidParameter(f"column {name!r} has more than {MAX_LEVELS:,} distinct texts", hint=hint)


def write_columns(
    call: Call,
    packing: Packing,
    output: Relation,
    text: str,
    rows: SourceRows,
    order: npt.NDArray[np.int64],
    encoder: Encoder,
    targets: Targets,
    thread: ThreadPoolExecutor,
    to_check: Sequence[ColumnToCheck] = (),
) -> None:
    """Make one packed table of ordinary columns and its summary, and fill it with these rows in this order.

    ``to_check`` are the inputs that a person should check; the summary names them.
    """
    preprocessor = encoder.preprocessor
    row_bytes = sum(np.dtype(t.dtype).itemsize * int(np.prod(t.shape)) for t in preprocessor.tensors)
    row_bytes += sum(4 * int(np.prod(targets.shape(name))) for name in targets.names)
    plan = plan_packing(packing, len(order), row_bytes)
    tensors = [(tensor.name, tensor.dtype, tensor.shape) for tensor in preprocessor.tensors]
    tensors += [(name, targets.dtype(name), targets.shape(name)) for name in targets.names]
    check_sizes(plan, {name: value_bytes(dtype, shape) for name, dtype, shape in tensors}, packing.buffer_size)
    _summarize(call.session, packing, output, text, plan, preprocessor, rows, order, to_check)
    names = [name for name, _, _ in tensors]
    write_packed(call, packing, output, text, rows, order, plan, names, by_columns(encoder, targets), thread)


def by_columns(encoder: Encoder, targets: Targets) -> Encode:
    """Return how the rows of ordinary columns are encoded."""
    return lambda raw: [*encoder.encode(raw).arrays.values(), *targets.encode(raw).values()]


def plan_packing(packing: Packing, n_rows: int, row_bytes: int) -> BufferPlan:
    """Return the buffers of so many rows."""
    segments = packing.distribution.numbers
    wanted = packing.buffer_size or default_buffer_size(n_rows, row_bytes, len(segments))
    return plan_buffers(n_rows, wanted, segments)


def value_bytes(dtype: npt.DTypeLike, shape: Sequence[int]) -> int:
    """Return the packed bytes of one row of one column."""
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


def check_sizes(plan: BufferPlan, row_bytes: Mapping[str, int], wanted: int | None) -> None:
    """Raise InvalidParameter if a buffer would have a larger value than can be read.

    Parameters
    ----------
    plan : BufferPlan
    row_bytes : mapping of str to int
        The bytes of a row, by column.
    wanted : int or None
        The rows of a buffer that the caller wants.
    """
    for name, n_bytes in row_bytes.items():
        if plan.rows_per_buffer * n_bytes > MAX_VALUE_BYTES:
            raise InvalidParameter(
                f"buffers of {plan.rows_per_buffer} rows would have {plan.rows_per_buffer * n_bytes} bytes of column"
                f" {name!r}, more than {MAX_VALUE_BYTES}. Received buffer_size: {wanted}",
                hint=f"At most {max(1, MAX_VALUE_BYTES // n_bytes)} rows fit.",
            )


def write_packed(
    call: Call,
    packing: Packing,
    output: Relation,
    text: str,
    rows: SourceRows,
    order: npt.NDArray[np.int64],
    plan: BufferPlan,
    names: Sequence[str],
    encode: Encode,
    thread: ThreadPoolExecutor,
) -> None:
    """Make one packed table, and fill it with these rows in this order; it has its summary already.

    Parameters
    ----------
    call : Call
    packing : Packing
    output : Relation
    text : str
        Its name as the caller wrote it.
    rows : SourceRows
    order : numpy.ndarray
        int64: the numbers of the rows that it gets.
    plan : BufferPlan
    names : sequence of str
        Its columns: inputs, then targets.
    encode : callable
    thread : ThreadPoolExecutor
        Of one thread, which encodes; see `computed_ahead`.
    """
    session = call.session
    with packing.engine.store(session, output, names, packing.distribution.segments) as store:
        store.create()
        chosen_rows = _buffers(plan, order)
        encoded = computed_ahead(thread, lambda chosen: encode_rows(rows, chosen, encode), chosen_rows)
        with closing(encoded) as buffers:
            for buffer_id, tensors in enumerate(buffers):
                values = [tensor.tobytes() for tensor in tensors]
                store.insert(plan.segment_of(buffer_id), buffer_id, values, [tensor.shape for tensor in tensors])
        store.finish()
    what = (
        f"{plan.n_rows} rows of {packing.source.text} packed into {plan.n_buffers} buffers of up to"
        f" {plan.rows_per_buffer} rows on {len(plan.segments)} segments"
    )
    if packing.seed is not None:
        what += f", seed {packing.seed}"
    comment_on(session, output, f"madlib_mop: {what}")
    session.notice(f"{call.function}: {text}: {what}")
    if plan.n_rows < len(plan.segments):
        empty = ", ".join(map(str, plan.segments[plan.n_rows :]))
        session.warning(
            f"{call.function}: {text}: there are fewer rows than segments; these segments get none: {empty}"
        )


def encode_rows(rows: SourceRows, chosen: npt.NDArray[np.int64], encode: Encode) -> list[Array]:
    """Return the tensors of some rows, by their numbers: inputs, then targets."""
    raw = {name: column.take(chosen) for name, column in rows.columns.items()}
    with naming_rows(lambda row: rows.names.of(int(chosen[row]))):
        return encode(raw)


def _buffers(plan: BufferPlan, order: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each buffer."""
    start = 0
    for buffer_id in range(plan.n_buffers):
        end = start + plan.rows_of(buffer_id)
        yield order[start:end]
        start = end


def _summarize(
    session: CallerSession,
    packing: Packing,
    output: Relation,
    text: str,
    plan: BufferPlan,
    preprocessor: Preprocessor,
    rows: SourceRows,
    order: npt.NDArray[np.int64],
    to_check: Sequence[ColumnToCheck],
) -> None:
    """Make the ``_summary`` of a packed table, with the preprocessor."""
    holder = output.with_suffix("_summary")
    classes = [_classes(column, holder, rows, order) for column in preprocessor.targets]
    widths = [known.width if known is not None else None for known in classes]
    summary = SummaryRow(
        packing.source.text,
        text,
        [column.name for column in preprocessor.targets],
        [tensor.name for tensor in preprocessor.tensors],
        [_class_type(column) for column in preprocessor.targets],
        plan.rows_per_buffer,
        1.0,
        widths if any(widths) else [],
        packing.distribution.rules,
        packing.distribution.gpu_config,
        [column.name for column in preprocessor.inputs],
    )
    kept = [(c.name, _class_type(c), known) for c, known in zip(preprocessor.targets, classes, strict=True)]
    more = [
        ("index_columns", "text[]", [tensor.name for tensor in preprocessor.tensors if tensor.dtype == "int32"]),
        ("preprocessor_digest", "text", preprocessor.digest),
        ("preprocessor", "text", preprocessor.to_json()),
        (CHECKS, "text[]", [one.text for one in to_check]),
    ]
    create_summary(session, holder, summary, kept, more)


def _classes(column: FittedColumn, holder: Relation, rows: SourceRows, order: npt.NDArray[np.int64]) -> Classes | None:
    fit = column.fit
    if not isinstance(fit, ClassFit):
        return None
    counts = ClassTarget(column.name, fit).counts(rows.columns[column.name].take(order))
    return Classes(
        array_literal(quoted(fit.classes)),
        len(fit.classes),
        len(fit.classes),
        False,
        _class_type(column),
        holder,
        f"{column.name}_class_values",
        as_index=fit.encode == "index",
        counts=counts,
    )


def _class_type(column: FittedColumn) -> str:
    """Return the type of a target's values in summaries and predictions."""
    if not isinstance(column.fit, ClassFit):
        return "double precision"
    return column.spec.sql_type if column.spec.sql_type in _OWN_TYPES else "text"
