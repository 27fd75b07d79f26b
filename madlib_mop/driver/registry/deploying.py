"""The command deploy: an alias gets a version, if a metric of the version on a packed table is good enough."""

import json
import math
from dataclasses import dataclass
from typing import Any

from madlib_mop.driver.commands.evaluate import evaluate_shards, prepare
from madlib_mop.driver.data.packed import PackedTable, read_packed_table
from madlib_mop.driver.inference.registered import read_registered
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.registry.registering import check_registry
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter

_CHANGE = (
    "INSERT INTO madlib_mop.registry_change (change, name, alias, version, reason, details)"
    " VALUES ('deploy', $1, $2, $3, $4, $5::pg_catalog.jsonb)"
)
_CURRENT = "SELECT version FROM madlib_mop.model_alias WHERE name = $1 AND alias = $2"
_HIGHER = "SELECT madlib_mop.higher_is_better($1) AS higher"


@dataclass(frozen=True)
class Value:
    """A metric of one version: its name as Keras has it, and its value."""

    metric: str
    value: float


def deploy(call: Call) -> bool:
    """Give the alias the version, unless a condition is not met; return whether the alias has it now."""
    a, session = call.arguments, call.session
    check_registry(session)
    session.check_may_write(a["name"], "name")
    evidence = None
    if _has_condition(a):
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


def _has_condition(a: dict[str, Any]) -> bool:
    """Return whether there is a condition. Raises InvalidParameter if some of its arguments are missing."""
    conditions = [name for name in ("at_least", "at_most", "better_than_current") if a[name] not in (None, False)]
    if a["test_table"] is None:
        if conditions or a["metric"] is not None:
            raise InvalidParameter(
                f"test_table is missing: {(conditions or ['metric'])[0]} needs rows on which the metric is computed."
                " Received: NULL",
                hint="Pass a packed table, made by validation_preprocessor_dl or pack_columns.",
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
    packed = read_packed_table(session, a["test_table"], "test_table")
    rows = session.execute(_CURRENT, [a["name"], a["alias"]])
    current = rows[0]["version"] if rows else None
    versions = [a["version"]]
    if a["better_than_current"] and current is not None:
        if current == a["version"]:
            return {}, f"it has version {current} already"
        versions.append(current)
    with LocalTrainer(session) as trainer:
        new, *others = [_value(function, session, trainer, packed, a, version) for version in versions]
    higher = bool(session.execute(_HIGHER, [new.metric])[0]["higher"])
    _check_bounds(a, new.metric, higher)
    evidence = {
        "metric": new.metric,
        "test_table": str(packed.relation),
        "value": new.value if math.isfinite(new.value) else str(new.value),
        "at_least": a["at_least"],
        "at_most": a["at_most"],
        "current_version": current,
        "current_value": others[0].value if others and math.isfinite(others[0].value) else None,
    }
    return evidence, _problem(a, new, others, current, higher)


def _problem(
    a: dict[str, Any], new: Value, others: list[Value], current: int | None, higher: bool
) -> str | None:
    said = f"version {a['version']} has {new.metric} {new.value:.6g}"
    if math.isnan(new.value):
        return said
    if a["at_least"] is not None and not new.value >= float(a["at_least"]):
        return f"{said}, below {float(a['at_least']):.6g}"
    if a["at_most"] is not None and not new.value <= float(a["at_most"]):
        return f"{said}, above {float(a['at_most']):.6g}"
    for other in others:
        is_better = new.value > other.value if higher else new.value < other.value
        if not is_better and not math.isnan(other.value):
            return f"{said}, version {current} has {other.value:.6g}"
    return None


def _check_bounds(a: dict[str, Any], metric: str, higher: bool) -> None:
    """Raise InvalidParameter if a bound is on the side of the better values."""
    wrong, right = ("at_most", "at_least") if higher else ("at_least", "at_most")
    if a[wrong] is not None:
        raise InvalidParameter(
            f"{wrong} does not fit {metric}, of which {'higher' if higher else 'lower'} values are better."
            f" Received: {a[wrong]}",
            hint=f"Use {right}.",
        )


def _value(
    function: str,
    session: CallerSession,
    trainer: LocalTrainer,
    packed: PackedTable,
    a: dict[str, Any],
    version: int,
) -> Value:
    """Compute the metric of one version."""
    model = prepare(session, read_registered(session, function, f"{a['name']}@{version}"), packed)
    names = ["loss", *(model.metrics_type or ())]
    metric = a["metric"] or (names[1] if len(names) > 1 else "loss")
    if metric not in names:
        raise InvalidParameter(f"metric must be one of {', '.join(names)}. Received: {metric!r}")
    evaluation = evaluate_shards(session, trainer, model, packed)
    return Value(metric, [evaluation.loss, *evaluation.metrics][names.index(metric)])
