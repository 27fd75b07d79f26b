"""The commands propose_networks and propose_search: networks and configurations for a packed table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.certainty.balance import imbalance
from madlib_mop.columns.preprocessors.fits import ClassFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.describing import read_preprocessor
from madlib_mop.driver.data.library_tables import (
    ARCHITECTURE_COLUMNS,
    add_architecture,
    create_architectures,
    create_selection,
    fill_selection,
    write_selection_summary,
)
from madlib_mop.driver.data.packed import read_packed_table
from madlib_mop.driver.inference.described import describe_model
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.networks.architectures import LINEAR, RECIPES, architecture
from madlib_mop.driver.networks.training import TrainingSize, configurations, search_grids
from madlib_mop.driver.outputs.tables import ARCHITECTURE_TABLES, SELECTION_TABLES, if_there
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, UndefinedColumn
from madlib_mop.models.architecture import check_architecture

_MOST_ROWS = 10**12
_KEY_TYPES = ("integer", "smallint", "bigint")
_TEXT_TYPES = ("text", "character varying")


@dataclass(frozen=True)
class _PackedData:
    """What networks are proposed for.

    Attributes
    ----------
    preprocessor : Preprocessor
    shard_rows : tuple of int
        The rows of each segment.
    class_counts : dict of str to tuple of int
        The rows of each class, by target.
    """

    preprocessor: Preprocessor
    shard_rows: tuple[int, ...]
    class_counts: dict[str, tuple[int, ...]]


def propose_networks(call: Call) -> None:
    """Write a table of architectures for a packed table, and a model selection table that trains them.

    Raises
    ------
    UndefinedTable, InvalidParameter, UnreadableText
        If pack_columns has not made the packed table.
    DuplicateTable, InsufficientPrivilege, ReadOnly
        If a table to create exists and may not be replaced, or cannot be created.
    """
    session, given = call.session, call.arguments
    arch_table, configs_table = given["arch_table"], given["configs_table"]
    packed = _read(session, given["packed_table"])
    preprocessor, counts = packed.preprocessor, packed.class_counts
    plan = TrainingSize(packed.shard_rows, given["num_iterations"])
    replaced: list[Relation] = []
    there = {
        what: if_there(session, given["replace"], tables, what, replaced)
        for what, tables in (("configs_table", SELECTION_TABLES), ("arch_table", ARCHITECTURE_TABLES))
    }
    target = session.output(configs_table, what="configs_table", if_there=there["configs_table"])
    architectures = session.output(arch_table, ("",), "arch_table", there["arch_table"])
    if architectures.sql in (target.sql, target.with_suffix("_summary").sql):
        raise InvalidParameter(
            "arch_table and configs_table must be two tables, and the second has a _summary."
            f" Received: {arch_table!r} and {configs_table!r}",
            hint="Choose two names.",
        )
    found = configurations(preprocessor, plan, given["n_configs"], given["seed"])
    recipes = [RECIPES[place] for place in sorted({configuration.recipe for configuration in found})]
    with LocalTrainer(session) as trainer:
        models = [
            describe_model(trainer, check_architecture(architecture(preprocessor, plan.n_rows, recipe, counts)))
            for recipe in recipes
        ]
    for table in replaced:
        session.drop_checked(table)
    table = create_architectures(session, arch_table, "arch_table")
    ids = {
        recipe: add_architecture(session, table, model.text, None, recipe.name, recipe.description)
        for recipe, model in zip(recipes, models, strict=True)
    }
    create_selection(session, target)
    fill_selection(session, target, [(ids[RECIPES[c.recipe]], c.compile_params, c.fit_params) for c in found])
    write_selection_summary(session, target, arch_table, None, session.qualified(table))
    session.notice(
        f"{call.function}: {len(models)} architecture{'s' * (len(models) > 1)} in {table.written},"
        f" {len(found)} configuration{'s' * (len(found) > 1)} in {target.written}"
    )
    for column in preprocessor.targets:
        classes = column.fit.classes if isinstance(column.fit, ClassFit) else ()
        if (text := imbalance(column.name, classes, counts[column.name])) is not None:
            session.notice(f"{call.function}: {text}. The networks begin with the shares of the classes.")


def propose_search(call: Call) -> list[dict[str, Any]]:
    """Return the arguments of madlib_keras_automl: ids of the architectures of a table, and the grids.

    The proposed linear model is left out if there are others: the rates of the grids are those of networks.

    Raises
    ------
    UndefinedTable, UndefinedColumn, InvalidParameter, UnreadableText
        If pack_columns has not made the packed table, or propose_networks the table of architectures.
    """
    session, given = call.session, call.arguments
    name = given["arch_table"]
    packed = _read(session, given["packed_table"])
    table = session.relation(name, "arch_table")
    types = {column.name: column.type_sql for column in session.columns(table)}
    if missing := [column for column in ARCHITECTURE_COLUMNS if column not in types]:
        raise UndefinedColumn(
            f"arch_table: {table} is not a table of architectures: it has no column {missing[0]!r}. Received: {name!r}",
            hint="madlib_mop.propose_networks makes one.",
        )
    if types["model_id"] not in _KEY_TYPES:  # defence: ids-of-architectures
        raise InvalidParameter(
            f"arch_table: column model_id of {table} must be of type integer. Received: {types['model_id']}",
            hint="madlib_mop.propose_networks makes such a table.",
        )
    ids = _ids(session, table, types)
    if not ids:
        raise InvalidParameter(
            f"arch_table: {table} has no architectures. Received: {name!r}",
            hint="madlib_mop.propose_networks makes a table with some.",
        )
    compile_grid, fit_grid = search_grids(packed.preprocessor, TrainingSize(packed.shard_rows, 1))
    return [
        {
            "model_id_list": ids,
            "compile_params_grid": compile_grid,
            "fit_params_grid": fit_grid,
        }
    ]


def _ids(session: CallerSession, table: Relation, types: Mapping[str, str]) -> list[int]:
    """Return the ids of a table of architectures, without that of the proposed linear model if there are others."""
    query = "SELECT DISTINCT model_id, {linear} AS is_linear FROM {{table}} WHERE model_id IS NOT NULL ORDER BY 1"
    form = next(recipe for recipe in RECIPES if recipe.body == LINEAR)
    if all(types[column] in _TEXT_TYPES for column in ("name", "description")):
        is_linear = "coalesce(name::pg_catalog.text = $1 AND description::pg_catalog.text = $2, false)"
        params = [form.name, form.description]
    else:
        is_linear, params = "false", []
    rows = session.execute(statement(query.format(linear=is_linear), table=table), params, ["text"] * len(params))
    others = [row["model_id"] for row in rows if not row["is_linear"]]
    return others or [row["model_id"] for row in rows]


def _read(session: CallerSession, name: str | None) -> _PackedData:
    """Return what networks are proposed for.

    Shapes in the table have the counts of rows, and its owner can write any into it: they are kept within limits.
    """
    preprocessor = read_preprocessor(session, name, "packed_table")
    packed = read_packed_table(session, name, "packed_table")
    shard_rows = tuple(min(max(shard.n_rows, 1), _MOST_ROWS) for shard in packed.shards)
    counts = dict(zip(packed.dependent, packed.class_counts, strict=True))
    return _PackedData(
        preprocessor, shard_rows, {column.name: counts.get(column.name) or () for column in preprocessor.targets}
    )
