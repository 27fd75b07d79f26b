"""A trained model for evaluate and predict: read from its output table, `_info` and `_summary`, and checked.

Its weights are read separately (`read_weights`), while they are sent to the process that needs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mop_backend.frames import Header
from mop_backend.held_out import HeldOut
from mop_backend.weights import PARTS_SUFFIX, ModelWeights, WeightErrors, WeightsPlace, read_stored

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.data.packed import read_preprocessor_row
from madlib_mop.driver.data.weights import NO_DIGEST, damaged, find_parts, recorded_digest
from madlib_mop.driver.inference.output import DependentOutput, PredictionProfile
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_architecture, no_column, was_changed
from madlib_mop.errors import InvalidParameter, MopError, NotReady, UndefinedTable, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.keras_layers import Node
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.shapes import ModelShape

_MODEL_COLUMNS = ("model_weights", "model_arch")
_PARAMS = ("compile_params", "fit_params", "metrics_type", "loss_type")
_SUMMARY_COLUMNS = ("dependent_varname", "independent_varname", "dependent_vartype", "normalizing_const")
_N_KEYS_SHOWN = 20


@dataclass(frozen=True)
class ModelLocation:
    """The location of a model's row.

    Attributes
    ----------
    relation : Relation
    key_column : str or None
        ``mst_key`` or ``model_id``; None for a table with a single model.
    key : int or None
    digest : str
        The expression of the SHA-256 that is recorded for the weights (`recorded_digest`).
    parts : Relation or None
        The table with the parts of its weights, if they do not fit into a field.
    """

    relation: Relation
    key_column: str | None = None
    key: int | None = None
    digest: str = NO_DIGEST
    parts: Relation | None = None

    @property
    def condition(self) -> str:
        """The WHERE clause that finds the row, with ``$1`` for the key; empty for a table with a single model."""
        return "" if self.key_column is None else statement(" WHERE {k} = $1", k=Identifier(self.key_column))

    @property
    def params(self) -> list[int]:
        """The values of the condition's parameters."""
        if self.key_column is None:
            return []
        assert self.key is not None, "one of many has a key"
        return [self.key]

    @property
    def types(self) -> list[str]:
        """Their SQL types."""
        return ["integer"] * len(self.params)

    @property
    def weights(self) -> WeightsPlace:
        """Where its weights are."""
        query = f"SELECT model_weights AS weights, {self.digest} AS digest FROM {{t}}"
        field_query = statement(query, t=self.relation) + self.condition
        if self.parts is None:
            return WeightsPlace(field_query, None, None, self.params, self.types)
        lengths = "SELECT part, pg_catalog.octet_length(data) AS n_bytes FROM {t}"
        lengths_query = statement(lengths, t=self.parts) + self.condition + " ORDER BY part"
        of_part = f"{' AND' if self.params else ' WHERE'} part = ${len(self.params) + 1}"
        part_query = statement("SELECT data FROM {t}", t=self.parts) + self.condition + of_part
        return WeightsPlace(field_query, lengths_query, part_query, self.params, self.types)


@dataclass(frozen=True)
class RegisteredVersion:
    """The location of a model in the registry.

    Attributes
    ----------
    function : str
        The SQL function that uses it, for messages.
    model : str
        Such as ``churn@3``.
    relation : Relation
        The output table that it was copied from, which may no longer exist.
    right : str
        What the caller wants to do with it (`CallerSession.registered`).
    details : str or None
        What the registry says of it, as JSON; None for predictions.
    """

    function: str
    model: str
    relation: Relation
    right: str = "PREDICT"
    details: str | None = None

    @property
    def version(self) -> tuple[str, int]:
        """Name and number of the version."""
        name, _, number = self.model.rpartition("@")
        return name, int(number)


@dataclass(frozen=True)
class TrainedModel:
    """One model with everything that is needed to use it, except its weights.

    Attributes
    ----------
    label : str
        For messages, e.g. ``mst_key 3 of public.models``.
    place : ModelLocation or RegisteredVersion
    configuration : Configuration
        Its parameters, and its checked architecture.
    metrics_type : list of str or None
    loss_type : str or None
        As the table has them, which may have been written by hand.
    n_inputs : int
    outputs : tuple of DependentOutput
    normalizing_const : float
    object_table : str or None
        Where its custom functions were registered.
    custom : CustomFunctions
        Those of its loss and metrics, to evaluate them.
    preprocessor : str or None
        The document of the preprocessor (`madlib_mop.columns`) that encoded its training rows.
    predictions : tuple of PredictionProfile
        Of a registered version with a baseline: one for each output; else ().
    inputs : tuple of str
        The names of the packed inputs, where they are known; else ().
    held_out : tuple of HeldOut
        Of a registered version with held-out rows: one for each output that has scores; else ().
    """

    label: str
    place: ModelLocation | RegisteredVersion
    configuration: Configuration
    metrics_type: list[str] | None
    loss_type: str | None
    n_inputs: int
    outputs: tuple[DependentOutput, ...]
    normalizing_const: float
    object_table: str | None = None
    custom: CustomFunctions = CustomFunctions()
    preprocessor: str | None = None
    predictions: tuple[PredictionProfile, ...] = ()
    inputs: tuple[str, ...] = ()
    held_out: tuple[HeldOut, ...] = ()

    @property
    def shape(self) -> ModelShape:
        """Shapes of inputs and outputs, as far as the architecture defines them."""
        return self.configuration.shape

    def held_out_of(self, output: str) -> HeldOut:
        """Return what calibrates the probabilities of an output. Raises NotReady for a model without held-out rows."""
        found = next((one for one in self.held_out if one.output == output), None)
        if found is None:
            raise NotReady(
                f"calibrated: {self.label} is a model without held-out rows",
                hint="Register the model with held_out => 'a table of rows that neither trained nor chose it'.",
            )
        return found

    def request(self, compiled: bool) -> Header:
        """Return the model for a trainer; ``compiled`` if its loss and metrics are needed."""
        c = self.configuration
        return {
            "arch": c.arch,
            "compile_params": c.compile_params if compiled else None,
            "fit_params": c.fit_params if compiled else None,
            "seed": 0,
            "mst_key": 0,
            "custom": self.custom.as_request() if compiled else None,
        }


def read_model(session: CallerSession, name: str | None, mst_key: int | None) -> TrainedModel:
    """Read one model.

    Parameters
    ----------
    session : CallerSession
    name : str
        Output table of a fit function, as written by the caller.
    mst_key : int or None
        The model; None for the only one of the table.

    Raises
    ------
    MopError
        If the table, its `_info` or its `_summary` does not exist or is not a fit function's table, or does not have
        that model.
    """
    what = "model_table"
    relation = session.relation(name, what)
    present = _need_columns(session, relation, _MODEL_COLUMNS, what, name)
    is_multi = "mst_key" in present
    summary = _companion(session, relation, "_summary", name)
    if is_multi:
        params_table = _companion(session, relation, "_info", name)
        mst_key = _choose_key(session, relation, params_table, mst_key, name)
        label = f"mst_key {mst_key} of {relation}"
    else:
        if mst_key is not None:
            raise InvalidParameter(
                f"mst_key is for tables with many models; {relation} has one. Received: {mst_key}",
                hint="Omit mst_key.",
            )
        params_table, label = summary, str(relation)
    params = _read_params(session, params_table, mst_key, name)
    facts = _read_summary(session, summary, name)
    digest = recorded_digest(session.columns(relation))
    place = ModelLocation(relation, "mst_key", mst_key, digest) if is_multi else ModelLocation(relation, digest=digest)
    arch, place = read_architecture(session, place, what, label)
    independent = tuple(_names(facts["independent_varname"]))
    dependent = _names(facts["dependent_varname"])
    configuration = Configuration.recorded(0, params["compile_params"], params["fit_params"], arch)
    losses = losses_of(configuration, len(dependent))
    vartypes = _names(facts["dependent_vartype"])
    if len(vartypes) != len(dependent):
        raise InvalidParameter(f"{what}: {summary} names {len(dependent)} dependent columns and {len(vartypes)} types")
    return TrainedModel(
        label,
        place,
        configuration,
        params["metrics_type"],
        params["loss_type"],
        len(independent),
        tuple(
            DependentOutput(column, vartype, *_class_values(session, summary, column, name), loss)
            for column, vartype, loss in zip(dependent, vartypes, losses, strict=True)
        ),
        float(facts["normalizing_const"] or 1.0),
        _object_table(session, summary),
        preprocessor=row.document if (row := read_preprocessor_row(session, summary)) is not None else None,
        inputs=independent,
    )


def _choose_key(
    session: CallerSession, relation: Relation, info: Relation, mst_key: int | None, name: str | None
) -> int:
    """Return the key of the model: the given one, or that of the only model. Raises InvalidParameter."""
    keys = session.execute(statement("SELECT mst_key FROM {t} ORDER BY mst_key", t=relation))
    shown = ", ".join(str(row["mst_key"]) for row in keys[:_N_KEYS_SHOWN]) + (", ..." if keys[_N_KEYS_SHOWN:] else "")
    choose = f"Use one of: {shown}. {info.written} has their metrics." if keys else "The table is empty."
    if mst_key is None and len(keys) == 1 and keys[0]["mst_key"] is not None:
        return int(keys[0]["mst_key"])
    if mst_key is None:
        raise InvalidParameter(f"mst_key is missing: {relation} has {len(keys)} models. Received: NULL", hint=choose)
    n_found = sum(row["mst_key"] == mst_key for row in keys)
    if n_found == 1:
        return mst_key
    if n_found:
        raise InvalidParameter(f"model_table: {relation} has {n_found} rows with mst_key {mst_key}. Received: {name!r}")
    columns = {column.name for column in session.columns(info)}
    if {"status", "status_detail"} <= columns:
        rows = session.execute(
            statement("SELECT status, status_detail FROM {t} WHERE mst_key = $1", t=info), [mst_key], ["integer"]
        )
        if rows and rows[0]["status"] != ModelState.TRAINED:
            raise InvalidParameter(
                f"mst_key {mst_key} has no model in {relation}: it {rows[0]['status']} in training:"
                f" {rows[0]['status_detail'] or 'no reason was recorded'}. Received: {mst_key}",
                hint=choose,
            )
    raise InvalidParameter(f"mst_key {mst_key} is not in {relation}. Received: {mst_key}", hint=choose)


def _read_params(session: CallerSession, table: Relation, mst_key: int | None, name: str | None) -> dict[str, Any]:
    _need_columns(session, table, _PARAMS, "model_table", name)
    query = statement("SELECT {c} FROM {t}", c=[Identifier(column) for column in _PARAMS], t=table)
    rows = _of_key(session, query, mst_key)
    if len(rows) != 1:
        of_key = "" if mst_key is None else f" for mst_key {mst_key}"
        raise InvalidParameter(f"model_table: {table} has {len(rows)} rows{of_key}, not one. Received: {name!r}")
    return rows[0]


def _read_summary(session: CallerSession, summary: Relation, name: str | None) -> dict[str, Any]:
    _need_columns(session, summary, _SUMMARY_COLUMNS, "model_table", name)
    rows = session.execute(
        statement("SELECT {c} FROM {t}", c=[Identifier(column) for column in _SUMMARY_COLUMNS], t=summary)
    )
    if len(rows) != 1:
        raise InvalidParameter(f"model_table: {summary} has {len(rows)} rows, not one. Received: {name!r}")
    return rows[0]


def _object_table(session: CallerSession, summary: Relation) -> str | None:
    """Return the object table of the model's custom functions; summaries from other sources may lack the column."""
    if "object_table" not in {column.name for column in session.columns(summary)}:
        return None
    row = session.only_row(statement("SELECT object_table::pg_catalog.text AS value FROM {t}", t=summary), summary)
    return row["value"] or None


def _class_values(
    session: CallerSession, summary: Relation, column: str, name: str | None
) -> tuple[tuple[str | None, ...] | None, str | None]:
    """Read a column's class values, as a tuple of texts and in PostgreSQL's text form.

    An array with a single NULL means that values are unknown, as in MADlib.
    """
    held = f"{column}_class_values"
    _need_columns(session, summary, (held,), "model_table", name)
    (known,) = [column for column in session.columns(summary) if column.name == held]
    if not known.is_array:
        raise InvalidParameter(f"model_table: column {held!r} of {summary} is not an array. Received: {name!r}")
    text = "pg_catalog.textin(pg_catalog.array_out({c}))"  # without a cast: the owner of an enum may have defined one
    query = f"SELECT {'{c}' if known.is_safe else text}::pg_catalog.text[] AS values, {text} AS text FROM {{t}}"
    row = session.only_row(statement(query, c=Identifier(held), t=summary), summary)
    if row["values"] is None or row["values"] == [None]:
        return None, None
    return tuple(row["values"]), row["text"]


def read_weights(session: CallerSession, model: TrainedModel) -> ModelWeights:
    """Return a model's weights: float32, flattened in ``get_weights()`` order. Raises MopError, also while they are
    iterated over."""
    place = model.place
    if isinstance(place, RegisteredVersion):
        return session.registered_weights(place.function, place.model, place.right)
    return weights_at(session, place, model.label)


def weights_at(session: CallerSession, place: ModelLocation, label: str) -> ModelWeights:
    """Return the weights of a model of a table, as `read_weights`; ``label`` is the model, for messages."""
    errors = WeightErrors(lambda: damaged(label), lambda: was_changed(label))
    return read_stored(session.execute, place.weights, errors)


def read_architecture(
    session: CallerSession, place: ModelLocation, what: str, label: str
) -> tuple[Node, ModelLocation]:
    """Read and check the architecture of a model that must have weights; return it, and where these are.

    Parameters
    ----------
    session : CallerSession
    place : ModelLocation
    what : str
        The argument that named the table, for messages.
    label : str
        The model, for messages.
    """
    query = statement(
        "SELECT model_arch::pg_catalog.text AS arch, model_weights IS NOT NULL AS has_weights FROM {t}",
        t=place.relation,
    )
    rows = session.execute(query + place.condition, place.params, place.types)
    if len(rows) != 1:
        raise InvalidParameter(f"{what}: {place.relation} has {len(rows)} rows, not one")
    if rows[0]["arch"] is None:
        raise no_architecture(what, label)
    if not rows[0]["has_weights"]:
        parts = None if place.key_column == "model_id" else find_parts(session, place.relation)
        if parts is None:
            table = place.relation.with_suffix(PARTS_SUFFIX)
            raise Unsupported(
                f"{what}: {label} has no weights: model_weights is NULL",
                hint="Load the architecture with its weights: load_keras_model(table, model_arch, model_weights)."
                if place.key_column == "model_id"
                else f"Weights that do not fit into a field are in {table}, which is not there. If the run is in"
                " madlib_mop.run: madlib_mop.drop_models drops the output tables, and madlib_mop.resume writes them"
                " again.",
            )
        place = replace(place, parts=parts)
    try:
        return check_architecture(rows[0]["arch"]), place
    except MopError as error:
        error.message = f"{what}: {label}: {error.message}"
        raise


def _of_key(session: CallerSession, query: str, mst_key: int | None) -> list[dict[str, Any]]:
    """Run a query for the rows of one key, or for all rows of a table without keys."""
    if mst_key is None:
        return session.execute(query)
    return session.execute(f"{query} WHERE mst_key = $1", [mst_key], ["integer"])


def losses_of(configuration: Configuration, n_outputs: int) -> list[str | None]:
    """Return the name of each output's loss; None if unknown."""
    try:
        loss = configuration.compiled.loss
    except MopError:  # the table was written by hand; the trainer checks the parameters if it uses them
        return [None] * n_outputs
    if isinstance(loss, dict):
        names = configuration.shape.output_names
        losses: list[Any] = [loss.get(name) for name in names]
    elif isinstance(loss, list):
        losses = loss
    else:
        losses = [loss] * n_outputs
    known = [getattr(item, "name", item) for item in losses]
    return [*known, *[None] * n_outputs][:n_outputs]


def _companion(session: CallerSession, relation: Relation, suffix: str, name: str | None) -> Relation:
    found = session.existing(relation.with_suffix(suffix).sql)
    if found is None:
        raise UndefinedTable(
            f"model_table: {relation} has no table {relation.name}{suffix} in its schema. Received: {name!r}",
            hint="Pass the output table of madlib_keras_fit_multiple_model or madlib_keras_fit.",
        )
    return found


def _need_columns(
    session: CallerSession, relation: Relation, columns: Sequence[str], what: str, name: str | None
) -> set[str]:
    present = {column.name for column in session.columns(relation)}
    for column in columns:
        if column not in present:
            hint = "Pass the output table of madlib_keras_fit_multiple_model or madlib_keras_fit."
            raise no_column(what, str(relation), column, name, hint)
    return present


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]
