"""The command predict: finds a model for the scalar function madlib_mop.predict, which then uses it in its own
session."""

from dataclasses import asdict

from mop_backend.frames import Header
from mop_backend.nodes import AT_COORDINATOR
from mop_backend.registered_names import is_registered
from mop_backend.weights import PARTS_SUFFIX

from madlib_mop.catalog.names import Relation, quote, split_name, statement
from madlib_mop.driver.data.engine import engine_of_table, has_segments, is_missing_here, keeps_order
from madlib_mop.driver.data.weights import NO_DIGEST, find_parts
from madlib_mop.driver.inference.model import ModelLocation, TrainedModel
from madlib_mop.driver.inference.output import DependentOutput
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.settings import FixedSettings, read_settings
from madlib_mop.errors import MopError, Unsupported


def predict(call: Call) -> Header:
    """Return the queries and requests for using a model.

    Returns
    -------
    dict
        ``model``, ``normalizing_const`` and ``preprocessor``: for the trainer's request predict_load. ``images``: the
        columns with images, each with the height, width and channels that its images get. ``keeps_order``: see
        `keeps_order` of driver/data/engine.py. ``start``: for the request start. ``shares``: whether sessions share
        trainers. ``outputs``: the name, the classes and the held-out scores of each output (mop_backend/classes.py).
        For a model of a table also ``label``, its name in messages, and what `_queries` returns.
    """
    session, name = call.session, call.arguments["model_table"]
    if name is not None and not is_registered(name):
        _check_at_node(session, name)
    model = find_model(session, call.function, name, call.arguments.get("mst_key"))
    settings = read_settings(FixedSettings(session), session, 1, use_caching=False)
    images = _images(model, model.preprocessor) if model.preprocessor is not None else {}
    queries = {}
    if isinstance(model.place, ModelLocation):
        is_only = call.arguments.get("mst_key") is None and model.place.key is not None
        queries = {**_queries(session, name, model.place, is_only), "label": model.label}
    return {
        **queries,
        "model": model.request(compiled=False),
        "normalizing_const": model.normalizing_const,
        "preprocessor": model.preprocessor,
        "images": images,
        "outputs": describe_outputs(model),
        "keeps_order": keeps_order(session),
        "start": settings.session_trainer_start(),
        "shares": settings.share_trainers and not has_segments(session),  # nobody has tried it there
    }


def _check_at_node(session: CallerSession, name: str) -> None:
    """Raise Unsupported if Citus evaluates the query at a node where one of a model's tables cannot be read."""
    relation = session.existing(name, "model_table")
    needed = {name: relation}
    if relation is not None:
        is_multi = "mst_key" in {column.name for column in session.columns(relation)}
        for table in map(relation.with_suffix, ("_summary", "_info") if is_multi else ("_summary",)):
            needed[table.written] = session.existing(table.sql)
        if (parts := find_parts(session, relation)) is not None:
            needed[parts.written] = parts
    missing = [table for table, found in needed.items() if is_missing_here(session, found)]
    if missing:
        raise Unsupported(
            f"model_table: Citus evaluates this query at a worker node, where {missing[0]} cannot be read: it is no"
            f" reference table. Received: {name!r}",
            hint="On the coordinator, SELECT create_reference_table('...'); for the model's table, and those with"
            f" _summary, _info and {PARTS_SUFFIX} after its name. {AT_COORDINATOR}",
        )


def _queries(session: CallerSession, name: str, place: ModelLocation, is_only: bool) -> Header:
    """Return the queries of a model of a table, which may change; ``is_only``: it was named as the only one of many.

    ``version_query``, to run before each prediction: one row with the column ``version``, which changes with the model;
    no row if it was dropped. ``params`` and ``types`` of it. ``weights``: a `WeightsPlace`. ``oid`` of the table, and
    ``name``, quoted, if it must be looked up again because it has no schema; else None. ``oids``: of the tables that
    ``version_query`` reads.
    """
    schema, base = split_name(name, "model_table")
    summary = session.relation(place.relation.with_suffix("_summary").sql)
    return {
        "version_query": _version_query(session, place, summary, is_only),
        "weights": list(place.weights),
        "params": place.params,
        "types": place.types,
        "oid": place.relation.oid,
        "oids": [place.relation.oid, summary.oid],
        "name": None if schema else quote(base),
    }


def _images(model: TrainedModel, document: str) -> dict[str, list[int]]:
    """Check that a preprocessor fits its model; return its columns with images."""
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor  # brings NumPy along
    from madlib_mop.driver.inference.fits import check_fit

    preprocessor = Preprocessor.from_json(document)
    check_fit(model, preprocessor)
    return {tensor.name: list(tensor.shape) for tensor in preprocessor.tensors if tensor.kind == "image"}


def describe_outputs(model: TrainedModel) -> list[Header]:
    """Return ``name``, ``labels``, ``problem`` and ``held_out`` of each output (mop_backend/classes.py)."""
    units = [*model.shape.output_units, *[None] * len(model.outputs)]
    held_out = {one.output: asdict(one) for one in model.held_out}
    return [
        {**_output(output, n_units), "held_out": held_out.get(output.name)}
        for output, n_units in zip(model.outputs, units, strict=False)
    ]


def _output(output: DependentOutput, n_units: int | None) -> Header:
    labels, problem = None, None
    if n_units is None or (n_units == 1 and len(output.values or ()) == 2):
        n_units = len(output.values or "1")
    try:
        labels = None if output.is_number(n_units) else output.labels(n_units)
    except MopError as error:
        problem = error.message
    return {"name": output.name, "labels": labels, "problem": problem}


def _version_query(session: CallerSession, place: ModelLocation, summary: Relation, is_only: bool) -> str:
    """Return the query of a model's version, which changes too when the only model of a table gets others beside it.

    It reads weights only if rows have no versions.
    """
    recorded = NO_DIGEST if place.digest == NO_DIGEST else f"m.{place.digest}"
    own = _version(
        session,
        place.relation,
        "pg_catalog.encode(pg_catalog.sha256(m.model_weights), 'hex'), m.model_arch::pg_catalog.text, " + recorded,
    )
    if is_only:
        own += ", (SELECT pg_catalog.count(*) FROM {m})"
    beside = _version(session, summary, "m.normalizing_const::pg_catalog.text")
    query = statement(
        f"SELECT pg_catalog.concat_ws(' ', {own}, (SELECT pg_catalog.concat_ws(' ', {beside}) FROM {{s}} m)) AS version"
        " FROM {m} m",
        m=place.relation,
        s=summary,
    )
    return query + place.condition


def _version(session: CallerSession, relation: Relation, content: str) -> str:
    """Return the expression that identifies versions of a relation's rows: system columns, or the content without
    them."""
    columns = engine_of_table(session, relation).version_columns(session, relation)
    return ", ".join(f"m.{column}" for column in columns) or content
