"""The command predict: finds a model for the scalar function madlib_mop.predict, whose session then uses it itself."""

from madlib_mop.catalog.names import Relation, quote, split_name, statement
from madlib_mop.driver.call import Call
from madlib_mop.driver.inference.model import TrainedModel, read_model
from madlib_mop.driver.inference.trainer import FixedSettings
from madlib_mop.driver.settings import read_settings

#: Kinds of relations whose rows say by ctid and xmin which version they are.
_WITH_VERSIONS = ("r", "p", "m")


def predict(call: Call) -> dict:
    """Say how to use a model.

    Returns
    -------
    dict
        ``version_query``, to be asked before each prediction: one row with the column ``version``, which changes when
        the model does; no row when it is gone. ``weights_query``, whose column ``weights`` has the weights. ``params``
        and ``types`` for both. ``oid`` of the table, and ``name``, quoted, where it is to be looked up again because it
        was given without a schema; else None. ``model`` and ``normalizing_const``: for the trainer's request
        predict_load. ``start``: for its request start.
    """
    session, name = call.session, call.arguments.get("model_table")
    model = read_model(session, name, call.arguments.get("mst_key"))
    schema, base = split_name(name, "model_table")
    relation = model.place.relation
    summary = session.relation(relation.with_suffix("_summary").sql)
    return {
        "version_query": _version_query(model, summary),
        "weights_query": model.place.weights_query,
        "params": model.place.params,
        "types": model.place.types,
        "oid": relation.oid,
        "name": None if schema else quote(base),
        "model": model.request(compiled=False),
        "normalizing_const": model.normalizing_const,
        "start": read_settings(FixedSettings(session), session, 1, use_caching=False).session_trainer_start(),
    }


def _version_query(model: TrainedModel, summary: Relation) -> str:
    """Write the query of a model's version; it reads weights only where rows have no versions of their own."""
    own = _version(
        model.place.relation,
        "pg_catalog.encode(pg_catalog.sha256(m.model_weights), 'hex'), m.model_arch::pg_catalog.text",
    )
    beside = _version(summary, "m.normalizing_const::pg_catalog.text")
    query = statement(
        f"SELECT pg_catalog.concat_ws(' ', {own}, (SELECT pg_catalog.concat_ws(' ', {beside}) FROM {{s}} m)) AS version"
        " FROM {m} m",
        m=model.place.relation,
        s=summary,
    )
    return query + model.place.condition


def _version(relation: Relation, content: str) -> str:
    return "m.tableoid, m.ctid, m.xmin" if relation.kind in _WITH_VERSIONS else content
