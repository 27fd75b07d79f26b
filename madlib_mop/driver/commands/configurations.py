"""The commands load_model_selection_table and generate_model_configs: rows of a user's model selection table.

Every configuration is parsed before the first statement that changes anything; architectures are read when they are
used.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from madlib_mop.catalog.names import Identifier, Relation, quote, split_name, statement
from madlib_mop.driver.data.custom_functions import custom_names
from madlib_mop.driver.data.library_tables import (
    create_selection,
    fill_selection,
    read_arch_table_name,
    stored_name,
    write_selection_summary,
)
from madlib_mop.driver.planning.selection import check_model_ids
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_column, not_one_row
from madlib_mop.errors import InvalidParameter, MopError, shown
from madlib_mop.models.configuration import Configuration, compile_params_of, fit_params_of
from madlib_mop.models.parameters.calls import is_int
from madlib_mop.models.parameters.parser import (
    CompileParams,
    FitParams,
    recorded_notice,
)
from madlib_mop.models.parameters.search_grid import (
    MAX_CONFIGURATIONS,
    expand_grid,
    iterate_random,
    search_type,
    stream,
)

_ARCH = "model_arch_table"
_MST = "model_selection_table"
_COLUMNS = ("mst_key", "model_id", "compile_params", "fit_params")
_MAX_DRAWS_FOR_ONE, _MAX_DRAWS = 100, 1_000_000

#: `Configuration.key`: equal for equivalent configurations.
Key = tuple[int, str, str]
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Existing:
    """A model selection table to append to; ``summary`` is None if it does not exist."""

    table: Relation
    summary: Relation | None
    object_table: str | None
    keys: frozenset[Key]


class ConfigurationParser:
    """Parses texts of parameters with the custom functions of the object table and the caller's rights."""

    def __init__(self, session: CallerSession, object_table: str | None):
        self.custom_names = frozenset(custom_names(session, object_table))
        self._session = session
        self._noticed: set[str] = set()

    def compile_params(self, text: str | None, where: str) -> CompileParams:
        """Parse compile parameters; errors contain ``where``."""
        return _placed(compile_params_of, where, text, self.custom_names)

    def fit_params(self, text: str | None, where: str) -> FitParams:
        """Parse fit parameters; errors contain ``where``."""
        parsed = _placed(fit_params_of, where, text)
        if (notice := recorded_notice([parsed])) and notice not in self._noticed:
            self._noticed.add(notice)
            self._session.notice(notice)
        return parsed

    def row(self, model_id: int, compile_text: str, fit_text: str | None) -> Configuration:
        """Return a configuration, without its architecture. Raises MopError if a text cannot be parsed."""
        self.compile_params(compile_text, "")
        self.fit_params(fit_text, "")
        return Configuration(model_id, compile_text, fit_text or "", {}, self.custom_names)


def load_model_selection_table(call: Call) -> None:
    """Create a model selection table of all combinations of model ids, compile and fit parameters.

    Raises
    ------
    MopError
        If a table or column is missing, an output table exists, a model_id is not in the architecture table, or
        an element of a list cannot be parsed; the message names it.
    """
    session, given = call.session, call.arguments
    arch_table = _architectures(session, given[_ARCH])
    target = session.output(given[_MST], what=_MST)
    model_ids = check_model_ids(session, arch_table, given.get("model_id_list"))
    parser = ConfigurationParser(session, given.get("object_table"))
    compile_list = _texts(given.get("compile_params_list"), "compile_params_list")
    fit_list = _texts(given.get("fit_params_list"), "fit_params_list")
    for position, text in enumerate(compile_list, 1):
        parser.compile_params(text, f"compile_params_list[{position}]")
    for position, text in enumerate(fit_list, 1):
        parser.fit_params(text, f"fit_params_list[{position}]")
    _check_number(len(model_ids) * len(compile_list) * len(fit_list), "the lists have")
    combinations = itertools.product(model_ids, compile_list, fit_list)
    rows = list(_distinct(parser.row(*combination) for combination in combinations))
    create_selection(session, target)
    _append(session, target, rows)
    object_table = stored_name(given.get("object_table"))
    write_selection_summary(session, target, given[_ARCH], object_table, session.qualified(arch_table))
    call.session.notice(f"{call.function}: {target.written} has {_count(len(rows))}")


def generate_model_configs(call: Call) -> None:
    """Fill a model selection table by grid search or random search; append to an existing one.

    Raises
    ------
    MopError
        As for `load_model_selection_table`; also if the table exists and belongs to another architecture table.
    """
    session, given = call.session, call.arguments
    kind = _search(given)
    arch_table = _architectures(session, given[_ARCH])
    existing = _existing(session, given, arch_table)
    target = existing.table if existing else session.output(given[_MST], what=_MST)
    model_ids = check_model_ids(session, arch_table, given.get("model_id_list"))
    object_table = given.get("object_table") or (existing.object_table if existing else None)
    parser = ConfigurationParser(session, object_table)
    known = existing.keys if existing else frozenset()
    rows = list(_generated(kind, given, model_ids, parser, known))
    if kind == "random" and len(rows) < given["num_configs"]:
        session.warning(
            f"{call.function}: only {len(rows)} of {given['num_configs']} configurations could be drawn;"
            " the table already has the others"
        )
    if existing is None:
        create_selection(session, target)
    else:
        session.lock_to_write(target, _MST)
    _append(session, target, rows)
    if existing is None or existing.summary is None:
        qualified = session.qualified(arch_table)
        write_selection_summary(session, target, given[_ARCH], stored_name(given.get("object_table")), qualified)
    elif existing.object_table is None and object_table is not None:
        session.lock_to_write(existing.summary, _MST)
        session.execute(
            statement("UPDATE {table} SET object_table = $1", table=existing.summary), [stored_name(object_table)]
        )
    session.notice(f"{call.function}: {_count(len(rows))} added to {target.written}")


def _search(given: Mapping[str, Any]) -> str:
    kind = search_type(given.get("search_type"))
    num_configs = given.get("num_configs")
    if kind == "grid":
        for name in ("num_configs", "random_state"):
            if given.get(name) is not None:
                raise InvalidParameter(
                    f"{name} must be NULL for search_type 'grid'. Received: {given[name]!r}",
                    hint="A grid has all combinations; search_type 'random' draws a sample.",
                )
    elif not is_int(num_configs) or num_configs < 1:
        raise InvalidParameter(
            f"num_configs must be a whole number of 1 or more for search_type 'random'. Received: {shown(num_configs)}"
        )
    else:
        _check_number(num_configs, "num_configs requests")
    return kind


def _check_number(n_configurations: int, what: str) -> None:
    """Raise InvalidParameter if a table would get too many configurations."""
    if n_configurations > MAX_CONFIGURATIONS:
        raise InvalidParameter(
            f"{what} {n_configurations:,} configurations; a table takes at most {MAX_CONFIGURATIONS:,} at once",
            hint="Reduce the number; generate_model_configs can append more to the table afterwards.",
        )


def _generated(
    kind: str, given: Mapping[str, Any], model_ids: Sequence[int], parser: ConfigurationParser, known: Iterable[Key]
) -> Iterator[Configuration]:
    grids = given.get("compile_params_grid"), given.get("fit_params_grid")
    if kind == "grid":
        combinations = expand_grid(*grids)
        _check_number(len(model_ids) * len(combinations), "the grids have")
        rows = (_parsed(parser, model_id, *texts) for model_id in model_ids for texts in combinations)
        yield from _distinct(rows, known)
        return
    random_state, n_wanted = given.get("random_state"), given["num_configs"]
    models = stream(random_state, "model_id")
    draws = iterate_random(*grids, random_state)
    rows = (_parsed(parser, model_ids[int(models.integers(len(model_ids)))], *texts) for texts in draws)
    tried = itertools.islice(rows, min(n_wanted * _MAX_DRAWS_FOR_ONE, n_wanted + _MAX_DRAWS))
    yield from itertools.islice(_distinct(tried, known), n_wanted)


def _parsed(parser: ConfigurationParser, model_id: int, compile_text: str, fit_text: str) -> Configuration:
    compile_where, fit_where = (
        f"compile_params_grid results in {compile_text}",
        f"fit_params_grid results in {fit_text}",
    )
    parser.compile_params(compile_text, compile_where)
    parser.fit_params(fit_text, fit_where)
    return parser.row(model_id, compile_text, fit_text)


def _distinct(rows: Iterable[Configuration], known: Iterable[Key] = ()) -> Iterator[Configuration]:
    seen = set(known)
    for row in rows:
        if row.key not in seen:
            seen.add(row.key)
            yield row


def _architectures(session: CallerSession, name: str) -> Relation:
    table = session.relation(name, _ARCH)
    _need(session, table, ("model_id", "model_arch"), _ARCH, name)
    return table


def _texts(values: list[Any] | None, what: str) -> list[Any]:
    if not values:
        raise InvalidParameter(f"{what} must be an array of one or more texts. Received: {shown(values)}")
    return values


def _existing(session: CallerSession, given: Mapping[str, Any], arch_table: Relation) -> Existing | None:
    """Read a table to append to, and check that it uses the same architecture table."""
    name = given[_MST]
    table = session.existing(name, _MST)
    if table is None:
        return None
    _need(session, table, _COLUMNS, _MST, name)
    summary = session.existing(table.with_suffix("_summary").sql, _MST)
    object_table = _check_summary(session, summary, arch_table, given) if summary else None
    parser = ConfigurationParser(session, object_table)
    stored = session.execute(statement("SELECT {c} FROM {t}", c=[Identifier(c) for c in _COLUMNS[1:]], t=table))
    keys = set()
    for row in stored:
        try:
            keys.add(parser.row(row["model_id"], row["compile_params"], row["fit_params"]).key)
        except MopError:
            continue  # a row that a user inserted and that cannot be parsed is not a duplicate of a valid one
    return Existing(table, summary, object_table, frozenset(keys))


def _check_summary(
    session: CallerSession, summary: Relation, arch_table: Relation, given: Mapping[str, Any]
) -> str | None:
    name = given[_MST]
    _need(session, summary, ("model_arch_table", "object_table"), _MST, name)
    rows = session.execute(statement("SELECT object_table FROM {t}", t=summary))
    if len(rows) != 1:
        raise not_one_row(_MST, summary, len(rows), name)
    written, before = read_arch_table_name(session, summary)
    relation = session.existing(before, _ARCH) if before else None
    if relation is None or relation.oid != arch_table.oid:
        raise InvalidParameter(
            f"{_ARCH}: {name} was created from architecture table {before if written == given[_ARCH] else written}."
            f" Received: {given[_ARCH]!r}",
            hint="Append with the same architecture table, or choose another model selection table.",
        )
    stored, asked = rows[0]["object_table"], given.get("object_table")
    stored = split_name(stored, "object_table")[1] if stored else None
    if stored and asked and split_name(asked, "object_table")[1] != stored:
        raise InvalidParameter(f"object_table: {name} uses object table {stored}. Received: {asked!r}")
    return quote(stored) if stored else None


def _placed(parse: Callable[..., _Parsed], where: str, *arguments: object) -> _Parsed:
    """Parse, and add the location to an error's message."""
    try:
        return parse(*arguments)
    except MopError as error:
        if where:
            error.message = f"{where}: {error.message}"
        raise


def _need(session: CallerSession, table: Relation, columns: Sequence[str], what: str, name: str | None) -> None:
    present = {column.name for column in session.columns(table)}
    for column in columns:
        if column not in present:
            raise no_column(what, f"table {table}", column, name)


def _append(session: CallerSession, target: Relation, rows: list[Configuration]) -> None:
    fill_selection(session, target, [(row.model_id, row.compile_params, row.fit_params) for row in rows])


def _count(n: int) -> str:
    return f"{n} configuration" + ("" if n == 1 else "s")
