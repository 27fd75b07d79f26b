"""The command pack_columns: one pass over an ordinary table, its preprocessor, and the packed tables.

Rows are read once (`rows`); their content decides which are held out (`splitting`); the training rows are
counted and a preprocessor is fitted to them; then every row is encoded, in the order of its hash.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from madlib_mop.catalog.names import Identifier, statement, with_end
from madlib_mop.columns.drift.profiler import profiled
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.fitting import fit_preprocessor
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.proposals.kinds import IGNORED, INPUT, NUMBER, PADDED, REGRESSION, TARGET, ColumnSpec
from madlib_mop.columns.proposals.proposal import check_targets, check_task, propose, targets_of_classes
from madlib_mop.columns.proposals.review import ColumnToCheck, columns_to_check
from madlib_mop.columns.proposals.specification import check_specification, check_table, read_specification
from madlib_mop.columns.raw import Levels, RawColumn, rows_at_once
from madlib_mop.columns.records import Field
from madlib_mop.columns.splits import BY_COLUMN, BY_GROUP, SplitRule
from madlib_mop.columns.statistics import ColumnStatistics
from madlib_mop.driver.columns.proposing import COLUMNS, count, listed, notice_checks, table_columns
from madlib_mop.driver.columns.rows import SourceRows, read_rows
from madlib_mop.driver.columns.source import SourceTable, read_source
from madlib_mop.driver.columns.splitting import choose_held_out, class_codes, share_of_test, split_rule
from madlib_mop.driver.columns.writing import check_kept, prepare, write_columns
from madlib_mop.driver.data.decoders import FileDecoder
from madlib_mop.driver.packing.columns import MAX_PACKED_COLUMNS, check_packed_names, split_columns
from madlib_mop.driver.packing.dropping import TEST, VALIDATION
from madlib_mop.driver.packing.tables import draw_seed
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter

#: What a network gets for a number that it predicts, by the scale of the target.
_SCALED = {
    "standard": "standardised for the network",
    "min_max": "scaled to 0 to 1 for the network",
    "log1p": "its logarithm is standardised for the network",
    "none": "the network gets it as it is",
}


def pack_columns(call: Call) -> None:
    """Pack a table of ordinary columns for training, and parts of it for validation and for a test."""
    session, arguments = call.session, call.arguments
    source = read_source(session, arguments["source_table"])
    dependent = split_columns(arguments["dependent"], "dependent")
    exclude = arguments["exclude"] or []
    if exclude and arguments["columns"] is not None:
        raise InvalidParameter(
            f"exclude cannot be combined with columns. Received: {', '.join(map(repr, exclude))}",
            hint=f"Set role to ignored for these columns in {arguments['columns']}.",
        )
    given = _given_specification(session, arguments["columns"], source, dependent, arguments["task"])
    rule = split_rule(arguments["validation"], source)
    test = share_of_test(arguments["test"], rule)
    if given is not None:
        _notice_missing(call, source, given, rule)
    if given is None:
        check_targets(table_columns(source), dependent, exclude)
        check_task(table_columns(source), dependent, arguments["task"])
    elif rule is not None and rule.by == BY_COLUMN:
        given = [_unused(spec) if spec.name == rule.column else spec for spec in given]
        check_specification(given, several_targets=len(dependent) > 1)
    seed = draw_seed() if arguments["seed"] is None else arguments["seed"]
    companions = ((VALIDATION,) if rule is not None else ()) + ((TEST,) if test is not None else ())
    packing = prepare(call, source, seed, companions)
    fields = _fields(source, given, exclude, rule)
    rows = read_rows(session, source, fields, seed, split_by=rule.column if rule is not None else None)
    if companions:
        needed = [*dependent, *([rule.column] if rule is not None and rule.column is not None else [])]
        check_kept(rows, needed, "Shorten its texts in a view.")
    classes = _targets_of_classes(source, rows, given, dependent, arguments["task"])
    codes = class_codes(rows, dependent) if companions and classes >= set(dependent) else None
    held_out = dict(zip((VALIDATION, TEST), choose_held_out(rule, test, rows, codes, seed), strict=True))
    chosen = [flags for flags in held_out.values() if flags is not None]
    training = ~np.logical_or.reduce(chosen) if chosen else None
    with ThreadPoolExecutor(1) as thread, FileDecoder() as decode:
        order = thread.submit(rows.order, training)
        grouped_by = rule.column if rule is not None and rule.by == BY_GROUP else None
        fitted = _fit(source, rows, training, given, dependent, exclude, classes, order.result, grouped_by)
        encoder, targets = Encoder(fitted.preprocessor, decode), Targets(fitted.preprocessor)
        for replaced in packing.drops:  # the old tables come back if what follows fails
            replaced.execute()
        write_columns(
            call, packing, packing.output, packing.output_text, rows, order.result(), encoder, targets, thread,
            fitted.to_check,
        )  # fmt: skip
        for suffix, flags in held_out.items():
            if flags is not None:
                output, text = packing.output.with_suffix(suffix), with_end(packing.output_text, suffix)
                write_columns(call, packing, output, text, rows, rows.order(flags), encoder, targets, thread)
    _notice_result(call, fitted)


def _given_specification(
    session: CallerSession, name: str | None, source: SourceTable, dependent: Sequence[str], task: str | None
) -> list[ColumnSpec] | None:
    """Read and check the edited proposal, if one is given; ``task`` must not contradict it."""
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
    for spec in specs:
        if task is not None and spec.role == TARGET and (spec.kind == NUMBER) != (task == REGRESSION):
            raise InvalidParameter(
                f"task is {task!r}, but target {spec.name!r} has the kind {spec.kind!r} in {table}",
                hint="Leave task out, or set kind, encode and scale of the target there.",
            )
    check_table(specs, table_columns(source))
    by_name = {spec.name: spec for spec in specs}
    return [by_name[column.name] for column in source.columns if column.name in by_name]


def _notice_missing(
    call: Call, source: SourceTable, given: Sequence[ColumnSpec], rule: SplitRule | None
) -> None:
    """Report the columns of the source table that the edited proposal does not have."""
    known = {spec.name for spec in given} | ({rule.column} if rule is not None else set())
    missing = [column.name for column in source.columns if column.name not in known]
    if missing:
        table = call.arguments["columns"]
        call.session.notice(f"{call.function}: ignored, because {table} has no row for them: {listed(missing)}")


def _fields(
    source: SourceTable, given: Sequence[ColumnSpec] | None, exclude: Sequence[str], rule: SplitRule | None
) -> list[Field]:
    """Return the columns that are read: inputs, targets, and what the rows are split by."""
    unused = set(exclude) if given is None else {c.name for c in source.columns} - {
        spec.name for spec in given if spec.role != IGNORED
    }  # fmt: skip
    wanted = rule.column if rule is not None else None
    widths = {spec.name: spec.width for spec in given or () if spec.role != IGNORED and spec.encode == PADDED}
    fields = [field for field in source.fields if field.name not in unused or field.name == wanted]
    return [replace(field, padded_to=widths[field.name]) if field.name in widths else field for field in fields]


def _targets_of_classes(
    source: SourceTable,
    rows: SourceRows,
    given: Sequence[ColumnSpec] | None,
    dependent: Sequence[str],
    task: str | None,
) -> frozenset[str]:
    """Return the targets that are classes: as the edited proposal has them, else as all rows are."""
    if given is not None:
        return frozenset(spec.name for spec in given if spec.role == TARGET and spec.kind != NUMBER)
    targets = {name: column for name, column in rows.columns.items() if name in dependent}
    return targets_of_classes(count(source, replace(rows, columns=targets)), dependent, task)


@dataclass(frozen=True)
class _Fitted:
    """What the training rows have decided.

    Attributes
    ----------
    preprocessor : Preprocessor
    ignored : list of ColumnSpec
        The columns that the proposal ignores, without those that the caller excludes.
    to_check : list of ColumnToCheck
        The inputs that a person should check.
    """

    preprocessor: Preprocessor
    ignored: list[ColumnSpec]
    to_check: list[ColumnToCheck]


def _fit(
    source: SourceTable,
    rows: SourceRows,
    training: npt.NDArray[np.bool_] | None,
    given: Sequence[ColumnSpec] | None,
    dependent: Sequence[str],
    exclude: Sequence[str],
    classes: frozenset[str],
    order: Callable[[], npt.NDArray[np.int64]],
    grouped_by: str | None,
) -> _Fitted:
    """Fit the preprocessor of the given specification, or of the one that is proposed, to the training rows.

    ``order`` returns their numbers, in the order of their hashes.
    """
    ignored: list[ColumnSpec] = []
    if given is None:
        counted = count(source, rows, training)
        statistics = {c.name: c.statistics for c in counted if isinstance(c.statistics, ColumnStatistics)}
        specs = propose(counted, dependent, exclude, "rows" if training is None else "training rows", classes)
        ignored = [spec for spec in specs if spec.role == IGNORED and spec.name not in exclude]
        _require_inputs(specs, ignored)
        check_specification(specs, several_targets=len(dependent) > 1)
    else:
        statistics = rows.statistics(training)
        specs = list(given)
    specs = _in_order(specs, dependent)
    used = [spec.name for spec in specs if spec.role != IGNORED]
    check_kept(rows, used, "Set its role to ignored in the table of propose_columns, or shorten it in a view.")
    readers = {field.name: field.reader for field in source.fields}

    def texts(name: str) -> Levels:
        column = rows.columns[name]
        assert isinstance(column, Levels), "its family is that of texts"
        return column if training is None else column.take(training)

    fitted = fit_preprocessor(specs, statistics, readers, texts)
    preprocessor = _profiled(fitted, statistics, rows, training)
    n_packed = len(preprocessor.tensors) + len(preprocessor.targets)
    if n_packed > MAX_PACKED_COLUMNS:
        raise InvalidParameter(
            f"the table would have {n_packed} inputs and targets; at most {MAX_PACKED_COLUMNS} can be packed",
            hint="Set encode to one_hot or frequency for some categories: they share one input.",
        )
    targets = [column.name for column in preprocessor.targets]
    check_packed_names([*(tensor.name for tensor in preprocessor.tensors), *targets], targets)
    to_check = columns_to_check(specs, statistics, rows.columns, order(), grouped_by)
    return _Fitted(preprocessor, ignored, to_check)


def _in_order(specs: Sequence[ColumnSpec], dependent: Sequence[str]) -> list[ColumnSpec]:
    """Return the specification with the targets in the order in which the caller named them."""
    targets = iter(sorted((spec for spec in specs if spec.role == TARGET), key=lambda spec: dependent.index(spec.name)))
    return [next(targets) if spec.role == TARGET else spec for spec in specs]


def _profiled(
    preprocessor: Preprocessor,
    statistics: Mapping[str, ColumnStatistics],
    rows: SourceRows,
    training: npt.NDArray[np.bool_] | None,
) -> Preprocessor:
    """Return the preprocessor with the distribution of each column over the training rows."""
    of_training = np.arange(rows.n_rows) if training is None else np.flatnonzero(training)

    def parts(column: FittedColumn) -> Iterator[RawColumn]:
        raw = rows.columns[column.name]
        n_rows = rows_at_once(raw)
        for start in range(0, len(of_training), n_rows):
            yield raw.take(of_training[start : start + n_rows])

    return profiled(preprocessor, statistics, parts)


def _unused(spec: ColumnSpec) -> ColumnSpec:
    """Return the specification of a column by which the rows are split: it has one value in all training rows."""
    if spec.role != INPUT:
        return spec
    return replace(spec, role=IGNORED, reason="The rows are split by it.")


def _notice_result(call: Call, fitted: _Fitted) -> None:
    """Report the classes, the inputs, which columns are ignored and why, and which should be checked."""
    preprocessor = fitted.preprocessor
    for column in preprocessor.targets:
        if isinstance(column.fit, ClassFit):
            shown = ", ".join(map(repr, column.fit.classes[:10]))
            more = f" and {len(column.fit.classes) - 10} more" if len(column.fit.classes) > 10 else ""
            call.session.notice(f"{call.function}: {column.name} has {len(column.fit.classes)} classes: {shown}{more}")
        else:
            call.session.notice(f"{call.function}: {column.name} is a number: {_SCALED[column.spec.scale]}")
    inputs = ", ".join(f"{tensor.name} {list(tensor.shape)} {tensor.dtype}" for tensor in preprocessor.tensors)
    call.session.notice(f"{call.function}: inputs: {inputs}; preprocessor {preprocessor.digest[:12]}")
    if fitted.ignored:
        shown = listed([f"{spec.name} ({_short_reason(spec)})" for spec in fitted.ignored])
        call.session.notice(f"{call.function}: ignored: {shown}; madlib_mop.propose_columns shows the reasons")
    notice_checks(call, fitted.to_check)


def _require_inputs(specs: Sequence[ColumnSpec], ignored: Sequence[ColumnSpec]) -> None:
    """Raise InvalidParameter, with the reasons of the proposal, if it ignores all columns that may be inputs."""
    if any(spec.role == INPUT for spec in specs):
        return
    if not ignored:
        raise InvalidParameter(
            "no column has the role input: all but the dependent ones are in exclude", hint="Exclude fewer columns."
        )
    shown = listed([f"{spec.name} ({_short_reason(spec)})" for spec in ignored])
    raise InvalidParameter(
        f"no column has the role input. Ignored: {shown}",
        hint="madlib_mop.propose_columns writes the reasons: set role to input in its table, and pass that as columns.",
    )


def _short_reason(spec: ColumnSpec) -> str:
    """Return the first words of the reason, such as key or constant."""
    words = re.split(r"[:.](?:\s|$)", spec.reason, maxsplit=1)[0]
    return words[:1].lower() + words[1:]
