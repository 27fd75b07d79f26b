"""The command madlib_keras_evaluate: loss and metrics of one trained model over a table."""

from dataclasses import dataclass, replace

from mop_backend.messages import EvaluatedMembers, EvaluateRequest, MetricResults, MetricsRequest, ModelStart
from mop_backend.weights import ModelWeights

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.custom_functions import functions_of_model
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.evaluation.metric_sums import add
from madlib_mop.driver.inference.labelled_rows import LabelledRows, RowsPart, find_labelled
from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel, read_weights
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.trainer import LocalTrainer, gpus_of_call
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import Unsupported


@dataclass(frozen=True)
class EvaluationResult:
    """What was found.

    Attributes
    ----------
    loss : float
    metrics : list of float
        In the order of compile's; all of the first output come first.
    """

    loss: float
    metrics: list[float]


def madlib_keras_evaluate(call: Call) -> None:
    """Evaluate a model over all rows of a table, and write one row."""
    a, session = call.arguments, call.session
    gpus = gpus_of_call(session, a.get("use_gpus"))
    output = session.output(a.get("output_table"), ("",), "output_table")
    table = find_labelled(session, a.get("test_table"), "test_table")
    model = prepare(session, find_model(session, call.function, a.get("model_table"), a.get("mst_key")))
    (rows,) = table.rows_of([model])
    with LocalTrainer(session, gpus=gpus) as trainer:
        evaluation = evaluate_rows(session, trainer, model, rows)
    _write(session, output, model, evaluation)


def prepare(session: CallerSession, model: TrainedModel) -> TrainedModel:
    """Return a model with its custom functions. Raises MopError if it cannot be evaluated."""
    if not model.configuration.compile_params:
        raise Unsupported(
            f"{model.label} was imported without compile parameters, so it has no loss and no metrics",
            hint="Import it with compile_params => $$loss='mse', optimizer='sgd', metrics=['mae']$$.",
        )
    place = model.place.version if isinstance(model.place, RegisteredVersion) else model.place.relation
    custom = functions_of_model(session, place, model.object_table, model.configuration)
    return replace(model, custom=custom)


def evaluate_rows(
    session: CallerSession,
    trainer: LocalTrainer,
    model: TrainedModel,
    rows: LabelledRows,
    weights: ModelWeights | None = None,
) -> EvaluationResult:
    """Evaluate one part at a time in the trainer's memory; return the means over all parts.

    ``weights`` are those of a model that is in no table yet.
    """
    sums, weights = [], read_weights(session, model) if weights is None else weights
    for part in rows.parts:
        _send_part(trainer, rows, part)
        key = str(part.number)
        start = ModelStart(model.request(compiled=True), n_blobs=len(weights.lengths), has_weights=True)
        answer = trainer.ask_for(EvaluatedMembers, EvaluateRequest((start,), key), weights)
        sums += [figures.sums for figures in answer.members if figures is not None]
        if part is not rows.parts[-1]:
            trainer.ask({"op": "drop_shard", "shard": key})
    total = add(sums)
    if total.all_means:
        loss, *metrics = total.means().values()
        return EvaluationResult(loss, metrics)
    request = MetricsRequest(model.request(compiled=True), key, (total.as_request(),))
    found = trainer.ask_for(MetricResults, request).results[0]
    return EvaluationResult(found.loss, list(found.metrics.values()))


def _send_part(trainer: LocalTrainer, rows: LabelledRows, part: RowsPart) -> None:
    key = str(part.number)
    trainer.post(
        {
            "op": "shard_begin",
            "shard": key,
            "n_x": len(rows.independent),
            "n_y": len(rows.dependent),
            "normalizing_const": rows.normalizing_const,
            "index_inputs": list(rows.index_inputs),
            "names": rows.columns,
        }
    )
    for shapes, blobs in rows.buffers(part):
        trainer.post({"op": "shard_rows", "shapes": shapes}, blobs)
    trainer.ask({"op": "shard_end", "shard": key})


def _write(session: CallerSession, output: Relation, model: TrainedModel, evaluation: EvaluationResult) -> None:
    session.execute(
        statement(
            "CREATE TABLE {t} (loss pg_catalog.float8, metric pg_catalog.float8, metrics_type pg_catalog.text[],"
            " loss_type pg_catalog.text, metrics pg_catalog.float8[])",
            t=output,
        )
        + table_form(session)
    )
    metrics = evaluation.metrics or None
    session.execute(
        statement("INSERT INTO {t} VALUES ($1, $2, $3, $4, $5)", t=output),
        [evaluation.loss, metrics and metrics[0], metrics and model.metrics_type, model.loss_type, metrics],
        ["float8", "float8", "text[]", "text", "float8[]"],
    )
