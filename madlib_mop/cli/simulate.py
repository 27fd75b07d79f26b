"""The command that forecasts a run on many segments: reads costs, simulates each requested size, prints a table."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from madlib_mop.cli.app import Dsn, app
from madlib_mop.cli.queries import query
from madlib_mop.errors import InvalidParameter
from madlib_mop.schedule import SCHEDULES
from madlib_mop.schedule.forecast.cluster import Costs, Forecast, forecast

# Steady visits only: the first visit of a trainer builds and traces the model.
_MEASURED = """
SELECT avg(compute_s), avg(greatest(0, seconds - compute_s)), avg(state_bytes)::bigint,
       array_agg(mean_s ORDER BY mst_key)
FROM (SELECT mst_key, (timing ->> 'compute_s')::float8 AS compute_s, state_bytes,
             extract(epoch FROM ended_at - started_at)::float8 AS seconds,
             avg((timing ->> 'compute_s')::float8) OVER (PARTITION BY mst_key) AS mean_s
      FROM madlib_mop.visit WHERE run_id = %s AND coalesce((timing ->> 'trace_s')::float8, 0) < 0.05) AS v
"""
_TITLES = (
    "segments", "models", "visits", "makespan", "bound", "idle", "waits for", "sessions", "commits/s", "MB/s",
    "network", "driver", "link", "commit",
)  # fmt: skip


@app.command()
def simulate(
    segments: Annotated[str, typer.Option(help="Numbers of segments, comma-separated.")] = "8,100,1000",
    models: Annotated[str, typer.Option(help="Numbers of models, comma-separated.")] = "16",
    iterations: Annotated[int, typer.Option(help="Iterations.")] = 1,
    schedule: Annotated[str, typer.Option(help=f"One of {', '.join(SCHEDULES)}.")] = "auto",
    visit_s: Annotated[float | None, typer.Option(help="Mean seconds of training in a visit. Default: 10.")] = None,
    mix: Annotated[float, typer.Option(help="Cost of the most expensive model / that of the cheapest.")] = 1.0,
    slow: Annotated[str, typer.Option(help="SEGMENTS:FACTOR, e.g. 1:3: one segment is 3 times slower.")] = "",
    state_mb: Annotated[float | None, typer.Option(help="Size of a model's state in MB. Default: 10.")] = None,
    segments_per_host: Annotated[int, typer.Option(help="0: all segments are at the coordinator.")] = 0,
    coordinator_gbit: Annotated[float, typer.Option(help="Gbit/s of the coordinator's network link, each way.")] = 10.0,
    host_gbit: Annotated[float, typer.Option(help="Gbit/s of a host's network link, each way.")] = 10.0,
    disk_mb_s: Annotated[float, typer.Option(help="MB/s at which the coordinator stores states.")] = 300.0,
    commit_ms: Annotated[float, typer.Option(help="Milliseconds of a commit, without the state.")] = 5.0,
    driver_ms: Annotated[float, typer.Option(help="Milliseconds of the driver for a visit.")] = 2.0,
    overhead_ms: Annotated[float | None, typer.Option(help="Other milliseconds of a visit at its segment.")] = None,
    start_s: Annotated[float, typer.Option(help="Seconds until the trainers are ready.")] = 5.0,
    run: Annotated[
        int | None,
        typer.Option(help="Take the times of training and overhead and the size of states from this recorded run."),
    ] = None,
    dsn: Dsn = "",
) -> None:
    """Forecast runs on many segments: their time, idle segments, and the load of the coordinator and the network."""
    costs = Costs(
        visit_s=10.0,
        overhead_s=0.05,
        driver_s=driver_ms / 1e3,
        commit_s=commit_ms / 1e3,
        state_bytes=10_000_000,
        disk_bytes_per_s=disk_mb_s * 1e6,
        coordinator_bytes_per_s=coordinator_gbit * 1e9 / 8 if segments_per_host else inf,
        host_bytes_per_s=host_gbit * 1e9 / 8 if segments_per_host else inf,
        start_s=start_s,
    )
    rates = [1.0, mix] if mix == 1 else [mix ** (k / 15) for k in range(16)]
    if run is not None:
        costs, rates = _measured(costs, run, dsn)
    given: dict[str, Any] = {"visit_s": visit_s, "overhead_s": overhead_ms and overhead_ms / 1e3,
             "state_bytes": state_mb and round(state_mb * 1e6)}  # fmt: skip
    costs = replace(costs, **{name: value for name, value in given.items() if value is not None})
    table = Table(*_TITLES, box=None)
    for n_segments in _counts(segments, "--segments"):
        for n_models in _counts(models, "--models"):
            made = forecast(
                n_models,
                n_segments,
                costs,
                n_iterations=iterations,
                schedule=schedule,
                n_hosts=-(-n_segments // segments_per_host) if segments_per_host else 0,
                rates=rates,
                slow=_slow(slow),
            )
            table.add_row(str(n_segments), str(n_models), *_cells(made))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
    print(f"A visit that waits for nothing takes {costs.alone_s():.3g} s. Busy segments that each part can supply:")
    for name, n_fed in costs.feeds().items():
        print(f"  {name:12}{'any number' if n_fed == inf else f'{n_fed:,.0f}'}")


def _cells(made: Forecast) -> list[str]:
    return [
        str(made.n_visits),
        f"{made.makespan_s:.0f} s",
        f"{made.lower_bound_s:.0f} s",
        f"{made.idle_share:.0%}",
        made.waits_for,
        str(made.n_sessions),
        f"{made.commits_per_s:.1f}",
        f"{made.state_bytes_per_s / 1e6:.0f}",
        f"{made.network_bytes / 1e9:.0f} GB",
        f"{made.busy['driver']:.0%}",
        f"{max(made.busy['network out'], made.busy['network in']):.0%}",
        f"{made.busy['commits']:.0%}",
    ]


def _measured(costs: Costs, run_id: int, dsn: str) -> tuple[Costs, list[float]]:
    """Set the mean visit, state and overhead of a recorded run in the costs; return the costs of its models, too."""
    ((visit_s, overhead_s, state_bytes, rates),) = query(dsn, _MEASURED, run_id)
    if visit_s is None:
        raise InvalidParameter(
            f"you have no run with this run_id and committed visits. Received: {run_id}",
            hint="madlib-mop runs lists your runs.",
        )
    means = list(dict.fromkeys(rates))
    return replace(costs, visit_s=visit_s, overhead_s=overhead_s, state_bytes=state_bytes), means


def _counts(text: str, what: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise InvalidParameter(f"{what} takes whole numbers from 1. Received: {text!r}", hint="For instance 8,100.")
    return [int(word) for word in words]


def _slow(text: str) -> list[float]:
    if not text:
        return []
    count, _, factor = text.partition(":")
    try:
        return [float(factor)] * int(count)
    except ValueError:
        raise InvalidParameter(
            f"--slow takes SEGMENTS:FACTOR. Received: {text!r}", hint="For instance 1:3: one, three times slower."
        ) from None
