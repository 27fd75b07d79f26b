"""Reads a whole run: the row of the run first, which decides whether the viewer may see anything, then its parts."""

import json
from typing import Any

from madlib_mop.catalog.facts import CallFacts, Counts, RunFacts
from madlib_mop.catalog.facts.reading.curves import MAX_MODELS, read_bands, read_curves
from madlib_mop.catalog.facts.reading.data import read_data
from madlib_mop.catalog.facts.reading.findings import has_registry, read_findings
from madlib_mop.catalog.facts.reading.heads import head_of, read_head
from madlib_mop.catalog.facts.reading.history import MAX_COMMANDS, read_commands, read_search
from madlib_mop.catalog.facts.reading.models import read_architectures, read_failures, read_lineage, read_models
from madlib_mop.catalog.facts.reading.now import DATA_SETS, read_segments, read_status
from madlib_mop.catalog.facts.reading.schedule import read_schedule
from madlib_mop.catalog.facts.reading.shared import FactsReader
from madlib_mop.catalog.facts.run import FUNCTIONS
from madlib_mop.errors import not_your_run
from madlib_mop.schedule import SCHEDULES


def read_run(reader: FactsReader, run_id: int) -> RunFacts:
    """Return the facts of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    row = read_head(reader, run_id)
    status = read_status(reader.fetch, run_id, reader.lost) if row is not None else None
    if row is None or status is None:
        raise not_your_run(run_id)
    head, n_models = head_of(row), status.n_models
    models, sample = read_models(reader, run_id, n_models)
    commands, n_commands = read_commands(reader.fetch, run_id, MAX_COMMANDS)
    search, n_decisions, n_results = read_search(reader, run_id)
    lineage, n_lineage = read_lineage(reader, run_id)
    return RunFacts(
        **head,
        **{name: row[name] for name in _AS_THEY_ARE},
        call=CallFacts(FUNCTIONS.get(row["kind"]), json.loads(row["arguments"]), _names(row)),
        status=status,
        depends_on_timing=depends_on_timing(row["schedule"], n_models, row["n_segments"]),
        counts=Counts(n_decisions, n_results, n_commands, n_lineage),
        data=read_data(reader, run_id, read_segments(reader.fetch, status, DATA_SETS)),
        architectures=read_architectures(reader, run_id),
        models=models,
        sample=sample,
        curves=read_curves(reader, run_id, [m.mst_key for m in models]),
        bands=read_bands(reader, run_id) if n_models > MAX_MODELS else (),
        timeline=read_schedule(reader, run_id),
        lineage=lineage,
        failures=read_failures(reader, run_id),
        commands=commands[::-1],
        search=search,
        findings=read_findings(reader, run_id),
        has_registry=has_registry(reader.fetch),
    )


_AS_THEY_ARE = (
    "n_threads", "warm_start", "parent_run_id", "read_at", "makespan_s", "lower_bound_s", "idle_share", "policy",
)  # fmt: skip


def depends_on_timing(schedule: str, n_models: int, n_segments: int) -> bool:
    """Return whether the order of visits of a recorded run can depend on timing.

    ``schedule`` is that of the record: of model averaging and of replays too, which have a fixed order.
    """
    return schedule in SCHEDULES and SCHEDULES[schedule].depends_on_timing(n_models, n_segments)


def _names(run: dict[str, Any]) -> dict[str, str]:
    """Return the names of the call's tables with their schemas, quoted, by the arguments that named them."""
    qualified = json.loads(run["qualified"] or "{}")
    names = {name: text for name, text in json.loads(run["names"]).items() if text}
    return {**names, **qualified}
