"""The command deploy: an alias gets a version, if a metric of the version on a table is good enough."""

import json
import math
from typing import Any

from madlib_mop.driver.commands.evaluate import evaluate_rows, prepare
from madlib_mop.driver.inference.labelled_rows import LabelledRows, find_labelled
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.registered import read_registered
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.registry.registering import check_registry
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.parser import higher_is_better

_CHANGE = (
    "INSERT INTO madlib_mop.registry_change (change, name, alias, version, reason, details)"
    " VALUES ('deploy', $1, $2, $3, $4, $5::pg_catalog.jsonb)"
)
_CURRENT = "SELECT version FROM madlib_mop.model_alias WHERE name = $1 AND alias = $2"
_MAY_DEPLOY = (
    "SELECT madlib_mop_calls._model_right(owner, name, '{deploy}') AS may FROM madlib_mop.registered_model"
    " WHERE name = $1"
)


def deploy(call: Call) -> bool:
    """Give the alias the version, unless a condition is not met; return whether the alias has it now."""
    a, session = call.arguments, call.session
    check_registry(session)
    evidence = None
    if _has_condition(a) and _may_deploy(session, a["name"]):
        evidence, problem = _compare(call.function, session, a)
        if problem is not None:
            session.notice(f"deploy: {a['name']}@{a['alias']} was not changed: {problem}")
            return False
    session.execute(
        _CHANGE,
        [a["name"], a["alias"], a["version"], a["reason"], None if evidence is None else json.dumps(evidence)],
        ["text", "text", "integer", "text", "text"],
    )
    return True


def _may_deploy(session: CallerSession, name: str) -> bool:
    """Return whether the caller may change aliases; if not, the change itself is refused, without an evaluation."""
    rows = session.execute(_MAY_DEPLOY, [name])
    return bool(rows) and bool(rows[0]["may"])


def _has_condition(a: dict[str, Any]) -> bool:
    """Return whether there is a condition. Raises InvalidParameter if some of its arguments are missing."""
    conditions = [name for name in ("at_least", "at_most") if a[name] is not None]
    conditions += ["better_than_current"] if a["better_than_current"] else []
    if a["test_table"] is None:
        if conditions or a["metric"] is not None:
            raise InvalidParameter(
                f"test_table is missing: {(conditions or ['metric'])[0]} needs rows on which the metric is computed."
                " Received: NULL",
                hint="Pass a table of rows with their true values, packed or not.",
            )
        return False
    if not conditions:
        raise InvalidParameter(
            f"test_table is given, but no condition. Received: {a['test_table']!r}",
            hint="Pass at_least, at_most or better_than_current => true.",
        )
    return True


def _compare(function: str, session: CallerSession, a: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Compute the metric; return what was compared, and why the version is not good enough, if it is not."""
    table = find_labelled(session, a["test_table"], "test_table")
    rows = session.execute(_CURRENT, [a["name"], a["alias"]])
    current = rows[0]["version"] if rows else None
    versions = [a["version"]]
    if a["better_than_current"] and current is not None:
        if current == a["version"]:
            return {}, f"it has version {current} already"
        versions.append(current)
    names = [f"{a['name']}@{version}" for version in versions]
    models = [prepare(session, read_registered(session, function, name)) for name in names]
    metric = a["metric"] or [*(models[0].metrics_type or ()), "loss"][0]
    for model in models:
        if metric not in _metrics(model):
            raise InvalidParameter(
                f"metric must be one of {', '.join(_metrics(model))}, those of {model.label}. Received: {metric!r}"
            )
    higher = higher_is_better(metric)
    _check_bounds(a, metric, higher)
    rows_of = table.rows_of(models)
    with LocalTrainer(session) as trainer:
        value, *others = [
            _value(session, trainer, rows, model, metric) for model, rows in zip(models, rows_of, strict=True)
        ]
    evidence = {
        "metric": metric,
        "test_table": str(table.relation),
        "value": _storable(value),
        "at_least": a["at_least"],
        "at_most": a["at_most"],
        "current_version": current,
        "current_value": _storable(others[0]) if others else None,
    }
    said = f"version {a['version']} has {metric} {value:.6g}"
    if not math.isfinite(value):
        return evidence, said
    if a["at_least"] is not None and not value >= float(a["at_least"]):
        return evidence, f"{said}, below {float(a['at_least']):.6g}"
    if a["at_most"] is not None and not value <= float(a["at_most"]):
        return evidence, f"{said}, above {float(a['at_most']):.6g}"
    if others and math.isfinite(others[0]) and not (value > others[0] if higher else value < others[0]):
        return evidence, f"{said}, version {current} has {others[0]:.6g}"
    return evidence, None


def _metrics(model: TrainedModel) -> list[str]:
    """Return the names of loss and metrics, in the order of an evaluation."""
    return ["loss", *(model.metrics_type or ())]


def _value(
    session: CallerSession, trainer: LocalTrainer, rows: LabelledRows, model: TrainedModel, metric: str
) -> float:
    """Compute a metric of a model."""
    evaluation = evaluate_rows(session, trainer, model, rows)
    return [evaluation.loss, *evaluation.metrics][_metrics(model).index(metric)]


def _storable(value: float) -> float | str:
    """Return a value for JSON, which has no NaN."""
    return value if math.isfinite(value) else str(value)


def _check_bounds(a: dict[str, Any], metric: str, higher: bool) -> None:
    """Raise InvalidParameter if a bound is on the side of the better values."""
    wrong, right = ("at_most", "at_least") if higher else ("at_least", "at_most")
    if a[wrong] is not None:
        raise InvalidParameter(
            f"{wrong} does not fit {metric}, of which {'higher' if higher else 'lower'} values are better."
            f" Received: {a[wrong]}",
            hint=f"Use {right}.",
        )
