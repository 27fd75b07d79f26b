"""The segments that get data: the engine's, restricted by distribution_rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.data.gpus import require_gpus
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import FixedSettings, read_backend
from madlib_mop.engines.base.interface import HOSTS, SEGMENTS, Engine, Segment
from madlib_mop.errors import InvalidParameter, UndefinedColumn, Unsupported

_INTEGER_TYPES = ("int2", "int4", "int8")
_GPU_RULE = "distribution_rules => 'gpu_segments'"


@dataclass(frozen=True)
class Distribution:
    """The segments that get data.

    Attributes
    ----------
    segments : tuple of Segment
        Ascending, at least one; their numbers, from 0, are values of ``__dist_key__``.
    rules, gpu_config : str
        The values for the summary table.
    """

    segments: tuple[Segment, ...]
    rules: str
    gpu_config: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The segments' numbers."""
        return tuple(segment.number for segment in self.segments)


def choose_segments(engine: Engine, session: CallerSession, rules: str | None) -> Distribution:
    """Read distribution_rules, and check that the caller can write rows to the chosen segments.

    Parameters
    ----------
    engine : Engine
    session : CallerSession
    rules : str or None
        ``all_segments`` (default), ``gpu_segments``, or a table with a column ``dbid``: dbid k is segment k - 1.
    """
    everywhere = engine.segments(session)
    text = (rules or "").strip() or "all_segments"
    if text == "all_segments":
        distribution = Distribution(tuple(everywhere), text, text)
    elif text == "gpu_segments":
        limit = engine.limits([segment.place for segment in everywhere]).gpus
        if limit is not None:
            raise Unsupported(
                f"{_GPU_RULE} cannot be used on this engine: {limit}",
                hint=f"SET {HOSTS} = 'here'; or list the segments in a table with a column dbid.",
            )
        require_gpus(_GPU_RULE, read_backend(FixedSettings(session), session))
        distribution = Distribution(tuple(everywhere), text, _config(everywhere))
    else:
        segments = _listed_segments(session, text, engine.dbids(session, everywhere))
        distribution = Distribution(segments, text, _config(segments))
    engine.check(session, distribution.segments)
    return distribution


def _listed_segments(session: CallerSession, text: str, everywhere: Mapping[int, Segment]) -> tuple[Segment, ...]:
    table = session.relation(text, "distribution_rules", any_type=True)
    known = {column.name: column for column in session.columns(table)}
    if "dbid" not in known or known["dbid"].type_name not in _INTEGER_TYPES:
        raise UndefinedColumn(
            f"distribution_rules: table {table} has no integer column 'dbid'",
            hint="Use 'all_segments', 'gpu_segments', or a table with one row for each segment: dbid 1 is segment 0.",
        )
    query = statement("SELECT DISTINCT t.{dbid} AS dbid FROM {table} t", dbid=Identifier("dbid"), table=table)
    dbids = [row["dbid"] for row in session.execute(query)]
    unknown = [dbid for dbid in dbids if dbid not in everywhere]
    if unknown or not dbids:
        what = f"dbid {'NULL' if unknown[0] is None else unknown[0]} is not a segment" if unknown else "has no rows"
        raise InvalidParameter(
            f"distribution_rules: table {table}: {what}. Received: {text!r}",
            hint=f"There are {len(everywhere)} segments ({SEGMENTS}): dbid {min(everywhere)} to {max(everywhere)}.",
        )
    return tuple(sorted((everywhere[dbid] for dbid in dbids), key=lambda segment: segment.number))


def _config(segments: Sequence[Segment]) -> str:
    return "{" + ",".join(str(segment.number) for segment in segments) + "}"
