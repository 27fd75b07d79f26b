"""Reads what a run was trained on. Only the record is read, no table of users: a view could run its owner's code."""

import json
from typing import Any

from madlib_mop.catalog.facts import ClassCount, ColumnFacts, DataFacts, OutputFacts, SegmentFacts
from madlib_mop.catalog.facts.reading.shared import FactsReader
from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.errors import MopError

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
