"""Runs of many models for tests and benchmarks of reports: written into the record by hand, or as facts."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.facts.data import ClassCount, DataFacts, OutputFacts
from madlib_mop.catalog.facts.findings import (
    ClassCurve,
    ColumnImportance,
    Confusion,
    CurvePoint,
    DependencePoint,
    Findings,
    OutputFindings,
    OutputImportance,
    PartialDependence,
    Reliability,
    ReliabilityBin,
    VersionFindings,
)
from madlib_mop.catalog.facts.history import CommandFacts, SearchEventFacts
from madlib_mop.catalog.facts.models import Architecture, FailureGroup, Lineage, ModelFacts
from madlib_mop.catalog.facts.now import RunStatus, SegmentFacts
from madlib_mop.catalog.facts.run import CallFacts, Counts, RunFacts
from madlib_mop.catalog.facts.schedule import Bar, LongTask, Schedule, SegmentLoad, TimeSpent
from madlib_mop.columns.preprocessors.canonical import plain
from tests.helpers.training import script
from tests.helpers.unit.rows import a_plan, a_summary

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
#: Texts that are code in HTML, JavaScript, CSS, Jinja or Vega, or change the direction of the text after them.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "\" onmouseover=\"alert(3)\" '",
    "{{ 7 * 7 }}{% raw %}",
    "datum.constructor.constructor('alert(4)')()",
    "\u202eevil\u202c <!-- \u2028 -->",
    "</style></title><svg onload=alert(5)>",
)
NETWORK = {
    "class_name": "Sequential",
    "config": {
        "layers": [
            {"class_name": "InputLayer", "config": {"batch_shape": [None, 8, 8, 1]}},
            {"class_name": "Dense", "config": {"units": 10, "activation": "softmax"}},
        ]
    },
}

# Times are what a run of these sizes would have; every figure of the report has something to show.
_RECORD = (
    """
INSERT INTO madlib_mop.segment (run_id, data_set, segment_id, n_rows, n_bytes, fingerprint)
SELECT %(run)s, d, s, 1000, 4000000, repeat('ab', 32) FROM generate_series(0, %(segments)s - 1) s,
    unnest(ARRAY['training', 'validation']) d
""",
    """
INSERT INTO madlib_mop.model (run_id, mst_key, ordinal, model_id, compile_params, fit_params, model_arch, state,
    state_detail, last_epoch, epoch, position, state_bytes, weights_digest, cloned_from)
SELECT %(run)s, m, m - 1, 1 + m %% 3,
       'loss=''categorical_crossentropy'', optimizer=''Adam(lr=' || (0.0001 * (1 + m * 7 %% 100)) || ')'''
       || ', metrics=[''accuracy'']', 'batch_size=' || 16 * (1 + m %% 4) || ', epochs=1', %(arch)s,
       CASE WHEN m %% 50 = 49 THEN 'failed' ELSE 'trained' END,
       CASE WHEN m %% 50 = 49 THEN 'the loss is not finite, reason ' || m %% 7 END, %(epochs)s, %(epochs)s,
       %(segments)s, 100000, repeat('cd', 32),
       CASE WHEN m %% 20 = 0
            THEN jsonb_build_object('mst_key', m - 1, 'epoch', 1, 'position', 1, 'segments', '[]'::jsonb) END
FROM generate_series(1, %(models)s) m
""",
    """
INSERT INTO madlib_mop.visit (run_id, mst_key, epoch, position, segment_id, started_at, ended_at, n_rows, state_bytes,
    digest_in, digest_out, attempt, loss, timing)
SELECT %(run)s, m, e, p, s, r.created_at + i * interval '80 ms', r.created_at + i * interval '80 ms' + interval '70 ms',
       1000, 100000, 'a', 'b', 1, 1.0 / e, '{"compute_s": 0.05, "state_in_s": 0.01, "trace_s": 0.001}'
FROM madlib_mop.run r, generate_series(1, %(models)s) m, generate_series(1, %(epochs)s) e,
     generate_series(1, %(segments)s) p,
     LATERAL (SELECT (m + p) %% %(segments)s AS s, ((e - 1) * %(segments)s + p - 1) * (%(models)s / %(segments)s + 1)
                     + m / %(segments)s AS i) x
WHERE r.run_id = %(run)s
""",
    """
INSERT INTO madlib_mop.metric (run_id, mst_key, epoch, data_set, ordinal, name, value, elapsed_s)
SELECT %(run)s, m, e, d, o, CASE o WHEN 0 THEN 'loss' ELSE 'accuracy' END,
       CASE o WHEN 0 THEN 2.0 / e + m * 7 %% 100 / 100.0 ELSE 1 - 0.5 / e - m * 7 %% 100 / 1000.0 END, e * 10.0
FROM generate_series(1, %(models)s) m, generate_series(1, %(epochs)s) e, unnest(ARRAY['training', 'validation']) d,
     generate_series(0, 1) o
""",
    """
INSERT INTO madlib_mop.evaluation (run_id, mst_key, epoch, data_set, shard, segment_id, started_at, ended_at, n_rows,
    loss)
SELECT %(run)s, m, e, 'validation', s, s, r.created_at + e * interval '1 min',
       r.created_at + e * interval '1 min 0.01 s', 1000, 0.5
FROM madlib_mop.run r, generate_series(1, %(models)s) m, generate_series(1, %(epochs)s) e,
     generate_series(0, %(segments)s - 1) s
WHERE r.run_id = %(run)s
""",
    """
INSERT INTO madlib_mop.search_event (run_id, ordinal, event, mst_key, epoch, loss)
SELECT %(run)s, m, 'result', m, 1, 2 + m * 7 %% 100 / 100.0 FROM generate_series(1, %(models)s) m
""",
    """
INSERT INTO madlib_mop.change (run_id, source, change, work, event, number, state)
SELECT %(run)s, 'search', 'stop', jsonb_build_object('mst_key', m), m, 1, 'obeyed'
FROM generate_series(1, %(models)s) m WHERE m %% 5 = 0
""",
    "ANALYZE madlib_mop.visit, madlib_mop.metric, madlib_mop.model, madlib_mop.evaluation, madlib_mop.search_event,"
    " madlib_mop.change",
)


def record_large_run(db, run_id: int, owner: str, n_models: int, n_epochs: int = 4, n_segments: int = 3) -> int:
    """Write a finished run of many models into the record as a superuser; return its run_id."""
    plan = replace(a_plan(), summary=a_summary(class_counts=[[500, 500]])).as_json()
    given = {"model_output_table": "public.large", "source_table": "public.packed", "model_selection_table": "configs"}
    row = {
        "run_id": run_id, "kind": "fit_multiple_model", "state": "finished", "owner": owner,
        "source_table": "public.packed", "validation_table": "public.valid", "model_output_table": "public.large",
        "model_selection_table": "public.configs",
        "model_arch_table": "public.arch", "num_iterations": n_epochs, "seed": 1, "schedule": "rotation",
        "n_models": n_models, "n_segments": n_segments, "plan": json.dumps(plan),
        "arguments": json.dumps(given | {"num_iterations": n_epochs, "seed": None, "schedule": "auto"}),
        "makespan_s": 100.0, "lower_bound_s": 90.0, "idle_share": 0.1, "ended_at": "now",
    }  # fmt: skip
    names = ", ".join(row)
    db.rows(f"INSERT INTO madlib_mop.run ({names}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))
    sizes = {"run": run_id, "models": n_models, "epochs": n_epochs, "segments": n_segments}
    for statement in _RECORD:
        db.rows(statement, {**sizes, "arch": json.dumps(NETWORK)})
    return run_id


def a_model(key: int, **fields) -> ModelFacts:
    """Return a trained model; its figures are the better, the smaller its key is."""
    given = {
        "mst_key": key, "model_id": 1 + key % 2, "rank": key, "state": "trained", "detail": None, "pinned": False,
        "epoch": 2, "position": 2, "first_epoch": 1, "last_epoch": 2, "metric_epoch": 2, "metric_name": "accuracy",
        "ranked_by": "accuracy", "validation_metric": 1 - key / 100, "validation_loss": key / 10,
        "training_metric": 1 - key / 200, "training_loss": key / 20, "comparable": True,
        "compile_params": f"optimizer='Adam(lr={key / 1000})'",
        "fit_params": f"batch_size={16 * (1 + key % 3)}",
        "hyper_parameters": {"architecture": 1 + key % 2, "optimizer": "Adam", "learning_rate": key / 1000,
                             "batch_size": 16 * (1 + key % 3)},
        "state_bytes": 1000, "weights_digest": f"{key:064x}", "seconds": 1.0,
    }  # fmt: skip
    return ModelFacts(**given | fields)


def a_status(n_models: int, **fields) -> RunStatus:
    """Return how far a finished run on two segments is."""
    given = {
        "run_id": 7, "kind": "fit_multiple_model", "state": "finished", "detail": None, "owner": "ada",
        "source_table": "public.packed", "validation_table": "public.valid", "output_table": "public.models",
        "schedule": "rotation", "paused_by": None, "waits": False, "may_steer": False, "seed": 11, "num_iterations": 2,
        "n_segments": 2, "n_models": n_models, "n_waiting": 0, "n_training": 0, "n_trained": n_models, "n_stopped": 0,
        "n_failed": 0, "visits_done": 4 * n_models, "visits_total": 4 * n_models,
        "created_at": datetime.fromtimestamp(BEGAN, UTC), "ended_at": datetime.fromtimestamp(BEGAN + 60, UTC),
        "elapsed_s": 60.0, "time_left_s": None,
    }  # fmt: skip
    return RunStatus(**given | fields)


def some_facts(n_models: int = 12, **fields) -> RunFacts:
    """Return the facts of a run on two segments, with something of everything; ``fields`` replace some of them."""
    models = tuple(a_model(key) for key in range(1, n_models + 1))
    points = tuple(
        MetricPoint(
            m.mst_key, BEGAN + 10.0 * epoch, data_set, name, value / epoch, epoch, 2 * epoch, False, 10.0 * epoch,
            100.0 * epoch,
        )
        for m in models
        for epoch in (1, 2)
        for data_set in ("training", "validation")
        for name, value in (("loss", m.validation_loss), ("accuracy", m.validation_metric))
    )  # fmt: skip
    bars = tuple(
        Bar("visit", segment, m.mst_key, 1, 1 + segment, float(i), i + 0.8, 50)
        for i, m in enumerate(models)
        for segment in (0, 1)
    ) + (Bar("evaluation", 0, 1, 1, None, float(n_models), n_models + 0.5, 50, data_set="validation"),)
    given = {
        "run_id": 7, "kind": "fit_multiple_model", "state": "finished", "state_detail": None, "owner": "ada",
        "viewer": "ada", "database": "lab",
        "call": CallFacts(
            "madlib_keras_fit_multiple_model",
            {"source_table": "packed", "model_output_table": "models", "model_selection_table": "configs",
             "num_iterations": 2, "validation_table": None, "seed": None, "schedule": "rotation", "use_gpus": False},
            {"source_table": "public.packed"},
        ),
        "model_output_table": "public.models", "model_selection_table": "public.configs",
        "model_arch_table": "public.arch", "num_iterations": 2, "seed": 11, "schedule": "rotation",
        "depends_on_timing": False, "n_segments": 2, "n_threads": 1, "warm_start": False,
        "parent_run_id": None, "versions": {"keras": "3.15.1"}, "created_at": BEGAN,
        "ended_at": BEGAN + 60, "read_at": BEGAN + 3600, "source_table": "public.packed",
        "validation_table": "public.valid",
        "makespan_s": 60.0, "lower_bound_s": 50.0, "idle_share": 0.1, "counts": Counts(),
        "status": a_status(n_models),
        "data": DataFacts(
            ("x",), (OutputFacts("y", (ClassCount("0", 30), ClassCount("1", 70)), 2),),
            (SegmentFacts("training", 0, None, 50, 4000, "ab" * 32), SegmentFacts("training", 1, None, 50, 4000, None)),
        ),
        "architectures": (Architecture(1, "Dense 10 softmax", 6), Architecture(2, "Flatten → Dense 10 softmax", 6)),
        "models": models, "sample": models, "metric_name": "accuracy", "higher_is_better": True, "curves": points,
        "timeline": Schedule(
            bars, (), tuple(SegmentLoad(s, n_models, 1 - s, 0.8 * n_models, 0.5 * (1 - s), 2.0) for s in (0, 1)),
            (TimeSpent("visit", "compute_s", 15.0), TimeSpent("visit", "other_s", 4.2)), 2 * n_models, 1,
            (LongTask("visit", 3, 1, 2, 1234.5, 8.4, 2.8), LongTask("evaluation", 1, 0, 1, 12.0, 0.5, None)),
        ),
        "lineage": (Lineage("clone", 2, 1, 1, 2, None, 12.0), Lineage("start weights", 3, origin="model_id 1")),
        "failures": (FailureGroup("stopped", "stopped by ada: too slow", 1, (4,)),),
        "commands": (
            CommandFacts(
                1, "stop_model", {"mst_key": 4}, "person", "ada", datetime.fromtimestamp(BEGAN + 20, UTC), "obeyed",
                "stopped", (4,),
            ),
        ),
        "search": (SearchEventFacts(1, 30.0, "result", 1, 1, 0.5, "extend", 1, 2, None, None),),
        "policy": "SELECT 1", "findings": (some_findings(),),
    }  # fmt: skip
    return RunFacts(**given | fields)


def some_findings(label: str = "yes", feature: str = "age", table: str = "public.packed_test") -> VersionFindings:
    """Return findings about a model of two classes and two columns: a number with NULL, and a category."""
    points = tuple(
        CurvePoint(threshold, n, false, recall, precision)
        for threshold, n, false, recall, precision in (
            (0.9, 10, 0.0, 0.25, 1.0), (0.5, 40, 0.1, 0.8, 0.8), (0.0, 100, 1.0, 1.0, 0.4),
        )
    )  # fmt: skip
    bins = (ReliabilityBin(0.5, 0.6, 30, 0.55, 0.6), ReliabilityBin(0.9, 1.0, 70, 0.97, 0.9))
    output = OutputFindings(
        "y", 100, Confusion(("no", label), 0, ((52, 8), (8, 32))), (ClassCurve(label, 40, 0.93, 0.9, points),),
        (Reliability(None, 0.064, bins), Reliability("temperature", 0.02, bins)),
    )  # fmt: skip
    columns = (ColumnImportance(feature, 0.3, 0.25, 0.35), ColumnImportance("city", 0.01, -0.02, 0.04))
    numbers = tuple(DependencePoint(value, 0.4, 0.3, 0.5) for value in ("1.5", "20", None))
    cities = tuple(DependencePoint(value, v, v - 0.1, v + 0.1) for value, v in ((label, 0.2), (None, 0.6)))
    return VersionFindings(
        "churn", 3, 1, "public.models",
        Findings(
            table, (output,), "public.customers", table,
            (OutputImportance("y", "log_loss", 0.4, 100, 2, columns),),
            tuple(
                PartialDependence("y", name, label, is_number, points)
                for name, is_number, points in ((feature, True, numbers), ("city", False, cities))
            ),
        ),
    )  # fmt: skip


def many_findings() -> VersionFindings:
    """Return findings with as much of everything as `register` records, and long names."""
    names = [f"{'a rather long name of a class or a column ' * (i % 3)}{i}" for i in range(30)]
    curves = tuple(
        ClassCurve(
            name, 50, 0.9 - i / 20, 0.8 - i / 20,
            tuple(CurvePoint(1 - k / 99, 1 + 10 * k, (k / 99) ** 2, (k / 99) ** 0.5, 1 - k / 200) for k in range(100)),
        )
        for i, name in enumerate(names[:6])
    )  # fmt: skip
    counts = tuple(tuple(1000 * (i == j) + (i * j) % 7 for j in range(21)) for i in range(21))
    bins = tuple(ReliabilityBin(k / 10, (k + 1) / 10, 10 * k + 1, k / 10 + 0.05, k / 11) for k in range(10))
    output = OutputFindings(
        "kind", 21_000, Confusion(tuple(names[:20]), 20, counts), curves,
        (Reliability(None, 0.1, bins), Reliability("temperature", 0.05, bins)),
    )  # fmt: skip
    columns = tuple(ColumnImportance(name, 1 / (i + 1), 0.9 / (i + 1), 1.1 / (i + 1)) for i, name in enumerate(names))
    numbers = tuple(DependencePoint(str(1000 * k), k / 12, k / 13, k / 11) for k in range(12))
    texts = tuple(DependencePoint(name, 0.5, 0.4, 0.6) for name in names[:12])
    dependences = tuple(
        PartialDependence("kind", names[i], names[2], is_number, points)
        for i, (is_number, points) in enumerate(((True, numbers), (False, texts)))
    )
    importance = OutputImportance("kind", "log_loss", 0.4, 2000, 99, columns)
    return VersionFindings(
        "kinds", 1, None, "public.models",
        Findings("public.test", (output,), "public.kinds", "public.test", (importance,), dependences),
    )  # fmt: skip


def record_findings(db, run_id: int, found: VersionFindings) -> None:
    """Register a version of a run by hand, without content."""
    details = {"digest": "", "n_bytes": 0, "model_arch": {}, "run_id": run_id, "findings": plain(found.findings)}
    statement = "INSERT INTO madlib_mop.registry_change (change, name, details) VALUES ('register', %s, %s)"
    db.rows(statement, [found.name, json.dumps(details)])


TINY = """{"class_name": "Sequential", "config": {"layers": [
    {"class_name": "InputLayer", "config": {"batch_shape": [null, 2]}},
    {"class_name": "Dense", "config": {"units": %d, "activation": "relu"}},
    {"class_name": "Dense", "config": {"units": 3, "activation": "softmax"}}]}}"""
#: Names of tables, classes and reasons of `train_hostile_run`.
PACKED, MODELS = "<b>packed</b>", "<script>alert(1)</script>"
CLASS, REASON = "</script>{{ 7 * 7 }}", '\u202e"><img src=x>'
N_CONFIGURATIONS = 13


def train_hostile_run(db, owner: str) -> int:
    """Train a small run with something of everything, whose names are code; return its run_id.

    It has validation data, metrics after each visit, a model that fails (13), one that a policy stops (2), and a clone.
    It has six iterations: on a busy server, a run of fewer can end before the policy is evaluated.
    """
    rates, batches = (0.003, 0.01, 0.03), (11, 21)  # none divides a segment's 120 rows: all share a trace
    chosen = [(m, f"Adam(lr={rate})", batch) for m in (1, 2) for rate in rates for batch in batches]
    chosen.append((1, "SGD(lr=1e30)", 11))
    values = ", ".join(
        f"""({m}, $$loss='categorical_crossentropy', optimizer='{optimizer}', metrics=['accuracy']$$,
            'batch_size={batch}, epochs=1')"""
        for m, optimizer, batch in chosen
    )
    policy = f"""SELECT 2 AS mst_key, 'stop_model' AS action, {_quoted(REASON)} AS reason FROM madlib_mop.leaderboard
        WHERE run_id = $1 AND mst_key = 2 AND metric_visits >= 2"""
    statements = [
        "CREATE TABLE points AS SELECT n AS id, ARRAY[sin(n), cos(n)]::real[] AS x,"
        f" (ARRAY['a', 'b', {_quoted(CLASS)}])[1 + (n %% 7) / 3] AS y FROM generate_series(1, 240) AS n",
        "CREATE VIEW valid_points AS SELECT * FROM points WHERE id %% 6 = 0",
        "SET madlib_mop.segments = 2",
        f"SELECT madlib.training_preprocessor_dl('points', '\"{PACKED}\"', 'y', 'x', seed => 1)",
        f"SELECT madlib.validation_preprocessor_dl('valid_points', 'valid', 'y', 'x', '\"{PACKED}\"')",
        f"SELECT madlib.load_keras_model('arch', $${TINY % 8}$$)",
        f"SELECT madlib.load_keras_model('arch', $${TINY % 16}$$)",
        "CREATE TABLE mst (mst_key serial, model_id integer, compile_params varchar, fit_params varchar)",
        f"INSERT INTO mst (model_id, compile_params, fit_params) VALUES {values}",
        "CREATE TABLE mst_summary AS SELECT 'arch'::varchar AS model_arch_table, NULL::varchar AS object_table",
        f"SELECT madlib.madlib_keras_fit_multiple_model('\"{PACKED}\"', '\"{MODELS}\"', 'mst', 6, validation_table =>"
        " 'valid', metrics_compute_frequency => 1, seed => 3, schedule => 'rotation', metrics_every => 'visit',"
        f" policy => {_quoted(policy)}, description => {_quoted(CLASS)})",
    ]
    script(db, *(statement.replace("%%", "%") for statement in statements), role=owner)
    run_id = db.value("SELECT max(run_id) FROM madlib_mop.run")
    script(
        db,
        f"SELECT madlib_mop.clone_model({run_id}, 1, fit_params => 'batch_size=16', num_iterations => 1)",
        f"SELECT madlib_mop.resume({run_id})",
        role=owner,
    )
    return run_id


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
