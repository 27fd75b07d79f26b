"""Common parts of the ways that train in the database: packing of rows, and results of runs from the record.

The rows are packed before the work begins, because data in the database are already there. Importing TensorFlow is part
of the work, as in every other way: a process that packing has started for it is ended first.
"""

import contextlib
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg2
from breakdown import breakdown
from tables import make_table
from workloads import Rows

from ways.contract import Epoch, Outcome, Span, Spec, loopback_bytes, now, tensorflow_versions

SCHEMA = "comparison"
_TASKS = """
SELECT kind, segment_id, extract(epoch FROM started_at)::float8, extract(epoch FROM ended_at)::float8, mst_key
FROM (SELECT 'train' AS kind, run_id, segment_id, started_at, ended_at, mst_key FROM madlib_mop.visit
      UNION ALL
      SELECT 'evaluate', run_id, segment_id, started_at, ended_at, mst_key FROM madlib_mop.evaluation) tasks
WHERE run_id = %s ORDER BY started_at, mst_key
"""
_ERRORS = """
SELECT mst_key, epoch, extract(epoch FROM r.created_at)::float8 + max(elapsed_s),
       max(1 - value) FILTER (WHERE data_set = 'validation'), max(1 - value) FILTER (WHERE data_set = 'training')
FROM madlib_mop.metric JOIN madlib_mop.run r USING (run_id) WHERE run_id = %s AND name = 'accuracy'
GROUP BY mst_key, epoch, r.created_at ORDER BY mst_key, epoch
"""
_PACKED_BYTES = """
SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree('train'::regclass) WHERE isleaf
"""
# Bytes written since the server's start: write-ahead log, and pages of relations.
_WRITTEN_BYTES = """
SELECT (wal_bytes + (buffers_checkpoint + buffers_clean + buffers_backend) * current_setting('block_size')::bigint)
           ::bigint FROM pg_stat_wal, pg_stat_bgwriter
"""


@dataclass(frozen=True)
class Trained:
    """One run, with its configurations by the mst_key of the record."""

    run_id: int
    mst_keys: dict[int, int]


def train_in_database(spec: Spec, prepare: Callable, train: Callable[..., Iterable[Trained]]) -> Outcome:
    """Pack the rows, prepare, train, and return the Outcome.

    Parameters
    ----------
    spec : Spec
    prepare : callable
        ``prepare(cursor, spec)`` creates what the work needs; its time does not count.
    train : callable
        ``train(cursor, spec)`` does the work and returns the runs.
    """
    with contextlib.closing(psycopg2.connect(spec.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            _pack(cursor, spec)
            prepare(cursor, spec)
            _end_fork_server(cursor)
            written = _written_bytes(cursor)
            sent = loopback_bytes()
            begun_at = now()
            runs = list(train(cursor, spec))
            ended_at = now()
            sent = loopback_bytes() - sent
            written = _written_bytes(cursor) - written
            told = _outcome(cursor, spec, runs)
            return replace(told, begun_at=begun_at, ended_at=ended_at, loopback_bytes=sent, written_bytes=written)


def newest_run(cursor) -> int:
    """Return the id of the newest run."""
    return _value(cursor, "SELECT max(run_id) FROM madlib_mop.run")


def compile_params(learning_rate: float) -> str:
    """Return the compile parameters of a configuration."""
    return f"loss='categorical_crossentropy', optimizer='Adam(learning_rate={learning_rate})', metrics=['accuracy']"


def fit_params(batch_size: int) -> str:
    """Return the fit parameters of a configuration."""
    return f"batch_size={batch_size}, epochs=1"


def _pack(cursor, spec: Spec) -> None:
    rows = Rows.load(Path(spec.rows))
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    cursor.execute(f"SET client_min_messages = warning; SET madlib_mop.segments = {spec.n_workers:d}")
    make_table(cursor, "train_rows", rows.x, rows.y.argmax(1))
    make_table(cursor, "test_rows", rows.x_test, rows.y_test.argmax(1))
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := %s)", [spec.seed])
    cursor.execute("SELECT madlib.validation_preprocessor_dl('test_rows', 'test', 'y', 'x', 'train')")


def _end_fork_server(cursor) -> None:
    """End the server's process that has imported TensorFlow, as its idle time would."""
    backend = Path("/proc", str(_value(cursor, "SELECT pg_backend_pid()")))
    server = (backend / "stat").read_text().rpartition(")")[2].split()[1]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_one = (process / "comm").read_text() == "mop forkserver\n"
            if is_one and f"\0{server}\0" in (process / "cmdline").read_text():
                os.kill(int(process.name), signal.SIGKILL)


def _written_bytes(cursor) -> int:
    cursor.execute("CHECKPOINT; SELECT pg_stat_clear_snapshot()")
    return _value(cursor, _WRITTEN_BYTES)


def _outcome(cursor, spec: Spec, runs: list[Trained]) -> Outcome:
    spans, epochs, digests, stages, steady_stages = [], [], {}, Counter(), Counter()
    for run in runs:
        keys = run.mst_keys
        cursor.execute(_TASKS, [run.run_id])
        spans += [replace(span, mst_key=keys[span.mst_key]) for span in _shared_out(cursor.fetchall())]
        stages.update(breakdown(cursor, run.run_id, spec.n_workers).seconds)
        if spec.n_epochs > 1:
            steady_stages.update(breakdown(cursor, run.run_id, spec.n_workers, after_epoch=1).seconds)
        cursor.execute(_ERRORS, [run.run_id])
        epochs += [Epoch(keys[key], *rest) for key, *rest in cursor.fetchall()]
        cursor.execute("SELECT mst_key, digest FROM madlib_mop.model WHERE run_id = %s", [run.run_id])
        digests |= {str(keys[key]): digest for key, digest in cursor.fetchall()}
    return Outcome(
        ready_at=min(span.begin for span in spans if span.kind == "train"),
        spans=spans,
        epochs=epochs,
        digests=digests,
        data_bytes=_value(cursor, _PACKED_BYTES),
        versions={**tensorflow_versions(), "PostgreSQL": _value(cursor, "SHOW server_version").split()[0]},
        database_bytes=_value(cursor, "SELECT pg_database_size(current_database())"),
        stages=dict(stages),
        steady_stages=dict(steady_stages),
    )


def _shared_out(tasks: Iterable[tuple]) -> Iterator[Span]:
    """Return each task's span; the tasks of a fused group, which begin together, get consecutive spans."""
    together = defaultdict(list)
    for kind, segment, begin, end, key in tasks:
        together[kind, segment, begin].append((end, key))
    for (kind, segment, begin), members in together.items():
        share = (max(end for end, _ in members) - begin) / len(members)
        for place, (_, key) in enumerate(members):
            yield Span(key, segment, begin + share * place, begin + share * (place + 1), kind)


def _value(cursor, query: str):
    cursor.execute(query)
    ((value,),) = cursor.fetchall()
    return value
