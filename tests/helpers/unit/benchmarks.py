"""Invented measurements for tests of the report: nothing was trained, and every number is the result of a formula."""

import math
from collections import defaultdict
from random import Random

from breakdown import EVALUATING, HANDLING, IDLE, TRAINING
from report.measurement import Comparison, Failure, Machine, Measurement
from ways.contract import Epoch, Outcome, Span

BEGUN_AT = 1_700_000_000.0
MACHINE = Machine(
    cpu="Synthetic CPU 1000",
    n_cores=2,
    memory_bytes=8_000_000_000,
    kernel="Synthetic 1.0",
    versions={"Python": "0.0", "keras": "0.0"},
    commit="0123456789ab",
    date="2000-01-01 00:00 UTC",
)
MIB = 1 << 20
# way -> (epoch time relative to plain, start-up in s, copies of the data, bytes over sockets, added error)
WAYS = {
    "hopper": (0.62, 3.1, 1.03, 310 * MIB, 0.0),
    "hopper_fused": (0.31, 3.1, 1.03, 310 * MIB, 0.0),
    "plain": (1.0, 4.2, 1.0, 0, 0.0),
    "celery_tasks": (1.0, 7.9, 2.0, 3 * MIB, 0.0),
    "ray_tune": (1.02, 11.5, 2.0, 41 * MIB, 0.0),
    "all_reduce": (2.4, 9.0, 1.0, 61_000 * MIB, 0.004),
    "parameter_server": (7.7, 8.1, 1.0, 240_000 * MIB, 0.05),
    "averaging": (1.1, 3.4, 1.03, 620 * MIB, 0.09),
}
TOGETHER = ("all_reduce", "parameter_server", "averaging")


def measurement(
    workload="images", way="hopper", repetition=1, seed=1, n_configurations=16, n_epochs=5, n_workers=2, epoch_s=4.0
) -> Measurement:
    """Return an invented measurement: hopping, one model at a time on all workers, or parallel tasks."""
    chance = Random(f"{workload} {way} {repetition} {seed}")
    factor, startup_s, copies, socket_bytes, worse = WAYS[way]
    ready_at = BEGUN_AT + startup_s * chance.uniform(0.95, 1.05)
    costs = {key: epoch_s * factor * (0.6 + 0.9 * ((key - 1) % 4) / 3) for key in range(1, n_configurations + 1)}
    schedule = _hop if way.startswith("hopper") else _together if way in TOGETHER else _tasks
    spans, ended = schedule(costs, n_epochs, n_workers, ready_at, chance)
    epochs = [
        Epoch(key, epoch, ended[key, epoch], _error(key, epoch, seed, worse), 0.9 * _error(key, epoch, seed, worse))
        for key, epoch in ended
    ]
    certain = way not in ("parameter_server", "ray_tune") or repetition
    busy_s = sum(span.end - span.begin for span in spans)
    shares = {TRAINING: 0.71, EVALUATING: 0.12, "tracing": 0.07, HANDLING: 0.05}
    shares |= {"state in": 0.03, "state out": 0.015, "building models": 0.005, IDLE: 0.04}
    stages = {name: share * busy_s for name, share in shares.items()} if way == "hopper" else {}
    return Measurement(
        workload=workload,
        way=way,
        repetition=repetition,
        seed=seed,
        n_workers=n_workers,
        makespan_s=max(span.end for span in spans) - BEGUN_AT + 0.8,
        socket_bytes=socket_bytes,
        outcome=Outcome(
            ready_at=ready_at,
            spans=spans,
            epochs=epochs,
            digests={str(key): f"{seed} {key} {certain if way == 'parameter_server' else ''}" for key in costs},
            data_bytes=int(copies * 24_576_000),
            versions={"TensorFlow": "0.0"},
            written_bytes=1_900_000_000 if way in ("hopper", "averaging") else None,
            database_bytes=420_000_000 if way in ("hopper", "averaging") else None,
            stages=stages,
            steady_stages={name: seconds / 2 for name, seconds in stages.items() if name != "tracing"},
        ),
        begun_at=BEGUN_AT,
    )


def comparison(seeds=(1, 2), repetitions=2, **options) -> Comparison:
    """Return an invented comparison of all ways on two workloads, with one failure."""
    measurements = [
        measurement(workload, way, repetition, seed, n, epoch_s=epoch_s, **options)
        for workload, n, epoch_s in (("images", 16, 4.0), ("tabular", 32, 0.5))
        for seed in seeds
        for repetition in range(1, repetitions + 1)
        for way in WAYS
        if (workload, way) != ("tabular", "ray_tune")
    ]
    failures = [Failure("tabular", "ray_tune", "SyntheticError: a made-up reason <why> it failed")]
    told = {"images": "made-up images, 16 configurations, 5 epochs", "tabular": "made-up numbers, 32 configurations"}
    return Comparison(measurements, failures, MACHINE, told)


def _error(key, epoch, seed, worse):
    floor, speed = 0.28 + 0.02 * (key % 8), 0.25 + 0.12 * (key % 5)
    wobble = 0.012 * math.sin(7 * key + 3 * epoch + seed)
    return min(0.9, max(0.05, floor + worse + (0.9 - floor) * math.exp(-speed * epoch) + wobble))


def _hop(costs, n_epochs, n_workers, ready_at, chance):
    free, model_free = dict.fromkeys(range(n_workers), ready_at), dict.fromkeys(costs, ready_at)
    spans, ended = [], {}
    left = {key: [(epoch, w) for epoch in range(1, n_epochs + 1) for w in range(n_workers)] for key in costs}
    while any(left.values()):
        worker = min(free, key=free.get)
        wanted = {key: _next(left[key], worker) for key in costs if left[key]}
        wanted = {key: visit for key, visit in wanted.items() if visit}
        if not wanted:
            free[worker] = max(free.values()) + 1e-6
            continue
        key = min(wanted, key=lambda key: (max(model_free[key], free[worker]), wanted[key][0], key))
        begin = max(model_free[key], free[worker])
        end = begin + costs[key] / n_workers * chance.uniform(0.95, 1.05)
        spans.append(Span(key, worker, begin, end))
        epoch = wanted[key][0]
        left[key].remove(wanted[key])
        evaluated = end + 0.08 * costs[key]
        if not any(number == epoch for number, _ in left[key]):
            spans.append(Span(key, worker, end, evaluated, "evaluate"))
            ended[key, epoch] = evaluated
            end = evaluated
        free[worker] = model_free[key] = end + 0.01
    return spans, ended


def _next(left, worker):
    epoch = min(number for number, _ in left)
    return (epoch, worker) if (epoch, worker) in left else None


def _tasks(costs, n_epochs, n_workers, ready_at, chance):
    free = dict.fromkeys(range(n_workers), ready_at)
    spans, ended = [], {}
    for key, cost in costs.items():
        worker = min(free, key=free.get)
        for epoch in range(1, n_epochs + 1):
            _train(spans, ended, key, epoch, [worker], free, cost * chance.uniform(0.95, 1.05))
    return spans, ended


def _together(costs, n_epochs, n_workers, ready_at, chance):
    free = dict.fromkeys(range(n_workers), ready_at)
    spans, ended = [], {}
    for key, cost in costs.items():
        for epoch in range(1, n_epochs + 1):
            _train(spans, ended, key, epoch, list(free), free, cost / n_workers * chance.uniform(0.95, 1.05))
    return spans, ended


def _train(spans, ended, key, epoch, workers, free, seconds):
    for worker in workers:
        begin = free[worker]
        spans.append(Span(key, worker, begin, begin + seconds))
        spans.append(Span(key, worker, begin + seconds, begin + 1.15 * seconds, "evaluate"))
        free[worker] = ended[key, epoch] = begin + 1.15 * seconds


def by_way(told: Comparison, workload: str) -> dict[str, list[Measurement]]:
    """Return a workload's measurements by way."""
    found = defaultdict(list)
    for one in told.measurements:
        if one.workload == workload:
            found[one.way].append(one)
    return dict(found)
