"""The plan of a search: the arguments of madlib_keras_automl, checked before any work starts."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import OutputName, PastConfiguration, SearchPlan
from madlib_mop.catalog.rows.run import RunRow
from madlib_mop.driver.data.custom_functions import read_custom_functions
from madlib_mop.driver.data.selection_tables import stored_name
from madlib_mop.driver.experience.configurations import PastConfigurations, past_trials
from madlib_mop.driver.experience.runs import find_past, names_of_runs
from madlib_mop.driver.outputs.hopper import SUFFIXES
from madlib_mop.driver.outputs.search import SELECTION_SUFFIXES
from madlib_mop.driver.outputs.tables import MODEL_TABLES, SELECTION_TABLES, if_there, names_of, read_replace
from madlib_mop.driver.planning.architecture_fit import check_fit
from madlib_mop.driver.planning.early_decisions import plan_policy, plan_sample
from madlib_mop.driver.planning.hopper import RunPlan
from madlib_mop.driver.planning.label_fit import check_compile_params, weights_of_classes
from madlib_mop.driver.planning.run_data import Data, check_connections, read_data
from madlib_mop.driver.planning.selection import read_architecture
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import read_backend, read_settings
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.parameters.parser import CompileParams, FitParams
from madlib_mop.models.shapes import describe
from madlib_mop.search import Search, SearchSpace, make_search, method_name, parse_params

_ARCH = "model_arch_table"
_SELECTION = "model_selection_table"


class ParameterParser(Protocol):
    """The parser of parameters, with the caller's rights and custom functions; see `ConfigurationParser`."""

    custom_names: frozenset[str]

    def compile_params(self, text: str | None, where: str) -> CompileParams:
        """Parse compile parameters."""

    def fit_params(self, text: str | None, where: str) -> FitParams:
        """Parse fit parameters."""


def plan_automl(
    call: Call, record: Record, parser: ParameterParser, arch_table: Relation, model_ids: list[int]
) -> RunPlan:
    """Check the arguments of madlib_keras_automl and plan its run, which has no models yet.

    Parameters
    ----------
    call : Call
    record : Record
    parser : ParameterParser
    arch_table : Relation
        Table of architectures.
    model_ids : list of int
        The rows of it to try.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a, session = call.arguments, call.session
    method = method_name(a.get("automl_method"))
    params = parse_params(method, a.get("automl_params"))
    space = SearchSpace.read(model_ids, a.get("compile_params_grid"), a.get("fit_params_grid"))
    custom_names: set[str] = set()
    fits: list[FitParams] = []
    for compile_text, fit_text in space.examples():
        compile_params = parser.compile_params(compile_text, f"compile_params_grid results in {compile_text}")
        custom_names |= set(compile_params.custom_names)
        fit_params = parser.fit_params(fit_text, f"fit_params_grid results in {fit_text}")
        fits.append(fit_params)
        if fit_params.early_stopping is not None:
            raise InvalidParameter(
                f"fit_params_grid: a search decides itself when to stop a model. Received: {fit_text}",
                hint="Omit early_stopping; afterwards, train the best configuration with it.",
            )
    functions = read_custom_functions(session, a.get("object_table"), custom_names)
    random_state = secrets.randbelow(MAX_SEED) if a["random_state"] is None else a["random_state"]
    search = make_search(method, params, space, random_state)
    max_epochs = search.max_epochs
    frequency = _frequency(a.get("metrics_compute_frequency"), max_epochs)
    data = read_data(call, record)
    archs, weights, origins = {}, {}, {}
    for model_id in space.model_ids:
        read, blob = read_architecture(session, arch_table, model_id)
        archs[model_id] = json.dumps(read)
        if blob is not None:
            origins[model_id] = f"model_id {model_id}"
            weights[origins[model_id]] = blob
    backend = read_backend(record, session)
    check_fit([(model_id, json.loads(arch)) for model_id, arch in archs.items()], data.source, backend)
    shapes = [describe(check_architecture(json.loads(arch))) for arch in archs.values()]
    for compile_text in {compile_text for compile_text, _ in space.examples()}:
        where = f"compile_params_grid results in {compile_text}"
        for shape in shapes:
            check_compile_params(parser.compile_params(compile_text, where), shape, data.source)
    past = _past_experience(session, record, search, archs, functions.objects, data)
    class_weight = weights_of_classes(fits, data.source)
    replace, what = read_replace(a), "model_output_table"
    output = session.output(a.get(what), SUFFIXES, what, if_there(session, replace, MODEL_TABLES, what))
    there = if_there(session, replace, SELECTION_TABLES, _SELECTION)
    selection = session.output(a.get(_SELECTION), SELECTION_SUFFIXES, _SELECTION, there)
    _check_distinct(output, selection, a)
    settings = read_settings(record, session, data.source.n_here, bool(a.get("use_caching")))
    if settings.fused_training:
        session.notice("fused training: not used, a search adds and stops models one by one")
    check_connections(record, data.source, call.info.role, 0 if a["policy"] is None else 1)
    sample = plan_sample(session, a, data)
    summary = data.summary(
        model=a["model_output_table"],
        model_arch_table=a[_ARCH],
        automl_method=method,
        automl_params=a.get("automl_params") or params.text,
        random_state=None if a.get("random_state") is None else str(a["random_state"]),
        object_table=stored_name(a.get("object_table")),
        metrics_compute_frequency=frequency or search.usual_frequency,
        qualified_names=names_of(session, **data.tables, model_selection_table=selection, model_arch_table=arch_table),
    )
    planned = SearchPlan(
        method=method,
        params=params.text,
        budget_s=params.budget_s,
        random_state=random_state,
        model_ids=list(space.model_ids),
        compile_params_grid=a["compile_params_grid"],
        fit_params_grid=a.get("fit_params_grid"),
        archs={str(model_id): arch for model_id, arch in archs.items()},
        start_weights={str(model_id): origin for model_id, origin in origins.items()},
        custom_names=sorted(custom_names),
        selection=OutputName.of(selection),
        past=past,
        drawing=space.drawing,
    )
    run = RunRow(
        kind="automl",
        owner_oid=call.info.role_oid,
        owner=call.info.role,
        **data.run_columns(),
        model_output_table=str(output),
        model_selection_table=str(selection),
        model_arch_table=str(arch_table),
        num_iterations=max_epochs,
        metrics_compute_frequency=frequency,
        use_caching=bool(a.get("use_caching")),
        seed=random_state if a["seed"] is None else a["seed"],
        schedule=a["schedule"],
        n_models=0,
        n_threads=settings.trainer_threads,
        plan=data.plan(
            settings,
            output,
            class_weight=class_weight,
            summary=summary,
            search=planned,
            sample=sample,
            policy=plan_policy(call, settings),
        ),
    )
    return RunPlan(run, [], data.segments(sample), weights, functions=functions.objects, settings=data.settings,
        preprocessor=data.preprocessor,
    )  # fmt: skip


def _past_experience(
    session: CallerSession,
    record: Record,
    search: Search,
    archs: Mapping[int, str],
    functions: Mapping[str, bytes],
    data: Data,
) -> tuple[PastConfiguration, ...]:
    """Return the configurations of earlier runs that a search begins with, and write a NOTICE about them."""
    if search.params.start_from is None:
        return ()
    by_id = {model_id: json.loads(arch) for model_id, arch in archs.items()}
    configurations = PastConfigurations(record, search.space, by_id, functions)
    past = find_past(session, record, search.params, configurations, data.source, data.validation is not None)
    if past:
        trials = past_trials(past, search.space, functions)
        taught = make_search(search.name, search.params, search.space, search.random_state, trials)
        model = f"; the model of {search.name} begins with them as earlier results" if search.has_model else ""
        session.notice(
            f"start_from: {len(past)} configurations of {names_of_runs(sorted({one.run_id for one in past}))} lie in"
            f" the search space; the best {len(taught.tried_first)} are tried first{model}"
        )
    return past


def _frequency(value: int | None, max_epochs: int) -> int | None:
    if value is not None and not 1 <= value <= max_epochs:
        raise InvalidParameter(
            f"metrics_compute_frequency must be from 1 to the maximum number of iterations of a model ({max_epochs})."
            f" Received: {value}",
            hint="Omit it to compute metrics only when the search needs them.",
        )
    return value


def _check_distinct(output: Relation, selection: Relation, given: Mapping[str, Any]) -> None:
    """Reject two output names that need the same table."""
    tables = [output.with_suffix(suffix) for suffix in SUFFIXES]
    if {t.sql for t in tables} & {selection.with_suffix(suffix).sql for suffix in SELECTION_SUFFIXES}:
        raise InvalidParameter(
            f"model_selection_table and model_output_table (with its _info and _summary) must be different tables."
            f" Received: {given['model_selection_table']!r} and {given['model_output_table']!r}",
            hint="Choose another name for one of them.",
        )
