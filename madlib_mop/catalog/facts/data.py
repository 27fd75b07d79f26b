"""What a run was trained on: inputs, classes, columns; its shards are read by `now`.

Only the record is read, no table of users: a view could run its owner's code.
"""

import json
from dataclasses import dataclass
from typing import Any

from madlib_mop.catalog.facts.now import SegmentFacts
from madlib_mop.catalog.facts.shared import FactsReader
from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.errors import MopError


@dataclass(frozen=True, slots=True)
class ClassCount:
    """One class of an output; ``n_rows`` is None if the packed table does not say how many rows it has."""

    name: str
    n_rows: int | None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output column: its classes, in the order of the units.

    Attributes
    ----------
    name : str
    classes : tuple of ClassCount
        Empty for a number.
    n_classes : int or None
        How many classes there are; ``classes`` may have only the first ones.
    why_no_counts : str or None
        Why their rows are unknown: a sentence.
    """

    name: str
    classes: tuple[ClassCount, ...]
    n_classes: int | None
    why_no_counts: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column of the ordinary table that the packed tables were made from: how it is encoded."""

    name: str
    sql_type: str
    role: str
    kind: str
    encoding: str


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the run was trained on.

    Attributes
    ----------
    inputs : tuple of str
    outputs : tuple of OutputFacts
    segments : tuple of SegmentFacts
    columns : tuple of ColumnFacts
        Empty if pack_columns did not make the packed tables, or the viewer may not see their preprocessor.
    preprocessor_digest : str or None
    """

    inputs: tuple[str, ...]
    outputs: tuple[OutputFacts, ...]
    segments: tuple[SegmentFacts, ...]
    columns: tuple[ColumnFacts, ...] = ()
    preprocessor_digest: str | None = None

    def n_rows(self, data_set: str) -> int | None:
        """Return the rows of a data set; None if they are not known."""
        counts = [s.n_rows for s in self.segments if s.data_set == data_set]
        return sum(n for n in counts if n is not None) if counts and None not in counts else None


#: Classes of an output that are listed.
MAX_CLASSES = 100
_SUMMARY = """
SELECT (r.plan -> 'summary' -> 'independent_varname')::pg_catalog.text AS inputs,
       (r.plan -> 'summary' -> 'dependent_varname')::pg_catalog.text AS outputs,
       (r.plan -> 'summary' -> 'num_classes')::pg_catalog.text AS num_classes,
       (r.plan -> 'summary' -> 'class_counts')::pg_catalog.text AS class_counts,
       r.plan -> 'summary' ->> 'preprocessor_digest' AS digest
FROM madlib_mop.run r WHERE r.run_id = $1::pg_catalog.int8
"""
_CLASSES = """
SELECT o.number, cardinality(v.names) AS n, v.names[1:$2::pg_catalog.int4] AS names
FROM madlib_mop.run r
CROSS JOIN LATERAL jsonb_array_elements(r.plan -> 'summary' -> 'class_values') WITH ORDINALITY AS o (pair, number)
CROSS JOIN LATERAL (SELECT (o.pair ->> 1)::pg_catalog.text[] AS names) v
WHERE r.run_id = $1::pg_catalog.int8
"""
_MAY_READ = "SELECT has_table_privilege('madlib_mop.preprocessor', 'SELECT') AS may"
_PREPROCESSOR = "SELECT p.document FROM madlib_mop.preprocessor p WHERE p.run_id = $1::pg_catalog.int8"
_NOT_RECORDED = "The record does not have the number of rows of each class."


def read_data(reader: FactsReader, run_id: int, segments: tuple[SegmentFacts, ...]) -> DataFacts:
    """Return the data of a run: its tables, shards, classes, and the columns of the preprocessor."""
    (summary,) = reader.rows(_SUMMARY, run_id)
    return DataFacts(
        inputs=tuple(_json(summary["inputs"])),
        outputs=_outputs(summary, {int(row["number"]): row for row in reader.rows(_CLASSES, run_id, MAX_CLASSES)}),
        segments=segments,
        columns=_columns(reader, run_id) if summary["digest"] is not None else (),
        preprocessor_digest=summary["digest"],
    )


def _outputs(summary: dict[str, Any], classes: dict[int, dict[str, Any]]) -> tuple[OutputFacts, ...]:
    sizes, counts = _json(summary["num_classes"]), _json(summary["class_counts"])
    found = []
    for number, name in enumerate(_json(summary["outputs"])):
        n_classes = sizes[number] if number < len(sizes) else None
        row = classes.get(number + 1) or {}
        names = row.get("names") or []
        rows = counts[number] if number < len(counts) and counts[number] else None
        listed = tuple(
            ClassCount("NULL" if value is None else value, rows[i] if rows and i < len(rows) else None)
            for i, value in enumerate(names)
        )
        why = _NOT_RECORDED if listed and rows is None else None
        found.append(OutputFacts(name, listed, row.get("n") or n_classes, why))
    return tuple(found)


def _columns(reader: FactsReader, run_id: int) -> tuple[ColumnFacts, ...]:
    """Return the columns of the preprocessor; () if the viewer may not see it, or it cannot be read any more."""
    if not reader.rows(_MAY_READ)[0]["may"]:
        return ()
    for row in reader.rows(_PREPROCESSOR, run_id):
        try:
            described = describe(Preprocessor.from_json(row["document"]))
        except MopError:
            return ()
        return tuple(ColumnFacts(c.name, c.sql_type, c.role, c.kind, c.encoding) for c in described)
    return ()


def _json(text: str | None) -> list[Any]:
    value = json.loads(text) if text is not None else None
    return value if isinstance(value, list) else [] if value is None else [value]
