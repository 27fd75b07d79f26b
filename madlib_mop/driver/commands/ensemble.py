"""The command make_ensemble: models of a table, chosen by their predictions of a validation table, as one model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from mop_backend.weights import JoinedWeights, ModelWeights

from madlib_mop.catalog.names import Relation
from madlib_mop.driver.commands.evaluate import EvaluationResult, evaluate_rows
from madlib_mop.driver.data.custom_functions import functions_of_model
from madlib_mop.driver.ensembles.candidates import Candidate, kinds_of, read_candidates
from madlib_mop.driver.ensembles.criterion import OutputKind, targets_of, without_logits
from madlib_mop.driver.ensembles.predictions import predict_candidates
from madlib_mop.driver.ensembles.selection import BlockLoss, EnsembleSelection, select, sum_of_losses
from madlib_mop.driver.inference.described import describe_model
from madlib_mop.driver.inference.labelled_rows import LabelledRows, find_labelled
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.trained_by import find_run
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.outputs.ensemble import EnsembleModel, member_columns, write_ensemble
from madlib_mop.driver.outputs.hopper import SUFFIXES
from madlib_mop.driver.outputs.tables import MODEL_TABLES, if_there
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.ensemble import EnsembleMember, ensemble_architecture

_WHAT = "validation_table"


@dataclass(frozen=True)
class _Built:
    """An ensemble.

    Attributes
    ----------
    model : TrainedModel
    text : str
        Its architecture, as Keras writes it.
    weights : bytes
    run_ids : mapping of int to (int or None)
        The run that trained each member, by ``mst_key``; None if the caller may see no such run.
    """

    model: TrainedModel
    text: str
    weights: ModelWeights
    run_ids: Mapping[int, int | None]


def make_ensemble(call: Call) -> list[dict[str, Any]]:
    """Choose the members, write the ensemble as a table with one model, and return a row for each member."""
    a, session, started = call.arguments, call.session, datetime.now(UTC)
    there = if_there(session, a["replace"], MODEL_TABLES, "output_table")
    output = session.output(a.get("output_table"), SUFFIXES, "output_table", there)
    table = find_labelled(session, a.get(_WHAT), _WHAT)
    candidates = read_candidates(session, a.get("model_table"), a.get("mst_keys"))
    source = candidates[0].model.place.relation
    _check(session, a, output, source, candidates)
    packed = table.rows_of([candidate.model for candidate in candidates])[0]  # of one table, so of one encoding
    with LocalTrainer(session) as trainer:
        library = predict_candidates(session, trainer, candidates, packed)
        kinds = kinds_of(library.candidates)
        selection = select(
            library.predictions,
            _block_loss(a["metric"], kinds, library.predictions[0], library.labels, packed),
            a["n_members"],
        )
        chosen = [(library.candidates[i], count) for i, count in selection.counts.items()]
        best = library.candidates[selection.order[0]]
        chosen.sort(key=lambda pair: pair[0] is not best)  # the best gives the names of inputs and outputs
        built = _build(session, trainer, chosen)
        evaluation = evaluate_rows(session, trainer, built.model, packed, built.weights)
    chosen.sort(key=lambda pair: (-pair[1], pair[0].mst_key))
    numbers = {c.mst_key: i for i, c in enumerate(library.candidates)}
    values = [_shown(a["metric"], selection.losses[numbers[c.mst_key]]) for c, _ in chosen]
    info = _info(session, a["metric"], source, built, evaluation, chosen, values)
    ended = datetime.now(UTC)
    ensemble = EnsembleModel(built.text, built.weights, info, built.model.outputs, packed.relation, started, ended)
    write_ensemble(session, output, source, ensemble, a["replace"])
    found = _shown(a["metric"], selection.loss)
    session.notice(_notice(a["metric"], output, packed, selection, library.candidates, found))
    total = sum(count for _, count in chosen)
    return [
        {
            "mst_key": candidate.mst_key,
            "copies": count,
            "weight": count / total,
            "validation_metric": value,
            "ensemble_metric": found,
        }
        for (candidate, count), value in zip(chosen, values, strict=True)
    ]


def _check(
    session: CallerSession,
    arguments: dict[str, Any],
    output: Relation,
    source: Relation,
    candidates: Sequence[Candidate],
) -> None:
    """Raise an error about arguments that do not fit each other."""
    if session.existing(output.sql) == session.existing(source.sql):
        raise InvalidParameter(
            f"output_table: {output} has the models of the ensemble, so it cannot be replaced by it."
            f" Received: {arguments.get('output_table')!r}",
            hint="Choose another name.",
        )
    if arguments["metric"] == "accuracy":
        _check_classes(source, [one.name for one in candidates[0].model.outputs], kinds_of(candidates))


def _check_classes(source: Relation, dependent: Sequence[str], kinds: Sequence[OutputKind]) -> None:
    """Raise an error if an output is no class."""
    numbers = [
        name for name, kind in zip(dependent, kinds, strict=True) if kind not in (OutputKind.CLASSES, OutputKind.UNITS)
    ]
    if numbers:
        found = "predicts numbers" if len(numbers) == len(kinds) else f"also predicts a number, {numbers[0]!r}"
        raise InvalidParameter(
            f"metric 'accuracy' is for classes, but {source} {found}. Received: 'accuracy'",
            hint="Use metric => 'loss'.",
        )


def _block_loss(
    metric: str,
    kinds: Sequence[OutputKind],
    predictions: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    packed: LabelledRows,
) -> BlockLoss:
    """Return the function that `select` makes least: the sum of the outputs' losses, or the mean share of errors."""
    targets = targets_of(kinds, predictions, labels, packed.dependent)

    def block_loss(start: int, stop: int, means: list[np.ndarray]) -> float:
        if metric == "accuracy":
            errors = [target.errors(start, stop, mean) for target, mean in zip(targets, means, strict=True)]
            return sum(errors) / len(errors)
        return sum_of_losses(targets, start, stop, means)

    return block_loss


def _build(session: CallerSession, trainer: LocalTrainer, chosen: Sequence[tuple[Candidate, int]]) -> _Built:
    """Return the ensemble."""
    members = [
        EnsembleMember(c.model.label, c.model.configuration.arch, count, c.activations) for c, count in chosen
    ]
    found = ensemble_architecture(members)
    described = describe_model(trainer, check_architecture(found.arch))
    by_name = {name: candidate for name, (candidate, _) in zip(found.names, chosen, strict=True)}
    order = dict.fromkeys(layer.name.split("/")[0] for layer in described.layers)
    run_ids: dict[int, int | None] = {}

    def read(member: Candidate) -> ModelWeights:
        found = read_weights(session, member.model)
        run = find_run(session, member.model.place.relation, member.mst_key, found.digest())
        run_ids[member.mst_key] = None if run is None else run.run_id
        return found

    weights = JoinedWeights([read(by_name[name]) for name in order])
    best = chosen[0][0]
    described.check_weights(weights.n_bytes, f"the weights of the members of {best.model.place.relation}")
    old = best.model.configuration
    params = old.compile_params if not any(best.activations) else without_logits(old.compiled)
    configuration = Configuration.recorded(0, params, old.fit_params, check_architecture(described.text))
    custom = functions_of_model(session, best.model.place.relation, best.model.object_table, configuration)
    model = replace(best.model, label="the ensemble", configuration=configuration, custom=custom)
    return _Built(model, described.text, weights, run_ids)


def _info(
    session: CallerSession,
    metric: str,
    source: Relation,
    built: _Built,
    evaluation: EvaluationResult,
    chosen: Sequence[tuple[Candidate, int]],
    values: Sequence[float],
) -> dict[str, Any]:
    keys, counts = [c.mst_key for c, _ in chosen], [count for _, count in chosen]
    model, run_ids = built.model, [built.run_ids.get(key) for key in keys]
    return {
        "compile_params": model.configuration.compile_params,
        "fit_params": model.configuration.fit_params,
        "model_size": built.weights.n_bytes / 1024.0,
        "metrics_type": model.metrics_type,
        "loss_type": model.loss_type,
        "validation_loss_final": evaluation.loss,
        "validation_loss": [evaluation.loss],
        "validation_metrics_final": evaluation.metrics[0] if evaluation.metrics else None,
        "validation_metrics": evaluation.metrics[:1] or None,
        **member_columns(session.qualified(source), keys, counts, metric, values, run_ids),
    }


def _shown(metric: str, loss: float) -> float:
    return 1.0 - loss if metric == "accuracy" else loss


def _notice(
    metric: str,
    output: Relation,
    packed: LabelledRows,
    selection: EnsembleSelection,
    candidates: Sequence[Candidate],
    found: float,
) -> str:
    best = selection.order[0]
    return (
        f"make_ensemble: {output.written} averages {len(selection.counts)} of {len(candidates)} models: {metric}"
        f" {found:.6g} on {packed.relation.written}; the single model with the"
        f" {'highest accuracy' if metric == 'accuracy' else 'lowest loss'}, mst_key {candidates[best].mst_key}, has"
        f" {_shown(metric, selection.losses[best]):.6g}"
    )
