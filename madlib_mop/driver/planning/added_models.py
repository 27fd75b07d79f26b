"""Models that a command adds to a run: their parameters, checked like those of a call of fit."""

from dataclasses import dataclass, field, replace

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.base import Json
from madlib_mop.catalog.rows.model import ModelRow, Parameters
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.packed import read_packed_table
from madlib_mop.driver.planning.architecture_fit import check_fit
from madlib_mop.driver.planning.early_stopping import check_metric, plan_early_stopping
from madlib_mop.driver.planning.label_fit import check_compile_params, check_labels, with_class_weights
from madlib_mop.driver.planning.selection import Configuration, read_selection
from madlib_mop.driver.planning.warm_start import backend_of
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.functions import flat_names
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params


@dataclass(frozen=True)
class AddedModel:
    """A model to add.

    Attributes
    ----------
    parameters : Parameters
    start_weights : str or None
        Origin of its start weights, without the number of the command; see `RunCommands.issue`.
    early_stopping : dict or None
        As in `ModelRow`.
    """

    parameters: Parameters
    start_weights: str | None
    early_stopping: Json | None


@dataclass(frozen=True)
class AddedModels:
    """The models of a model selection table, with start weights by origin."""

    models: list[AddedModel]
    weights: dict[str, bytes] = field(repr=False)


def read_added_models(session: CallerSession, record: Record, run: RunRow, name: str | None) -> AddedModels:
    """Read a model selection table with the caller's rights.

    Raises
    ------
    MopError
        As for a call of fit; and if a configuration uses a custom function that the run does not have.
    """
    selection = read_selection(session, name)
    known = record.custom_functions(run.run_id)
    for c in selection.configurations:
        for function in c.custom_names:
            if known.get(function) != selection.functions.objects[function]:
                raise InvalidParameter(
                    f"model_selection_table: mst_key {c.mst_key} uses a custom function that run {run.run_id} does not"
                    f" have as it is registered now. Received: {function!r}",
                    hint="A run has the custom functions of its first configurations; start a new run for others.",
                )
    source = read_packed_table(session, run.plan.training.sql_name, "source_table")
    check_fit([(c.model_id, c.arch) for c in selection.configurations], source, backend_of(run))
    frequency = run.metrics_compute_frequency or run.num_iterations
    stops = plan_early_stopping(None, selection.configurations, run.num_iterations, frequency,
                                run.validation_table is not None)  # fmt: skip
    check_labels(selection.configurations, source)
    configurations, _ = with_class_weights(selection.configurations, source)
    origins = {model_id: f"model_id {model_id}" for model_id, blob in selection.weights.items() if blob is not None}
    models = [AddedModel(_parameters(c), origins.get(c.model_id), stops[c.mst_key]) for c in configurations]
    blobs = {origin: selection.weights[model_id] for model_id, origin in origins.items()}
    return AddedModels(models, {origin: blob for origin, blob in blobs.items() if blob is not None})


def changed_parameters(
    session: CallerSession,
    record: Record,
    run: RunRow,
    model: ModelRow,
    compile_params: str | None,
    fit_params: str | None,
) -> Parameters:
    """Return a model's parameters with others for compile or fit, None for those of the model.

    Raises
    ------
    MopError
        If they cannot be read, do not fit the run's data, or use a custom function that the run does not have.
    """
    compile_params = model.compile_params if compile_params is None else compile_params
    fit_params = model.fit_params if fit_params is None else fit_params
    parsed = parse_compile_params(compile_params, record.custom_functions(run.run_id))
    if fit_params != model.fit_params and parse_fit_params(fit_params).early_stopping is not None:
        raise InvalidParameter(
            f"fit_params: a clone stops early like its original. Received: {fit_params}",
            hint="Omit early_stopping, or add the configuration with add_models.",
        )
    source = read_packed_table(session, run.plan.training.sql_name, "source_table")
    check_compile_params(parsed, model.model_arch, source)
    loss, metrics = ", ".join(flat_names(parsed.loss)), list(parsed.metric_names) or None
    new = Configuration(
        model.mst_key, model.model_id, compile_params, fit_params, model.model_arch, loss, metrics, parsed.custom_names
    )
    if model.early_stopping is not None:
        check_metric(model.early_stopping["metric"], new)
    ((weighted,), _) = with_class_weights([new], source)
    return _parameters(replace(new, fit_params=weighted.fit_params))


def _parameters(c: Configuration) -> Parameters:
    return Parameters(
        model_id=c.model_id,
        compile_params=c.compile_params,
        fit_params=c.fit_params,
        model_arch=c.arch,
        loss_type=c.loss_type,
        metrics_type=c.metrics_type,
        hyper_parameters=c.hyper_parameters,
    )
