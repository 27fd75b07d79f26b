"""Reads what an ensemble is made of, as make_ensemble wrote it into ``_info``; for versions and cards.

Both the table and the details of a version can be written by hand. What is no ensemble's is taken for that of another
model.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.driver.inference.model import ModelLocation
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.reports.card import CardMember, Ensemble, MemberRun

_COLUMNS = {
    "ensemble_of": "text", "ensemble_mst_keys": "integer[]", "ensemble_weights": "double precision[]",
    "ensemble_metric": "text", "ensemble_member_metrics": "double precision[]", "metrics_type": "text[]",
    "validation_loss_final": "double precision", "validation_metrics_final": "double precision",
}  # fmt: skip
#: Ensembles that were made before it was recorded lack it.
_RUNS = {"ensemble_run_ids": "bigint[]"}
#: What reading a document that somebody wrote by hand can raise.
UNREADABLE = (TypeError, KeyError, ValueError, AttributeError, ArithmeticError)
_RUN = """
SELECT r.run_id, r.source_table, r.validation_table,
       (SELECT pg_catalog.sum(s.n_rows)::pg_catalog.int8 FROM madlib_mop.segment s
        WHERE s.run_id = r.run_id AND s.data_set = 'training') AS n_rows
FROM madlib_mop.run r WHERE r.run_id = ANY ($1) ORDER BY r.run_id
"""


def read_ensemble(session: CallerSession, place: ModelLocation) -> Ensemble | None:
    """Return what the model of a table is made of; None unless make_ensemble made it.

    Parameters
    ----------
    session : CallerSession
        Sees the runs that the caller may see.
    place : ModelLocation
    """
    info = session.existing(place.relation.with_suffix("_info").sql) if place.key is not None else None
    if info is None:
        return None
    types = {column.name: column.type_sql for column in session.columns(info)}
    wanted = _COLUMNS | {name: type_sql for name, type_sql in _RUNS.items() if name in types}
    if any(types.get(name) != type_sql for name, type_sql in wanted.items()):
        return None
    query = statement("SELECT {c} FROM {t} WHERE mst_key = $1", c=[Identifier(name) for name in wanted], t=info)
    rows = session.execute(query, [place.key], ["integer"])
    if len(rows) != 1 or rows[0]["ensemble_of"] is None:
        return None
    return _of_row(session, rows[0])


def as_details(ensemble: Ensemble) -> dict[str, Any]:
    """Return an ensemble as JSON, for the column ``lineage`` of a version."""
    return asdict(ensemble)


def of_details(found: Any) -> Ensemble | None:
    """Return the ensemble that `as_details` wrote; None for anything else."""
    try:
        members = tuple(
            CardMember(int(one["mst_key"]), float(one["share"]), to_number(one["metric"]), to_whole(one["run_id"]))
            for one in found["members"]
        )
        runs = tuple(
            MemberRun(int(one["run_id"]), str(one["source_table"]), one["validation_table"], to_whole(one["n_rows"]))
            for one in found["runs"]
        )
        metrics = {str(name): to_number(value) for name, value in found["metrics"].items()}
        return Ensemble(str(found["table"]), found["metric"], members, runs, metrics)
    except UNREADABLE:  # defence: details-of-an-ensemble
        return None


def _of_row(session: CallerSession, row: Mapping[str, Any]) -> Ensemble | None:
    keys, shares = row["ensemble_mst_keys"] or [], row["ensemble_weights"] or []
    values, runs = row["ensemble_member_metrics"] or [], row.get("ensemble_run_ids") or [None] * len(keys)
    if not keys or None in (*keys, *shares) or len({*map(len, (keys, shares, values, runs))}) > 1:
        return None
    members = [CardMember(*one) for one in zip(keys, shares, map(to_number, values), runs, strict=True)]
    metrics = {"validation_loss": to_number(row["validation_loss_final"])}
    if row["metrics_type"] and row["validation_metrics_final"] is not None:
        metrics[f"validation_{row['metrics_type'][0]}"] = to_number(row["validation_metrics_final"])
    known = sorted({run for run in runs if run is not None})
    found = session.execute(_RUN, [known], ["bigint[]"]) if known else []
    return Ensemble(
        row["ensemble_of"], row["ensemble_metric"], tuple(members), tuple(MemberRun(**one) for one in found), metrics
    )


def to_whole(value: Any) -> int | None:
    """Return a whole number that JSON may have in any form. Raises one of `UNREADABLE` if it is none."""
    return None if value is None else int(value)


def to_number(value: Any) -> float | None:
    """Return a number; None for NaN and infinite ones, which JSON does not have. Raises one of `UNREADABLE`."""
    number = float(value) if value is not None else None
    return number if number is not None and abs(number) < float("inf") else None
