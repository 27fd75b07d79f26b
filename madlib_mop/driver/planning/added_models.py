"""Models that a command adds to a run: their parameters, checked like those of a call of fit."""

from dataclasses import dataclass, field

from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.model import ModelRow
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.packed import read_packed_table
from madlib_mop.driver.planning.data_fit import check_compile_params, with_class_weights
from madlib_mop.driver.planning.early_stopping import check_metric
from madlib_mop.driver.planning.selection import check_selection, origin_of, read_selection
from madlib_mop.driver.planning.warm_start import backend_of
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.changes import NewModel
from madlib_mop.models.configuration import Configuration


@dataclass(frozen=True)
class AddedModels:
    """The models of a model selection table, with start weights by origin."""

    models: list[NewModel]
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
    for mst_key, c in selection.configurations.items():
        for function in c.custom_names:
            if known.get(function) != selection.functions.objects[function]:
                raise InvalidParameter(
                    f"model_selection_table: mst_key {mst_key} uses a custom function that run {run.run_id} does not"
                    f" have as it is registered now. Received: {function!r}",
                    hint="A run has the custom functions of its first configurations; start a new run for others.",
                )
    source = read_packed_table(session, run.plan.training.sql_name, "source_table")
    frequency = run.metrics_compute_frequency or run.num_iterations
    checked = check_selection(
        selection, source, backend_of(run), None, run.num_iterations, frequency, run.validation_table is not None
    )
    has_weights = {model_id for model_id, blob in selection.weights.items() if blob is not None}
    models = [
        NewModel(c, origin_of(c.model_id) if c.model_id in has_weights else None, checked.early_stopping[key])
        for key, c in checked.configurations.items()
    ]
    return AddedModels(models, selection.start_weights)


def changed_configuration(
    session: CallerSession,
    record: Record,
    run: RunRow,
    model: ModelRow,
    compile_params: str | None,
    fit_params: str | None,
) -> Configuration:
    """Return a model's configuration with other parameters for compile or fit, None for those of the model.

    Raises
    ------
    MopError
        If they cannot be read, do not fit the run's data, or use a custom function that the run does not have.
    """
    compile_params = model.compile_params if compile_params is None else compile_params
    fit_params = model.fit_params if fit_params is None else fit_params
    new = Configuration.checked(
        model.model_id, compile_params, fit_params, model.model_arch, record.custom_functions(run.run_id)
    )
    if fit_params != model.fit_params and new.fit.early_stopping is not None:
        raise InvalidParameter(
            f"fit_params: a clone stops early like its original. Received: {fit_params}",
            hint="Omit early_stopping, or add the configuration with add_models.",
        )
    source = read_packed_table(session, run.plan.training.sql_name, "source_table")
    check_compile_params(new.compiled, new.shape, source)
    if model.early_stopping is not None:
        check_metric(model.early_stopping["metric"], model.mst_key, new)
    weighted, _ = with_class_weights({model.mst_key: new}, source)
    return weighted[model.mst_key]
