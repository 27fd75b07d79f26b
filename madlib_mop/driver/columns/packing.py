"""The command pack_columns: one pass over an ordinary table, its preprocessor, and the packed tables.

Rows are read once (`rows`); their content decides which are kept for validation (`splitting`); the training rows are
counted and a preprocessor is fitted to them; then every row is encoded, in the order of its hash.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.fitting import fit_preprocessor
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import IGNORED, TARGET, ColumnSpec, TableColumn
from madlib_mop.columns.proposals.specification import check_specification, check_table, read_specification
from madlib_mop.columns.records import Field, family_of
from madlib_mop.columns.splits import SplitRule
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.columns.proposing import COLUMNS, count, proposal
from madlib_mop.driver.columns.rows import Rows, read_rows
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.columns.splitting import choose_validation, class_codes, split_rule
from madlib_mop.driver.data.engine import engine_of
from madlib_mop.driver.packing.columns import MAX_PACKED_COLUMNS, split_columns
from madlib_mop.driver.packing.segments import Distribution, choose_segments
from madlib_mop.driver.packing.tables import Classes, Summary, comment_on, create_summary, draw_seed
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.engines.base.interface import Engine
from madlib_mop.errors import InvalidParameter, Unsupported
from madlib_mop.packing.buffers import BufferPlan, default_buffer_size, plan_buffers

VALIDATION = "_validation"
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
    seed : int
    rule : SplitRule or None
        What is kept for validation.
    """

    engine: Engine
    source: SourceTable
    output: Relation
    output_text: str
    distribution: Distribution
    buffer_size: int | None
    seed: int
    rule: SplitRule | None


def pack_columns(call: Call) -> None:
    """Pack a table of ordinary columns for training, and a part of it for validation."""
    session, arguments = call.session, call.arguments
    source = read_source(session, arguments["source_table"])
    dependent = split_columns(arguments["dependent"], "dependent")
    given = _given_specification(session, arguments["columns"], source, dependent)
    packing = _prepare(call, source)
    exclude = arguments["exclude"] or []
    fields = _fields(source, given, exclude, packing.rule)
    rows = read_rows(session, source, fields, packing.seed)
    validation = None
    if packing.rule is not None:
        validation = choose_validation(packing.rule, rows, class_codes(rows, dependent), packing.seed)
    training = None if validation is None else ~validation
    preprocessor = _fit(source, rows, training, given, dependent, exclude)
    encoder, targets = Encoder(preprocessor), Targets(preprocessor)
    _write(call, packing, packing.output, packing.output_text, rows, rows.order(training), encoder, targets)
    if validation is not None:
        output, text = packing.output.with_suffix(VALIDATION), packing.output_text + VALIDATION
        _write(call, packing, output, text, rows, rows.order(validation), encoder, targets)
    _tell(call, preprocessor, packing.seed)


def _given_specification(
    session: CallerSession, name: str | None, source: SourceTable, dependent: Sequence[str]
) -> list[ColumnSpec] | None:
    """Read and check the edited proposal, if one is given."""
    if name is None:
        return None
    table = session.relation(name, "columns")
    present = {column.name for column in session.columns(table)}
    missing = [column for column, _ in COLUMNS if column not in present]
    if missing:
        raise InvalidParameter(
            f"columns: {table} has no column {missing[0]!r}. Received: {name!r}",
            hint="Give a table that madlib_mop.propose_columns made; edit its rows, not its columns.",
        )
    names = [Identifier(column) for column, _ in COLUMNS]
    specs = read_specification(
        session.execute(statement("SELECT {names} FROM {table}", names=names, table=table)),
        several_targets=len(dependent) > 1,
    )
    targets = [spec.name for spec in specs if spec.role == TARGET]
    if sorted(targets) != sorted(dependent):
        raise InvalidParameter(
            f"columns: the targets of {table} are {', '.join(targets)}, but dependent is {', '.join(dependent)}",
            hint="Edit the roles, or give the same columns as dependent.",
        )
    check_table(specs, [TableColumn(c.name, c.type_sql, _family(c.field)) for c in source.columns])
    by_name = {spec.name: spec for spec in specs}
    return [by_name[column.name] for column in source.columns if column.name in by_name]


def _prepare(call: Call, source: SourceTable) -> Packing:
    """Check the other arguments, before any row is read."""
    session, arguments = call.session, call.arguments
    rule = split_rule(arguments["validation"], source)
    engine = engine_of(session)
    distribution = choose_segments(engine, session, arguments["distribution_rules"])
    parts = engine.part_suffixes(distribution.segments)
    suffixes = ["", "_summary", *parts]
    if rule is not None:
        suffixes += [VALIDATION + suffix for suffix in suffixes]
    output = session.output(arguments["output_table"], suffixes, "output_table")
    seed = draw_seed() if arguments["seed"] is None else arguments["seed"]
    text = arguments["output_table"].strip()
    return Packing(engine, source, output, text, distribution, arguments["buffer_size"], seed, rule)


def _fields(
    source: SourceTable, given: Sequence[ColumnSpec] | None, exclude: Sequence[str], rule: SplitRule | None
) -> list[Field]:
    """Return the columns that are read: inputs, targets, and what the rows are split by."""
    unused = set(exclude) if given is None else {c.name for c in source.columns} - {
        spec.name for spec in given if spec.role != IGNORED
    }  # fmt: skip
    wanted = rule.column if rule is not None else None
    return [field for field in source.fields if field.name not in unused or field.name == wanted]


def _fit(
    source: SourceTable,
    rows: Rows,
    training: npt.NDArray[np.bool_] | None,
    given: Sequence[ColumnSpec] | None,
    dependent: Sequence[str],
    exclude: Sequence[str],
) -> Preprocessor:
    """Fit the preprocessor of the given specification, or of the one that is proposed, to the training rows."""
    if given is None:
        counted = count(source, rows, training)
        statistics = {column.name: column.statistics for column in counted if column.statistics is not None}
        specs = proposal(rows, counted, dependent, exclude)
        check_specification(specs, several_targets=len(dependent) > 1)
    else:
        statistics = {name: _statistics(column, training) for name, column in rows.columns.items()}
        specs = list(given)
    for spec in specs:
        if spec.role != IGNORED and spec.name in rows.overflowed:
            raise InvalidParameter(
                f"column {spec.name!r} has more distinct texts than can be encoded",
                hint="Set its role to ignored in the table of propose_columns, or shorten it in a view.",
            )
    preprocessor = fit_preprocessor(specs, statistics)
    if any(tensor.kind == "image" for tensor in preprocessor.tensors):
        raise Unsupported(
            "pack_columns does not pack images yet", hint="Exclude the column, or use training_preprocessor_dl."
        )
    n_packed = len(preprocessor.tensors) + len(preprocessor.targets)
    if n_packed > MAX_PACKED_COLUMNS:
        raise InvalidParameter(
            f"the table would have {n_packed} inputs and targets; at most {MAX_PACKED_COLUMNS} can be packed",
            hint="Set encode to one_hot or frequency for some categories: they share one input.",
        )
    return preprocessor


def _statistics(column: Any, training: npt.NDArray[np.bool_] | None) -> ColumnStatistics:
    return ColumnStatistics.of(column if training is None else column.take(training))


def _write(
    call: Call,
    packing: Packing,
    output: Relation,
    text: str,
    rows: Rows,
    order: npt.NDArray[np.int64],
    encoder: Encoder,
    targets: Targets,
) -> None:
    """Make one packed table and its summary, and fill it with these rows in this order."""
    session, preprocessor = call.session, encoder.preprocessor
    distribution = packing.distribution
    row_bytes = sum(np.dtype(t.dtype).itemsize * int(np.prod(t.shape)) for t in preprocessor.tensors)
    row_bytes += sum(4 * int(np.prod(targets.shape(name))) for name in targets.names)
    wanted = packing.buffer_size or default_buffer_size(len(order), row_bytes, len(distribution.numbers))
    plan = plan_buffers(len(order), wanted, distribution.numbers)
    _summarize(session, packing, output, text, plan, preprocessor, rows, order)
    names = [*(tensor.name for tensor in preprocessor.tensors), *targets.names]
    with packing.engine.store(session, output, names, distribution.segments) as store:
        store.create()
        for buffer_id, chosen in _buffers(plan, order):
            raw = {name: column.take(chosen) for name, column in rows.columns.items()}
            tensors = [*encoder.encode(raw).arrays.values(), *targets.encode(raw).values()]
            values = [tensor.tobytes() for tensor in tensors]
            store.insert(plan.segment_of(buffer_id), buffer_id, values, [tensor.shape for tensor in tensors])
        store.finish()
    what = (
        f"{plan.n_rows} rows of {packing.source.text} packed into {plan.n_buffers} buffers of up to"
        f" {plan.rows_per_buffer} rows on {len(plan.segments)} segments, seed {packing.seed}"
    )
    comment_on(session, output, f"madlib_mop: {what}")
    session.notice(f"{call.function}: {text}: {what}")
    if plan.n_rows < len(plan.segments):
        empty = ", ".join(map(str, plan.segments[plan.n_rows :]))
        session.warning(f"{call.function}: {text}: there are too few rows for all segments; these get none: {empty}")


def _buffers(plan: BufferPlan, order: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the number of each buffer and the rows that it has."""
    start = 0
    for buffer_id in range(plan.n_buffers):
        end = start + plan.rows_of(buffer_id)
        yield buffer_id, order[start:end]
        start = end


def _summarize(
    session: CallerSession,
    packing: Packing,
    output: Relation,
    text: str,
    plan: BufferPlan,
    preprocessor: Preprocessor,
    rows: Rows,
    order: npt.NDArray[np.int64],
) -> None:
    """Make the ``_summary`` of a packed table, with the preprocessor."""
    holder = output.with_suffix("_summary")
    classes = [_classes(column, holder, rows, order) for column in preprocessor.targets]
    widths = [known.width if known is not None else None for known in classes]
    summary = Summary(
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
    ]
    create_summary(session, holder, summary, kept, more)


def _classes(column: FittedColumn, holder: Relation, rows: Rows, order: npt.NDArray[np.int64]) -> Classes | None:
    fit = column.fit
    if not isinstance(fit, ClassFit):
        return None
    found = ColumnStatistics.of(rows.columns[column.name].take(order)).level_counts or {}
    return Classes(
        _array_literal(fit.classes),
        len(fit.classes),
        len(fit.classes),
        False,
        _class_type(column),
        holder,
        f"{column.name}_class_values",
        as_index=fit.encode == "index",
        counts=tuple(found.get(name, 0) for name in fit.classes),
    )


def _class_type(column: FittedColumn) -> str:
    """Return the type of a target's values in summaries and predictions."""
    if not isinstance(column.fit, ClassFit):
        return "double precision"
    return column.spec.sql_type if column.spec.sql_type in _OWN_TYPES else "text"


def _array_literal(texts: Sequence[str]) -> str:
    """Return an array of texts as PostgreSQL writes it."""
    quoted = ('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts)
    return "{" + ",".join(quoted) + "}"


def _family(field: Field | None) -> str | None:
    return family_of(field.reader) if field is not None else None


def _tell(call: Call, preprocessor: Preprocessor, seed: int) -> None:
    """Report the classes and the inputs."""
    for column in preprocessor.targets:
        if isinstance(column.fit, ClassFit):
            shown = ", ".join(map(repr, column.fit.classes[:10]))
            more = f" and {len(column.fit.classes) - 10} more" if len(column.fit.classes) > 10 else ""
            call.session.notice(f"{call.function}: {column.name} has {len(column.fit.classes)} classes: {shown}{more}")
        else:
            call.session.notice(f"{call.function}: {column.name} is a number: standardised for the network")
    inputs = ", ".join(f"{tensor.name} {list(tensor.shape)} {tensor.dtype}" for tensor in preprocessor.tensors)
    call.session.notice(f"{call.function}: inputs: {inputs}; preprocessor {preprocessor.digest[:12]}")
