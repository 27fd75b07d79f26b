"""What was found about a version of a registered model when it was registered: how its predictions of held-out rows
were, and which columns matter. The driver writes it as JSON (`madlib_mop.version_detail.findings`). It is read as far
as the viewer may see it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

from mop_backend.bounded_json import read_json

from madlib_mop.catalog.facts.shared import FactsReader, Fetch
from madlib_mop.columns.preprocessors.canonical import build
from madlib_mop.errors import UnreadableText

#: Classes of a confusion matrix; those with fewer rows are together.
MAX_CLASSES = 20
#: Classes with curves; points of a curve; intervals of a reliability diagram.
MAX_CURVES, MAX_POINTS, N_BINS = 6, 100, 10
#: Columns whose importance is kept, columns with a partial dependence, and values of each.
MAX_COLUMNS, MAX_DEPENDENCES, MAX_VALUES = 30, 4, 12
_MOST = 1 << 53
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Confusion:
    """How many rows have each pair of classes.

    Attributes
    ----------
    classes : tuple of (str or None)
        None is the class NULL.
    n_others : int
        How many further classes there are; their rows have the last row and column of ``counts``, if there are some.
    counts : tuple of tuple of int
        By the true class, then by the predicted one.
    """

    classes: tuple[str | None, ...]
    n_others: int
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """How a class is found at a threshold of its probability.

    Attributes
    ----------
    threshold : float
    n_predicted : int
        Rows whose probability is at least so high.
    false_positive_rate, recall, precision : float
        From 0 to 1.
    """

    threshold: float
    n_predicted: int
    false_positive_rate: float
    recall: float
    precision: float


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """How a class is found, by threshold.

    Attributes
    ----------
    of_class : str or None
        None is the class NULL.
    n_rows : int
        Rows that have the class.
    area : float or None
        Under the ROC curve; None if all rows have the class, or none.
    average_precision : float
    points : tuple of CurvePoint
        By decreasing threshold.
    """

    of_class: str | None
    n_rows: int
    area: float | None
    average_precision: float
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Rows whose highest probability lies in an interval: their mean probability, and the share that are right."""

    lower: float
    upper: float
    n_rows: int
    probability: float
    share: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """How true the probabilities of the predicted classes are.

    Attributes
    ----------
    calibration : str or None
        ``temperature`` or ``isotonic``, fitted to the same rows; None: as the network returns them.
    error : float
        The expected calibration error.
    bins : tuple of ReliabilityBin
    """

    calibration: str | None
    error: float
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True, slots=True)
class OutputFindings:
    """How the predictions of held-out rows were, for one output of classes.

    Attributes
    ----------
    output : str
        The target.
    n_rows : int
    confusion : Confusion
    curves : tuple of ClassCurve
        Of two classes that of the second; of more, of those with the most rows.
    reliability : tuple of Reliability
        None of outputs that are no probabilities.
    """

    output: str
    n_rows: int
    confusion: Confusion
    curves: tuple[ClassCurve, ...]
    reliability: tuple[Reliability, ...]


@dataclass(frozen=True, slots=True)
class ColumnImportance:
    """How much the loss grows if the values of a column are exchanged between rows, with a 95 % interval."""

    feature: str
    importance: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class OutputImportance:
    """The importance of columns for one output.

    Attributes
    ----------
    output, metric : str
        The target and its loss.
    loss : float
        Of the rows as they are.
    n_rows, n_columns : int
        Of all columns; ``columns`` has the most important ones.
    columns : tuple of ColumnImportance
        The most important one first.
    """

    output: str
    metric: str
    loss: float
    n_rows: int
    n_columns: int
    columns: tuple[ColumnImportance, ...]


@dataclass(frozen=True, slots=True)
class DependencePoint:
    """The mean prediction if all rows had a value, with a 95 % interval.

    Attributes
    ----------
    value : str or None
        As SQL shows it; None is NULL.
    prediction : float
    lower, upper : float or None
        None for a single row.
    """

    value: str | None
    prediction: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class PartialDependence:
    """How the mean prediction of an output depends on a column.

    Attributes
    ----------
    output, feature : str
    of_class : str or None
        The class whose probability is predicted; None: it is a number.
    is_number : bool
        Whether the values are numbers; else their order is that of dates, or of the most frequent categories.
    points : tuple of DependencePoint
    """

    output: str
    feature: str
    of_class: str | None
    is_number: bool
    points: tuple[DependencePoint, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was found.

    Attributes
    ----------
    held_out : str or None
        The table of the held-out rows.
    outputs : tuple of OutputFindings
    explained : str or None
        The table of the rows for which the partial dependence was computed.
    importance_of : str or None
        The table of the rows for which the importance was computed.
    importances : tuple of OutputImportance
    dependences : tuple of PartialDependence
    """

    held_out: str | None = None
    outputs: tuple[OutputFindings, ...] = ()
    explained: str | None = None
    importance_of: str | None = None
    importances: tuple[OutputImportance, ...] = ()
    dependences: tuple[PartialDependence, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionFindings:
    """What was found about a version whose weights a run trained, or some of its members.

    Attributes
    ----------
    name : str
        Of the registered model.
    version : int
    mst_key : int or None
        Its key in ``model_table``.
    model_table : str or None
    findings : Findings
    """

    name: str
    version: int
    mst_key: int | None
    model_table: str | None
    findings: Findings


def findings_of(text: str) -> Findings | None:
    """Return the findings of JSON; None if the driver has not written it, because the owner of a version can."""
    try:
        found = build(Findings, read_json(text), "findings")
    except (UnreadableText, ValueError, RecursionError):
        return None
    return found if _is_sound(found) else None  # defence: findings-by-hand = found


def _is_sound(found: Findings) -> bool:
    """Return whether figures can be drawn of findings."""
    return (
        all(0 <= number < _MOST for number in _whole_numbers(found))
        and all(map(_is_sound_output, found.outputs))
        and all(one.columns for one in found.importances)
        and all(one.points for one in found.dependences)
    )


def _is_sound_output(output: OutputFindings) -> bool:
    one, n_places = output.confusion, len(output.confusion.classes) + bool(output.confusion.n_others)
    points = [curve.points for curve in output.curves]
    bins = [one.bins for one in output.reliability]
    shares = [s for every in points for p in every for s in (p.false_positive_rate, p.recall, p.precision)]
    shares += [s for every in bins for p in every for s in (p.lower, p.upper, p.probability, p.share)]
    return (
        output.n_rows > 0
        and n_places > 0
        and {len(one.counts), *map(len, one.counts)} == {n_places}
        and all(points)
        and all(bins)
        and all(-_ROUNDING <= share <= 1 + _ROUNDING for share in shares)
        and all(a.threshold >= b.threshold for every in points for a, b in pairwise(every))
    )


def _whole_numbers(value: Any) -> Iterator[int]:
    """Yield all whole numbers of dataclasses and tuples."""
    if is_dataclass(value):
        for field in fields(value):
            yield from _whole_numbers(getattr(value, field.name))
    elif isinstance(value, tuple):
        for one in value:
            yield from _whole_numbers(one)
    elif isinstance(value, int):
        yield value


#: Larger ones are not read: register writes less than a tenth.
_MOST_BYTES = 2_000_000
_MOST_VERSIONS = 20
_HAS_REGISTRY = "SELECT pg_catalog.to_regclass('madlib_mop.version_detail') IS NOT NULL AS there"
_MAY_READ = """
SELECT coalesce(pg_catalog.has_table_privilege(
    pg_catalog.to_regclass('madlib_mop.version_detail')::pg_catalog.oid, 'SELECT'), false) AS may
"""
# Any role can register a model as one of a run, so only roles that act as the owner of the run count.
_FINDINGS = f"""
SELECT v.name, v.version, d.mst_key, d.model_table, d.findings::pg_catalog.text AS findings
FROM madlib_mop.run r
JOIN madlib_mop.version_detail d ON d.run_id = r.run_id OR d.lineage #> '{{ensemble,runs}}' @>
    pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('run_id', r.run_id))
JOIN madlib_mop.model_version v ON v.version_id = d.version_id
JOIN madlib_mop.registered_model m ON m.name = v.name
WHERE r.run_id = $1::pg_catalog.int8 AND d.findings IS NOT NULL
    AND pg_catalog.pg_has_role(m.owner::pg_catalog.oid, r.owner::pg_catalog.oid, 'MEMBER') -- defence: own-findings
    AND pg_catalog.octet_length(d.findings::pg_catalog.text) <= {_MOST_BYTES}
ORDER BY v.registered_at DESC, v.name, v.version DESC LIMIT {_MOST_VERSIONS}
"""


def read_findings(reader: FactsReader, run_id: int) -> tuple[VersionFindings, ...]:
    """Return the findings of versions whose weights or members the run trained.

    They are of the newest version with held-out rows, and of the newest one with the importance of its columns; often
    both are one.
    """
    if not reader.rows(_MAY_READ)[0]["may"]:
        return ()
    kept: list[VersionFindings] = []
    wants_rows = wants_columns = True
    for row in reader.rows(_FINDINGS, run_id):
        found = findings_of(row["findings"])
        if found is not None and (wants_rows and found.held_out or wants_columns and found.importances):
            kept.append(VersionFindings(row["name"], row["version"], row["mst_key"], row["model_table"], found))
            wants_rows = wants_rows and not found.held_out
            wants_columns = wants_columns and not found.importances
    return tuple(kept)


def has_registry(fetch: Fetch) -> bool:
    """Return whether the server has a registry of models."""
    ((there,),) = fetch(_HAS_REGISTRY, [])
    return bool(there)
