"""The plan of a search: the arguments of madlib_keras_automl, checked before any work starts."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from madlib_mop.catalog.names import Relation
from madlib_mop.catalog.record import Record
from madlib_mop.catalog.rows.plan import GivenConfiguration, OutputName, PastConfiguration, SearchPlan
from madlib_mop.driver.data.custom_functions import custom_names, read_custom_functions
from madlib_mop.driver.data.library_tables import stored_name
from madlib_mop.driver.experience.configurations import PastConfigurations, past_trials
from madlib_mop.driver.experience.runs import find_past, names_of_runs
from madlib_mop.driver.outputs.hopper import SUFFIXES
from madlib_mop.driver.outputs.tables import SELECTION_SUFFIXES, SELECTION_TABLES, if_there
from madlib_mop.driver.planning.plan import RunPlan, choose_seed, complete_plan, find_output, read_inputs
from madlib_mop.driver.planning.run_data import Data
from madlib_mop.driver.planning.selection import (
    ModelSelection,
    check_model_ids,
    notice_recorded,
    origin_of,
    read_architecture,
    read_architecture_table,
    read_configurations,
)
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.sizes import size_of
from madlib_mop.search import (
    Search,
    SearchParams,
    SearchSpace,
    costs_of,
    make_search,
    method_name,
    parse_params,
    read_constraints,
    read_objective,
)

_SELECTION = "model_selection_table"
_TRY_FIRST = "automl_params: try_first"
_MOST_LISTED = 5  # architectures in a message


def plan_search(call: Call, record: Record) -> RunPlan:
    """Check the arguments of madlib_keras_automl and plan its run, which has no models yet.

    Raises
    ------
    MopError
        For the first problem found; nothing was changed.
    """
    a, session = call.arguments, call.session
    arch_table = read_architecture_table(session, a.get("model_arch_table"))
    model_ids = check_model_ids(session, arch_table, a.get("model_id_list"))
    objective, limits = read_objective(a.get("objective")), read_constraints(a.get("constraints"))
    model_ids = _within(session, arch_table, model_ids, limits) if limits else model_ids
    known = custom_names(session, a.get("object_table"))
    method = method_name(a.get("automl_method"))
    params = _limited(parse_params(method, a.get("automl_params")), a.get("max_seconds"))
    space = SearchSpace.read(model_ids, a.get("compile_params_grid"), a.get("fit_params_grid"))
    examples = _read_examples(session, space, known)
    used = {name for example in examples for name in example.custom_names}
    given = _read_given(session, params, arch_table, known)
    used |= {name for one in given for name in one.custom_names}
    functions = read_custom_functions(session, a.get("object_table"), used)
    search = make_search(method, params, space, choose_seed(a["random_state"]))
    if len(given) > search.n_configurations:
        raise InvalidParameter(
            f"{_TRY_FIRST} names {len(given)} configurations, but the search tries {search.n_configurations}",
            hint="Name some of them, as in try_first='1, 4 of configs', or use a larger num_configs.",
        )
    frequency = _frequency(a.get("metrics_compute_frequency"), search.max_epochs)
    inputs = read_inputs(call, record)
    ids = sorted({*space.model_ids, *(one.model_id for one in given)})
    read = {model_id: read_architecture(session, arch_table, model_id) for model_id in ids}
    archs = {model_id: arch for model_id, (arch, _) in read.items()}
    weights = {model_id: blob for model_id, (_, blob) in read.items()}
    output = find_output(inputs)
    target = _find_target(session, a, output)
    of_space = {model_id: archs[model_id] for model_id in space.model_ids}
    of_archs = [example.of_architecture(*item) for example in examples for item in of_space.items()]
    of_archs += [one.of_architecture(one.model_id, archs[one.model_id]) for one in given]
    object_table = stored_name(a.get("object_table"))
    selection = ModelSelection(
        target, arch_table, a["model_arch_table"], object_table, dict(enumerate(of_archs)), weights, functions
    )
    planned = SearchPlan(
        method=method,
        params=params.text,
        budget_s=params.budget_s,
        random_state=search.random_state,
        model_ids=list(space.model_ids),
        compile_params_grid=a["compile_params_grid"],
        fit_params_grid=a.get("fit_params_grid"),
        archs={str(model_id): json.dumps(arch) for model_id, arch in archs.items()},
        start_weights={str(key): origin_of(key) for key, blob in weights.items() if blob is not None},
        custom_names=sorted(used),
        selection=OutputName.of(target),
        past=_past_experience(session, record, search, of_space, functions.objects, inputs.data),
        drawing=space.drawing,
        is_paced=search.is_paced,
        given=tuple(GivenConfiguration(one.model_id, one.compile_params, one.fit_params) for one in given),
        sampler_version=search.sampler_version,
        objective=list(objective),
        costs={str(key): _costs(key, arch, objective) for key, arch in archs.items()} if objective else {},
    )
    return complete_plan(
        inputs,
        "automl",
        selection,
        output,
        search.max_epochs,
        frequency,
        search=planned,
        automl_method=method,
        automl_params=a.get("automl_params") or params.text,
        random_state=None if a.get("random_state") is None else str(a["random_state"]),
        metrics_compute_frequency=frequency or search.usual_frequency,
    )


def _costs(model_id: int, arch: Node, names: Collection[str]) -> tuple[int, ...]:
    """Return the costs of an architecture with these names. Raises MopError if its JSON does not say them."""
    with _located(f"model_id {model_id}"):
        size = size_of(check_architecture(arch))
    if size.not_counted:
        raise InvalidParameter(
            f"objective and constraints: {' and '.join(names)} of model_id {model_id} cannot be counted, because of"
            f" {', '.join(sorted(size.not_counted))}",
            hint="Omit this architecture, or objective and constraints. Usual layers, and inputs of a fixed shape, can"
            " be counted.",
        )
    return costs_of(size, names)


def _within(session: CallerSession, arch_table: Relation, model_ids: list[int], limits: Mapping[str, int]) -> list[int]:
    """Return the architectures that satisfy the constraints, and write a NOTICE about the others."""
    costs = {}
    for model_id in dict.fromkeys(model_ids):
        arch, _ = read_architecture(session, arch_table, model_id)
        costs[model_id] = dict(zip(limits, _costs(model_id, arch, limits), strict=True))
    above = {key for key, of in costs.items() if any(of[name] > most for name, most in limits.items())}
    if not above:
        return model_ids
    listed = [
        f"model_id {key} has {', '.join(f'{name} {value:,}' for name, value in costs[key].items())}"
        for key in sorted(above)[:_MOST_LISTED]
    ]
    more = f" and {len(above) - _MOST_LISTED} more" if len(above) > _MOST_LISTED else ""
    if len(above) == len(costs):
        raise InvalidParameter(
            f"no architecture of model_id_list satisfies the constraints: {'; '.join(listed)}{more}",
            hint="Raise the limits, or add smaller architectures.",
        )
    session.notice(f"constraints: {len(above)} of {len(costs)} architectures are left out: {'; '.join(listed)}{more}")
    return [model_id for model_id in model_ids if model_id not in above]


def _limited(params: SearchParams, max_seconds: float | None) -> SearchParams:
    """Return the parameters of a search whose time is limited by max_seconds, of which budget_s is an older name."""
    if max_seconds is None:
        return params
    if params.budget_s is not None:
        raise InvalidParameter(
            f"max_seconds and budget_s of automl_params are two names of one limit. Received: max_seconds"
            f" {max_seconds:g} and budget_s={params.budget_s:g}",
            hint="Omit budget_s.",
        )
    return replace(params, budget_s=max_seconds)


def _read_examples(session: CallerSession, space: SearchSpace, known: frozenset[str]) -> list[Configuration]:
    """Return configurations in which all values of a space occur, parsed, and yet without an architecture."""
    examples = []
    for compile_text, fit_text in space.examples():
        example = Configuration(0, compile_text, fit_text, {}, known)
        with _located(f"compile_params_grid results in {compile_text}"):
            _ = example.compiled
        with _located(f"fit_params_grid results in {fit_text}"):
            stops_early = example.fit.early_stopping is not None
        if stops_early:
            raise _stops_early("fit_params_grid", fit_text)
        examples.append(example)
    notice_recorded(session, examples)
    return examples


def _read_given(
    session: CallerSession, params: SearchParams, arch_table: Relation, known: frozenset[str]
) -> list[Configuration]:
    """Return the configurations that ``try_first`` names, parsed, and yet without an architecture."""
    if params.given is None:
        return []
    table, keys = params.given
    rows = read_configurations(session, table, arch_table, _TRY_FIRST)
    if missing := sorted(set(keys) - {row["mst_key"] for row in rows}):
        raise InvalidParameter(
            f"{_TRY_FIRST}: {table} has no mst_key {missing[0]}. Received: {', '.join(map(str, keys))}",
            hint="Name keys that it has, or the table alone for all.",
        )
    given = []
    for row in rows:
        if keys and row["mst_key"] not in keys:
            continue
        with _located(f"{_TRY_FIRST}: mst_key {row['mst_key']}"):
            one = Configuration.checked(row["model_id"], row["compile_params"], row["fit_params"], {}, known)
        if one.fit.early_stopping is not None:
            raise _stops_early(_TRY_FIRST, one.fit_params)
        given.append(one)
    return given


def _stops_early(what: str, fit_text: str) -> InvalidParameter:
    return InvalidParameter(
        f"{what}: a search decides itself when to stop a model. Received: {fit_text}",
        hint="Omit early_stopping; afterwards, train the best configuration with it.",
    )


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Add the location to an error's message."""
    try:
        yield
    except MopError as error:
        error.message = f"{where}: {error.message}"
        raise


def _find_target(session: CallerSession, a: Mapping[str, Any], output: Relation) -> Relation:
    """Return the model selection table to write, which must need no table of the output's."""
    there = if_there(session, bool(a.get("replace")), SELECTION_TABLES, _SELECTION)
    target = session.output(a.get(_SELECTION), SELECTION_SUFFIXES, _SELECTION, there)
    tables = {output.with_suffix(suffix).sql for suffix in SUFFIXES}
    if tables & {target.with_suffix(suffix).sql for suffix in SELECTION_SUFFIXES}:
        raise InvalidParameter(
            f"model_selection_table and model_output_table (with its _info and _summary) must be different tables."
            f" Received: {a[_SELECTION]!r} and {a['model_output_table']!r}",
            hint="Choose another name for one of them.",
        )
    return target


def _past_experience(
    session: CallerSession,
    record: Record,
    search: Search,
    archs: Mapping[int, Node],
    functions: Mapping[str, bytes],
    data: Data,
) -> tuple[PastConfiguration, ...]:
    """Return the configurations of earlier runs that a search begins with, and write a NOTICE about them."""
    if search.params.start_from is None:
        return ()
    configurations = PastConfigurations(record, search.space, archs, functions)
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
