"""Reads a whole run: the row of the run first, which decides whether the viewer may see anything, then its parts."""

import json
from typing import Any

from madlib_mop.calls.shared import depends_on_timing
from madlib_mop.catalog.facts import CallFacts, Counts, RunFacts
from madlib_mop.catalog.facts.reading.curves import MAX_MODELS, read_bands, read_curves
from madlib_mop.catalog.facts.reading.data import read_data
from madlib_mop.catalog.facts.reading.heads import head_of, read_head
from madlib_mop.catalog.facts.reading.history import read_commands, read_search
from madlib_mop.catalog.facts.reading.models import read_architectures, read_failures, read_lineage, read_models
from madlib_mop.catalog.facts.reading.schedule import read_schedule
from madlib_mop.catalog.facts.reading.shared import FactsReader
from madlib_mop.errors import not_your_run

_STATES = (
    "SELECT state, count(*) AS n FROM madlib_mop.model WHERE run_id = $1::pg_catalog.int8"
    " GROUP BY state ORDER BY state"
)
_FUNCTIONS = {
    "fit_multiple_model": "madlib_keras_fit_multiple_model",
    "fit": "madlib_keras_fit",
    "automl": "madlib_keras_automl",
    "replay": "replay",
}


def read_run(reader: FactsReader, run_id: int) -> RunFacts:
    """Return the facts of a run.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    row = read_head(reader, run_id)
    if row is None:
        raise not_your_run(run_id)
    head = head_of(row)
    states = {row["state"]: int(row["n"]) for row in reader.rows(_STATES, run_id)}
    n_models = sum(states.values())
    models, sample = read_models(reader, run_id, n_models)
    commands, n_commands = read_commands(reader, run_id)
    search, n_decisions, n_results = read_search(reader, run_id)
    lineage, n_lineage = read_lineage(reader, run_id)
    return RunFacts(
        **head,
        **{name: row[name] for name in _AS_THEY_ARE},
        call=CallFacts(_FUNCTIONS.get(row["kind"]), json.loads(row["arguments"]), _names(row)),
        depends_on_timing=depends_on_timing(row["schedule"], n_models, row["n_segments"]),
        counts=Counts(
            n_models, states, search_decisions=n_decisions, search_results=n_results, commands=n_commands,
            lineage=n_lineage,
        ),
        data=read_data(reader, run_id),
        architectures=read_architectures(reader, run_id),
        models=models,
        sample=sample,
        curves=read_curves(reader, run_id, [m.mst_key for m in models]),
        bands=read_bands(reader, run_id) if n_models > MAX_MODELS else (),
        timeline=read_schedule(reader, run_id),
        lineage=lineage,
        failures=read_failures(reader, run_id),
        commands=commands,
        search=search,
    )


_AS_THEY_ARE = (
    "n_threads", "warm_start", "parent_run_id", "read_at", "makespan_s", "lower_bound_s", "idle_share", "policy",
)  # fmt: skip


def _names(run: dict[str, Any]) -> dict[str, str]:
    """Return the names of the call's tables with their schemas, quoted, by the arguments that named them."""
    qualified = json.loads(run["qualified"] or "{}")
    names = {name: text for name, text in json.loads(run["names"]).items() if text}
    return {**names, **qualified}
