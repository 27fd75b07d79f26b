"""The command madlib_keras_evaluate: loss and metrics of one trained model over a packed table."""

from contextlib import closing
from dataclasses import dataclass, replace

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.custom_functions import functions_of_model
from madlib_mop.driver.data.engine import table_form
from madlib_mop.driver.data.packed import PackedTable, Shard, read_packed_table
from madlib_mop.driver.evaluation.metric_sums import add
from madlib_mop.driver.inference.fits import check_preprocessor, check_test_table
from madlib_mop.driver.inference.model import RegisteredVersion, TrainedModel, read_weights
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.trainer import LocalTrainer, gpus_of_call
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import NotReady, Unsupported


@dataclass(frozen=True)
class Evaluation:
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
    """Evaluate a model over all rows of a packed table, and write one row."""
    a, session = call.arguments, call.session
    gpus = gpus_of_call(session, a.get("use_gpus"))
    output = session.output(a.get("output_table"), ("",), "output_table")
    packed = read_packed_table(session, a.get("test_table"), "test_table")
    model = find_model(session, call.function, a.get("model_table"), a.get("mst_key"))
    model = prepare(session, model, packed)
    with LocalTrainer(session, gpus=gpus) as trainer:
        evaluation = evaluate_shards(session, trainer, model, packed)
    _write(session, output, model, evaluation)


def prepare(session: CallerSession, model: TrainedModel, packed: PackedTable) -> TrainedModel:
    """Check that a packed table fits a model; return the model with its custom functions. Raises MopError."""
    if model.compile_params is None:
        raise Unsupported(
            f"{model.label} was imported without compile parameters, so it has no loss and no metrics",
            hint="Import it with compile_params => $$loss='mse', optimizer='sgd', metrics=['mae']$$.",
        )
    check_preprocessor(session, model, packed)
    check_test_table(model, packed)
    place = model.place.version if isinstance(model.place, RegisteredVersion) else model.place.relation
    custom = functions_of_model(session, place, model.object_table, model.compile_params)
    return replace(model, custom=custom)


def evaluate_shards(
    session: CallerSession,
    trainer: LocalTrainer,
    model: TrainedModel,
    packed: PackedTable,
    weights: bytes | None = None,
    what: str = "test_table",
) -> Evaluation:
    """Evaluate one shard at a time in the trainer's memory; return the sums over all shards.

    ``weights`` are those of a model that is in no table yet; ``what`` is the argument that named the packed table.
    """
    sums, weights = [], read_weights(session, model) if weights is None else weights
    shards = [shard for shard in packed.shards if shard.n_rows]
    for shard in shards:
        _send_shard(session, trainer, packed, shard, what)
        key = str(shard.segment_id)
        request = {"op": "evaluate", "model": model.request(compiled=True), "shard": key, "has_weights": True}
        answer, _ = trainer.ask(request, [weights])
        sums.append(answer["sums"])
        if shard is not shards[-1]:
            trainer.ask({"op": "drop_shard", "shard": key})
    total = add(sums)
    if total.all_means:
        loss, *metrics = total.means().values()
        return Evaluation(loss, metrics)
    request = {"op": "metric_results", "model": model.request(compiled=True), "shard": key}
    (found,) = trainer.ask({**request, "sums": [total.as_request()]})[0]["results"]
    return Evaluation(found["loss"], list(found["metrics"].values()))


def _send_shard(
    session: CallerSession, trainer: LocalTrainer, packed: PackedTable, shard: Shard, what: str
) -> None:
    key, n_columns, n_rows = str(shard.segment_id), len(packed.columns), 0
    trainer.post(
        {
            "op": "shard_begin",
            "shard": key,
            "n_x": len(packed.independent),
            "n_y": len(packed.dependent),
            "normalizing_const": packed.normalizing_const,
            "index_inputs": list(packed.index_inputs),
            "names": packed.columns,
        }
    )
    with closing(session.stream(packed.query, [shard.key_there], ["integer"], batch_rows=1)) as buffers:
        for buffer in buffers:
            blobs = [buffer.bytes_of(f"b{i}").data for i in range(n_columns)]
            shapes = [buffer.values_of(f"s{i}")[0] for i in range(n_columns)]
            trainer.post({"op": "shard_rows", "shapes": shapes}, blobs)
            n_rows += shapes[0][0] if shapes[0] and isinstance(shapes[0][0], int) else 0  # the trainer reports others
    if n_rows != shard.n_rows:  # this transaction's snapshot at a host is older than the rows
        raise NotReady(
            f"{what}: segment {shard.segment_id} of {packed.relation} has {shard.n_rows} rows, but this"
            f" transaction can see {n_rows}",
            hint="COMMIT first: this transaction's snapshot at that host is older than the packed table.",
        )
    trainer.ask({"op": "shard_end", "shard": key})


def _write(session: CallerSession, output: Relation, model: TrainedModel, evaluation: Evaluation) -> None:
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
