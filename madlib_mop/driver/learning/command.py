"""The command learn: packs a table, searches networks in a budget of time, registers the best, and measures it.

Each step is a call of a function for users, made and committed in a session with the caller's rights; the summary
shows these statements.
"""

import math
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mop_backend.registered_names import NEWEST

from madlib_mop.calls import find_function
from madlib_mop.calls.limits import MAX_SEED
from madlib_mop.catalog.names import MAX_NAME_BYTES, Relation, split_name, statement
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.certainty.balance import imbalance, rarest_class
from madlib_mop.certainty.measures import SCALED_MAE, SCALED_MSE, Measure
from madlib_mop.columns.preprocessors.fits import ClassFit
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.describing import read_preprocessor
from madlib_mop.driver.data.packed import CHECKS, columns_to_check, read_summary
from madlib_mop.driver.inference.boosting import GRADIENT_BOOSTING
from madlib_mop.driver.inference.labelled_rows import find_labelled
from madlib_mop.driver.inference.measured import ClassOutput, counts_of_classes, measured_outputs, measured_targets
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.packed_rows import PredictedTable, predicted_rows
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.jobs.checks import seconds_of
from madlib_mop.driver.jobs.submitting import quoted, settings_of
from madlib_mop.driver.learning.choice import Choice, choose_model
from madlib_mop.driver.learning.own_session import OutOfTime, OwnSession
from madlib_mop.driver.learning.quality import of_held_out, of_threshold, rows_of
from madlib_mop.driver.networks.architectures import LINEAR
from madlib_mop.driver.networks.proposing import propose_search
from madlib_mop.driver.networks.training import metric_name
from madlib_mop.driver.registry.registering import TRY_NAME, check_registry
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.opening import open_record
from madlib_mop.driver.session.relations import check_own_schema
from madlib_mop.errors import Cancelled, InvalidParameter, MopError, NotReady, Unsupported
from madlib_mop.jobs.statements import compose

_LEAST_BUDGET_S = 10.0
#: What the search leaves of the budget, to the ensemble, the choice and the measures: a share, but at least some
#: seconds, and of the smallest budgets more than half.
_REST_SHARE, _LEAST_REST_S, _MOST_REST_SHARE = 0.15, 8.0, 0.6
_LEAST_SEARCH_S = 2.0
#: Of the budget, the most that the baseline by gradient boosting may take: a share, and no more than some seconds.
_BOOSTING_SHARE, _MOST_BOOSTING_S = 0.2, 20.0
#: What is left for the summary, and the least time in which the columns of the model are explained.
_SUMMARY_S, _LEAST_EXPLAINING_S = 2.0, 2.0
#: A network makes at most so many iterations; of many, the better half goes on after the first few, and so on.
_ITERATIONS, _FIRST, _MANY = 24, 3, 4
#: Rows of the summary that name a column to check.
_MOST_CHECKS = 10
#: Suffixes of the tables that are made, by what they are.
_SUFFIXES = ("_packed", "_networks", "_configs", "_models", "_best", "_ensemble")
_LONGEST = "_packed_validation_summary"
_HOW_TO_REPLACE = "Choose another name; replace => true replaces the tables that an earlier call of learn has made."
#: Of the budget, how long a step waits for a lock of another session: the error says so before the budget is over.
_LOCK_SHARE = 0.25
_FIND_LINEAR = f"""
SELECT pg_catalog.min(c.mst_key) AS mst_key FROM {{configs}} c JOIN {{networks}} n ON n.model_id = c.model_id
WHERE n.name::pg_catalog.text = '{LINEAR}'
"""
#: The search tries the linear model first.
_LINEAR_KEY, _LINEAR_MODEL = 1, "linear model"
_HAS_LINEAR = f"SELECT 1 AS one FROM {{models}} WHERE mst_key = {_LINEAR_KEY} AND weights_digest IS NOT NULL"
_IS_THERE = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_class WHERE oid = %s::pg_catalog.oid"
# To parse the name of a table makes the session see what others have committed; to_regclass remembers what it missed.
_LOOK_ANEW = "SELECT 1 AS one FROM pg_catalog.pg_class LIMIT 0"
_OF_LINEAR = "logistic or linear regression: its mst_key in {models}, where it is beside the networks"
_LEVELS = {"NOTICE": "notice", "WARNING": "warning", "INFO": "notice"}


@dataclass
class _Steps:
    """The statements of a call, one after the other."""

    call: Call
    session: OwnSession
    path: str | None
    ends_at: float
    done: list[str] = field(default_factory=list)

    def run_in_budget(self, called: str, /, **arguments: Any) -> Any:
        """Call a function as `run` does, until the budget is over."""
        return self.run(called, max(_LEAST_SEARCH_S, self.ends_at - time.monotonic()), **arguments)

    def run(self, called: str, at_most_s: float | None = None, /, **arguments: Any) -> Any:
        """Call a function for users; return the first column of its first row. Raises MopError."""
        given = {key: value for key, value in arguments.items() if value is not None}
        found = self._execute(called, compose(find_function(called), given, self._quote, self.path), at_most_s)
        self.done.append(f"SELECT {self.written(called, given)};")
        self.call.session.execute(_LOOK_ANEW)
        return found

    def measure(self, called: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        """Call a function that returns rows and makes nothing, until the budget is over; return all of them."""
        statement = compose(find_function(called), given, self._quote, self.path)
        rows = f"SELECT pg_catalog.json_agg(found.one) FROM ({statement}) AS found (one)"
        return self._execute(called, rows, max(_LEAST_SEARCH_S, self.ends_at - time.monotonic())) or []

    def written(self, called: str, given: dict[str, Any]) -> str:
        """Return the call of a function as a person writes it."""
        return f"{find_function(called).schema}.{called}({', '.join(self._written(given))})"

    def _execute(self, called: str, statement: str, at_most_s: float | None) -> Any:
        try:
            if at_most_s is None:
                return self.session.execute(statement)
            return self.session.execute_within(at_most_s, statement)
        except OutOfTime:
            raise NotReady(
                f"the budget was over in {called}. Received: {self.call.arguments['budget']}",
                hint="Call again with a larger budget" + (" and replace => true." if self.done else "."),
            ) from None

    def note(self, error: MopError) -> None:
        """Add to the detail of an error which steps are committed."""
        if self.done:
            committed = [f"{len(self.done)} of its steps are committed:", *self.done]
            error.detail = "\n".join(filter(None, [error.detail, *committed]))

    def _written(self, given: dict[str, Any]) -> Iterator[str]:
        """Yield the arguments as a person writes them."""
        for name, value in given.items():
            if isinstance(value, bool | int | float):
                yield f"{name} => {str(value).lower()}"
                continue
            text = "{" + ",".join(map(_element, value)) + "}" if isinstance(value, list) else value
            yield f"{name} => {self._quote([text])[0]}"

    def _quote(self, texts: list[str]) -> list[str]:
        return quoted(self.call, texts)


def _element(value: Any) -> str:
    """Return an element of an array's text."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def learn(call: Call) -> list[dict[str, Any]]:
    """Do all steps; return the rows of the summary."""
    began = time.monotonic()
    a, session = call.arguments, call.session
    budget_s = _budget(call)
    _check_transaction(call)
    check_registry(session)
    source = session.relation(a["source_table"], "source_table", any_type=True)
    name = a["name"] or _name_of(source, a["dependent"])
    base = _base(name, a["schema"])
    check_own_schema(session, session.placed(base, "name").schema, "schema")  # defence: schema-of-learn
    if not a["replace"]:
        for suffix in _SUFFIXES:
            session.output(base + suffix, what="name", if_there=lambda *found: _HOW_TO_REPLACE)
    validation = _validation(a["validation"], a["split"])
    seed = secrets.randbelow(MAX_SEED) if a["seed"] is None else a["seed"]
    packed, models = f"{base}_packed", f"{base}_models"
    with _steps(call, began, budget_s) as steps:
        _check_committed(steps, source, a["source_table"])
        steps.session.execute(TRY_NAME, (name,))
        steps.run_in_budget(
            "pack_columns", source_table=a["source_table"], output_table=packed, dependent=a["dependent"],
            validation=validation, columns=a["columns"], exclude=a["exclude"], seed=seed, task=a["task"],
            replace=a["replace"] or None, test=a["test"],
        )  # fmt: skip
        boosted = _boosted(steps, packed, seed, min(_MOST_BOOSTING_S, round(_BOOSTING_SHARE * budget_s, 1)))
        steps.run_in_budget(
            "propose_networks", packed_table=packed, arch_table=f"{base}_networks", configs_table=f"{base}_configs",
            n_configs=a["n_configs"], num_iterations=_ITERATIONS, seed=seed, replace=a["replace"] or None,
        )  # fmt: skip
        linear = _linear(steps, base)
        grids = propose_search(_as(call, "propose_search", packed_table=packed, arch_table=f"{base}_networks"))[0]
        rest_s = budget_s - (time.monotonic() - began)
        left_s = max(_REST_SHARE * budget_s, min(_LEAST_REST_S, _MOST_REST_SHARE * budget_s))
        search_s = max(_LEAST_SEARCH_S, rest_s - left_s)
        first_metric = metric_name(read_preprocessor(session, packed, "packed"))
        steps.session.compare_run(_baselines(linear is not None, boosted, first_metric))
        steps.run(
            "madlib_keras_automl", source_table=packed, model_output_table=models,
            model_arch_table=f"{base}_networks", model_selection_table=f"{base}_best", **grids, automl_method="asha",
            automl_params=_search(a["n_configs"], f"{base}_configs", linear), random_state=seed,
            validation_table=f"{packed}_validation", replace=a["replace"] or None, max_seconds=round(search_s, 1),
        )  # fmt: skip
        run_id = steps.session.newest_run()
        # not in the transaction of the caller, whose lock would stop a DROP, which would stop the next step
        if not steps.session.execute(_counting(session, models)):
            raise NotReady(
                f"the budget was over before a network was trained. Received: {a['budget']}",
                hint="Call again with a larger budget and replace => true.",
            )
        if a["ensemble"]:
            steps.run(
                "make_ensemble", model_table=models, validation_table=f"{packed}_validation",
                output_table=f"{base}_ensemble", replace=a["replace"] or None,
            )  # fmt: skip
        linear = _trained(session, models, linear)
        choice = choose_model(
            session, models, f"{base}_ensemble" if a["ensemble"] else None, f"{packed}_validation", linear
        )
        given = {"name": name, "model_table": choice.table, "mst_key": choice.mst_key}
        given |= {"baseline": f"{packed}_validation", "held_out": f"{packed}_test"}
        version = _register(steps, given, a["source_table"])
        steps.run("deploy", name=name, alias=NEWEST, version=version)
    made = _Made(name, f"{name}@{version}", packed, models, choice, run_id, steps.done, linear, boosted)
    return _summary(call, made, source, time.monotonic() - began)


@dataclass(frozen=True)
class _Boosted:
    """The baseline by gradient boosting: its statement, and its rows or the reason why there are none."""

    statement: str
    rows: list[dict[str, Any]]
    reason: str | None = None

    @property
    def tested(self) -> list[dict[str, Any]]:
        """The rows of measures of the test rows, for people: in the units of the table."""
        return [
            row for row in self.rows if row["data_set"] == "test" and row["metric"] not in (SCALED_MSE, SCALED_MAE)
        ]

    def measures(self) -> list[dict[str, str | None]]:
        """Return the rows of the summary."""
        several = len({row["output"] for row in self.rows}) > 1
        found = []
        for row in self.tested:
            note = f"of {row['n_rows']:,} held-out rows"
            one = Measure(row["metric"], float(row["value"]), float(row["baseline"]), note)
            found += rows_of(f"{GRADIENT_BOOSTING}: {row['output']}" if several else GRADIENT_BOOSTING, [one])
        return found

    def baseline(self, first_metric: str) -> Baseline | None:
        """Return what the leaderboard shows of it: the loss of proposed networks, the sum over the targets, and the
        metric of the first target, on the validation rows; None without such rows."""
        rows = [row for row in self.rows if row["data_set"] == "validation"]
        if not rows:
            return None
        losses = [float(row["value"]) for row in rows if row["metric"] in ("log loss", SCALED_MSE)]
        metrics = [float(row["value"]) for row in rows if row["metric"] in ("accuracy", SCALED_MAE)]
        figures = [value if math.isfinite(value) else None for value in (metrics[0], sum(losses))]
        return Baseline(
            name=GRADIENT_BOOSTING, metric_name=first_metric, validation_metric=figures[0], validation_loss=figures[1],
            note=f"to compare with, not to predict with; {rows[0]['note']}",
        )  # fmt: skip


@dataclass(frozen=True)
class _Made:
    """What the steps have made: the registered model, its version, tables by name, the run and the statements.

    ``linear`` is the key of the linear model among those of the run; None if it was not trained. ``boosted`` is the
    baseline by gradient boosting.
    """

    name: str
    version: str
    packed: str
    models: str
    choice: Choice
    run_id: int | None
    statements: list[str]
    linear: int | None
    boosted: _Boosted

    @property
    def test(self) -> str:
        """The packed table of the rows that were held out."""
        return f"{self.packed}_test"

    @property
    def validation(self) -> str:
        """The packed table of the rows on which models were compared."""
        return f"{self.packed}_validation"


def _budget(call: Call) -> float:
    """Return the budget in seconds. Raises InvalidParameter."""
    given = call.arguments["budget"]
    found = seconds_of(call, given, "budget")
    if not _LEAST_BUDGET_S <= found <= 20 * 86400:
        raise InvalidParameter(
            f"budget must be from 10 seconds to 20 days. Received: {given}",
            hint="For example budget => '5 minutes'.",
        )
    return found


def _validation(share: float, split: str | None) -> float | str:
    """Return the argument ``validation`` of pack_columns. Raises InvalidParameter."""
    if split is None:
        return share
    found = re.fullmatch(r"\s*by\s+(time|group)\s+(\S.*)", split, re.IGNORECASE | re.DOTALL)
    if found is None:
        raise InvalidParameter(
            f"split must be 'by time COLUMN' or 'by group COLUMN'. Received: {split!r}",
            hint="Leave it out to choose rows at random, equal rows together.",
        )
    how, column = found[1].lower(), found[2].strip()
    return f"last {share:f} by {column}" if how == "time" else f"{share:f} by group {column}"


def _linear(steps: _Steps, base: str) -> int | None:
    """Return the key of the linear model among the proposed configurations; None if one network was proposed."""
    tables = {end: steps.call.session.relation(f"{base}_{end}", end) for end in ("configs", "networks")}
    found: int | None = steps.session.execute(statement(_FIND_LINEAR, **tables))
    return found


def _search(n_configs: int, configs: str, linear: int | None) -> str:
    """Return the parameters of the search."""
    first = _FIRST if n_configs >= _MANY else _ITERATIONS
    given = "" if linear is None else f", try_first={f'{linear} of {configs}'!r}"
    return f"R={_ITERATIONS}, eta=2, r={first}, num_configs={n_configs}{given}"


def _counting(session: CallerSession, table: str) -> str:
    """Return the query that counts the rows of a table."""
    return statement("SELECT pg_catalog.count(*) AS n FROM {t}", t=session.relation(table, "models"))


def _baselines(is_linear: bool, boosted: _Boosted, first_metric: str) -> list[Baseline]:
    """Return what the leaderboard compares the networks with: ``is_linear`` says whether a linear model is tried."""
    found = [Baseline(name=_LINEAR_MODEL, mst_key=_LINEAR_KEY)] if is_linear else []
    boosting = boosted.baseline(first_metric)
    return found if boosting is None else [*found, boosting]


def _check_transaction(call: Call) -> None:
    """Refuse a transaction that would not see what the steps commit."""
    isolation = call.session.caller_setting("transaction_isolation")
    if isolation != "read committed":
        raise Unsupported(
            f"learn commits its steps, and this transaction would not see their tables. Received: a transaction of"
            f" level {isolation!r}",
            hint="Call it in a transaction of level READ COMMITTED, or outside of a transaction.",
        )


def _name_of(source: Relation, dependent: str) -> str:
    """Return the name for a table and its target: their letters, digits and underscores."""
    text = re.sub("[^a-z0-9_]+", "_", f"{source.name}_{dependent}".lower()).strip("_")
    return text[: MAX_NAME_BYTES - len(_LONGEST)] or "learned"


def _base(name: str, schema: str | None) -> str:
    """Return what the names of tables begin with. Raises InvalidParameter."""
    base = re.sub("[.-]", "_", name)
    if len(base) > MAX_NAME_BYTES - len(_LONGEST):
        raise InvalidParameter(
            f"name must have at most {MAX_NAME_BYTES - len(_LONGEST)} characters, because tables are named after it."
            f" Received: {name!r}",
            hint="Choose a shorter name.",
        )
    base = base if not base[0].isdigit() else f"_{base}"
    if schema is None:
        return base
    parts = split_name(schema, "schema")
    if parts[0] is not None or parts[1] == "pg_temp":  # segments see no temporary tables
        raise InvalidParameter(
            f"schema must be the name of a schema, and not pg_temp. Received: {schema!r}",
            hint="For example schema => 'work'.",
        )
    return f"{schema.strip()}.{base}"


@contextmanager
def _steps(call: Call, began: float, budget_s: float) -> Iterator[_Steps]:
    """Open a session for the steps; it ends with the block."""
    own = OwnSession(call, open_record(call.info), settings_of(call), _teller(call), _LOCK_SHARE * budget_s)
    steps = _Steps(call, own, call.info.search_path, began + budget_s)
    try:
        yield steps
    except MopError as error:
        steps.note(error)
        raise
    finally:
        own.close()


def _teller(call: Call) -> Any:
    """Return a function that passes on a notice of the server, such as ``NOTICE:  text``."""

    def tell(message: str) -> None:
        level, _, text = message.partition(":")
        if level in _LEVELS:
            send = call.session.warning if level == "WARNING" else call.session.notice
            send(text.strip())

    return tell


def _check_committed(steps: _Steps, source: Relation, name: str) -> None:
    """Raise an error for a table of this session or transaction alone: the steps are other sessions'."""
    if not steps.session.execute(_IS_THERE, (source.oid,)) or source.is_temp:
        raise InvalidParameter(
            f"source_table: {source} is seen by this session only: it is temporary, or was created in this transaction."
            f" Received: {name!r}",
            hint="Create an ordinary table, and COMMIT first.",
        )


def _as(call: Call, function: str, **arguments: Any) -> Call:
    """Return a call of another function by the same caller."""
    return Call.read(function, arguments, call.session)


def _summary(call: Call, made: _Made, source: Relation, seconds: float) -> list[dict[str, Any]]:
    """Return the rows of the result."""
    session = call.session
    preprocessor = read_preprocessor(session, made.test, "test")
    predictor = "predict_json"
    if len(preprocessor.targets) == 1:
        predictor = "predict_class" if isinstance(preprocessor.targets[0].fit, ClassFit) else "predict_number"
    n_models = session.execute(_counting(session, made.models))[0]["n"]
    trained = "1 model was trained" if n_models == 1 else f"{n_models} models were trained"
    linear = made.linear
    counts = counts_of_classes(session, session.relation(made.packed), made.packed, preprocessor)
    found = [
        _row(
            "model", made.version, f"SELECT madlib_mop.{predictor}('{made.name}', t.*) FROM {source.written} AS t;"
        ),
        _row("registered", made.choice.name, made.choice.reason),
        *_measured(call, made, preprocessor, counts),
        *made.boosted.measures(),
        *_checks(session, made, preprocessor, counts),
        *([] if linear is None else [_row(_LINEAR_MODEL, linear, _OF_LINEAR.format(models=made.models))]),
        _of_boosting(made.boosted),
        _row("run", made.run_id, f"{trained}; SELECT * FROM {made.models}_info;"),
        _row("seconds", f"{seconds:.0f}", f"of a budget of {call.arguments['budget']}"),
    ]
    found += [_row(f"step {number}", None, text) for number, text in enumerate(made.statements, 1)]
    return found


def _boosted(steps: _Steps, packed: str, seed: int, max_seconds: float) -> _Boosted:
    """Measure the baseline by gradient boosting, and tell the caller.

    It is a statement of the steps' session, like them: a lock that this transaction held until its end could stop them.
    """
    call = steps.call
    given = {"packed_table": packed, "max_seconds": max_seconds, "seed": seed}
    statement = f"SELECT * FROM {steps.written('gradient_boosting', given)};"
    try:
        found = _Boosted(statement, steps.measure("gradient_boosting", given))
    except Cancelled:
        raise
    except MopError as error:
        call.session.notice(f"{call.function}: no baseline: {error.message}")
        return _Boosted(statement, [], error.message)
    measures = [f"{row['item']} {row['value']}" for row in found.measures()]
    for one in found.tested[:1]:
        call.session.notice(
            f"{call.function}: to compare with, after {one['seconds']:.1f} s: {', '.join(measures)} of"
            f" {one['n_rows']:,} held-out rows ({one['note']})"
        )
    return found


def _register(steps: _Steps, given: dict[str, Any], source_table: str) -> int:
    """Register the model, with the importance of its columns for reports if the budget allows it; return the version.

    The table is read again, and may have new rows that cannot be encoded: the model is registered all the same.
    """
    left_s = steps.ends_at - time.monotonic() - _SUMMARY_S
    if left_s >= _LEAST_EXPLAINING_S:
        try:
            version: int = steps.run("register", left_s, **given, explained=source_table)
            return version
        except Cancelled:
            raise
        except MopError as error:
            if not steps.session.is_free:
                raise
            steps.call.session.notice(f"{steps.call.function}: the columns are not explained: {error.message}")
    version = steps.run("register", **given)
    return version


def _of_boosting(boosted: _Boosted) -> dict[str, str | None]:
    """Return the row of the summary that says what the baseline by gradient boosting is."""
    if boosted.reason is not None:
        return _row(GRADIENT_BOOSTING, None, f"none: {boosted.reason}")
    one = boosted.rows[0]
    what = f"to compare with, not to predict with; {one['note']}, {one['seconds']:.1f} s; {boosted.statement}"
    return _row(GRADIENT_BOOSTING, None, what)


def _checks(
    session: CallerSession, made: _Made, preprocessor: Preprocessor, counts: dict[str, tuple[int, ...]]
) -> list[dict[str, str | None]]:
    """Return a row for each target with unbalanced classes and each input that a person should check, up to a limit."""
    classes = {column.name: column.fit.classes for column in preprocessor.targets if isinstance(column.fit, ClassFit)}
    texts = [text for name in counts if (text := imbalance(name, classes[name], counts[name])) is not None]
    texts += columns_to_check(session, read_summary(session, session.relation(made.packed), made.packed, "packed"))
    found = [_row(f"check {number}", None, text) for number, text in enumerate(texts[:_MOST_CHECKS], 1)]
    if len(texts) > _MOST_CHECKS:
        more = f"and {len(texts) - _MOST_CHECKS} more: SELECT {CHECKS} FROM {made.packed}_summary;"
        found.append(_row(f"check {_MOST_CHECKS + 1}", None, more))
    return found


def _row(item: str, value: Any, note: str | None) -> dict[str, str | None]:
    return {"item": item, "value": None if value is None else str(value), "baseline": None, "note": note}


def _trained(session: CallerSession, models: str, proposed: int | None) -> int | None:
    """Return the key of the linear model among those of the run; None if it was not proposed or not trained."""
    if proposed is None:
        return None
    found = session.execute(statement(_HAS_LINEAR, models=session.relation(models, "models")))
    return _LINEAR_KEY if found else None


def _measured(
    call: Call, made: _Made, preprocessor: Preprocessor, counts: dict[str, tuple[int, ...]]
) -> list[dict[str, str | None]]:
    """Return the measures of the registered model, and of the linear one, on the rows that were held out."""
    session = call.session
    models = [("", find_model(session, call.function, made.version, None))]
    if made.linear is not None:
        models.append((f"{_LINEAR_MODEL}: ", find_model(session, call.function, made.models, made.linear)))
    found = []
    with LocalTrainer(session) as trainer:
        every = find_labelled(session, made.test, "test").rows_of([model for _, model in models])
        for (prefix, model), rows in zip(models, every, strict=True):
            found_rows = predicted_rows(session, trainer, model, rows, "test")
            measured = _measures(made.name, model, found_rows, preprocessor, counts)
            found += [{**row, "item": f"{prefix}{row['item']}"} for row in measured]
            if not prefix:
                found += _thresholds(call, made, trainer, model, found_rows, counts)
    return found


def _thresholds(
    call: Call,
    made: _Made,
    trainer: LocalTrainer,
    model: TrainedModel,
    held_out: PredictedTable,
    counts: dict[str, tuple[int, ...]],
) -> Iterator[dict[str, str | None]]:
    """Yield the threshold of each rarest class, chosen on the validation rows, and how good it is on those held out."""
    rarest = {name: number for name, of_class in counts.items() if (number := rarest_class(of_class)) is not None}
    if not rarest:
        return
    (rows,) = find_labelled(call.session, made.validation, "validation").rows_of([model])
    validation = predicted_rows(call.session, trainer, model, rows, "validation")
    parts = [
        {output.name: output for output in measured_outputs(model, one.outputs, one.labels, what)}
        for one, what in ((validation, "validation"), (held_out, "test"))
    ]
    for name, number in rarest.items():
        chosen, measured = (part[name] for part in parts)
        assert isinstance(chosen, ClassOutput) and isinstance(measured, ClassOutput), "it has counts of classes"
        label = chosen.labels[number]
        given = [f"'{made.name}'", f"'{made.validation}'", *([] if label is None else quoted(call, [label]))]
        again = f"SELECT * FROM madlib_mop.choose_threshold({', '.join(given)}, highest_f1 => true);"
        yield of_threshold(name if len(counts) > 1 else None, chosen, measured, number, again)


def _measures(
    name: str,
    model: TrainedModel,
    found_rows: PredictedTable,
    preprocessor: Preprocessor,
    counts: dict[str, tuple[int, ...]],
) -> list[dict[str, str | None]]:
    """Return the measures of one model's predictions, and how sure they are if it has held-out rows."""
    held_out = {one.output: one for one in model.held_out}
    targets = measured_targets(preprocessor, found_rows, counts)
    found = []
    for target in targets:
        found += rows_of(target.name if len(targets) > 1 else None, target.measures)
        if len(targets) == 1 and target.name in held_out:
            found.append(of_held_out(name, held_out[target.name], target.predicted))
    return found
