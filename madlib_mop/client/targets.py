"""What a trained model predicts and needs, read from its summary; called by `models`."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.client.calling.sessions import ClientSessions, execute, rows_of
from madlib_mop.client.frames.classes import class_of, classes_of
from madlib_mop.client.tables import find_table, names_of


@dataclass(frozen=True, slots=True)
class Target:
    """One output of a model.

    Attributes
    ----------
    name : str
        The column that it predicts.
    sql_type : str
    classes : tuple or None
        In the order of the outputs, as Python's values of the column's type; None: it predicts a number.
    texts : tuple of str or None
        The classes as PostgreSQL writes them.
    n_padding : int
        How many further outputs of the network are of no class (``num_classes``).
    """

    name: str
    sql_type: str
    classes: tuple[Any, ...] | None
    texts: tuple[str | None, ...] | None
    n_padding: int = 0

    def value_of(self, text: str | None) -> Any:
        """Return a class that the server wrote as a text."""
        return class_of(text, self.sql_type)


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a model's summary says of it.

    Attributes
    ----------
    targets : tuple of Target
        Its outputs.
    inputs : tuple of str
        The packed inputs.
    types : dict of str to str, or None
        The SQL types of the input columns of an ordinary table, by name. None: the model takes arrays.
    """

    targets: tuple[Target, ...]
    inputs: tuple[str, ...]
    types: dict[str, str] | None


def read_facts(sessions: ClientSessions, models: Relation) -> TargetFacts:
    """Return what the summary of a table of models says.

    Raises
    ------
    UndefinedTable
        If there is no summary.
    """
    summary = models.with_suffix("_summary")
    with sessions.begin() as connection:
        find_table(connection, summary.sql, "table")
        result = execute(connection, statement("SELECT * FROM {t}", t=summary))
        row = dict(zip(result.keys(), result.one(), strict=True))
        names, types = names_of(row["dependent_varname"]), names_of(row["dependent_vartype"])
        columns = [statement("{c}::pg_catalog.text[]", c=Identifier(f"{name}_class_values")) for name in names]
        query = f"SELECT {', '.join(columns)} FROM {summary.sql}"
        (classes,) = rows_of(connection, query)
    document = row.get("preprocessor")
    return TargetFacts(
        tuple(map(_target, names, types, classes)),
        names_of(row["independent_varname"]),
        None if document is None else _types_of(document),
    )


def facts_of(document: str) -> TargetFacts:
    """Return what the registry's document of a version says.

    Where it does not have the names of columns of arrays, the only input of a model is called ``x``.
    """
    found = json.loads(document)
    outputs, preprocessor = found["outputs"], found["preprocessor"]
    targets = tuple(_target(output["name"], output["vartype"], output["values"]) for output in outputs)
    n_inputs = int(found["n_inputs"])
    numbered = ("x",) if n_inputs == 1 else tuple(f"x{number}" for number in range(1, n_inputs + 1))
    inputs = tuple(found.get("inputs") or numbered)
    return TargetFacts(targets, inputs, None if preprocessor is None else _types_of(preprocessor))


def _target(name: str, sql_type: str, texts: Sequence[str | None] | None) -> Target:
    if texts is None or list(texts) == [None]:
        return Target(name, sql_type, None, None)
    known = classes_of(texts)
    classes = tuple(class_of(text, sql_type) for text in known)
    return Target(name, sql_type, classes, tuple(known), len(texts) - len(known))


def _types_of(document: str) -> dict[str, str]:
    """Return the types of the input columns of a preprocessor's document."""
    specs = [column["spec"] for column in json.loads(document)["columns"]]
    return {spec["name"]: spec["sql_type"] for spec in specs if spec["role"] == "input"}


def value_of_json(target: Target, row: Any) -> Any:
    """Return the class with the highest probability, or the number, of one output of several; None for no row.

    JSON has null for NaN, which is less than any number, as in ``predict_class``.
    """
    if row is None:
        return None
    found = (json.loads(row) if isinstance(row, str) else row)[target.name]
    if target.classes is None or target.texts is None:
        return found
    scores = [found["NULL" if text is None else text] for text in target.texts]
    values = [-math.inf if score is None else score for score in scores]
    return target.classes[values.index(max(values))]
