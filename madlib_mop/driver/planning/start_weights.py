"""Start weights by layer names: an earlier model's weights for the layers that a new model shares with it."""

from collections.abc import Iterable
from dataclasses import dataclass

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.driver.data.weights import DIGEST, NO_DIGEST, find_parts
from madlib_mop.driver.inference.described import DescribedModel, LayerWeights, describe_model
from madlib_mop.driver.inference.model import ModelLocation, weights_at
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_column, wrong_type
from madlib_mop.errors import InvalidParameter
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.keras_layers import Node

_WHAT = "weights"
_KEYS = ("mst_key", "model_id")
#: Seed for layers without given weights: equal calls store equal weights.
_SEED = 0


@dataclass(frozen=True)
class SourceWeights:
    """Source of weights.

    Attributes
    ----------
    label : str
        For messages.
    layers : dict of str to bytes
        float32 by the layer's name.
    shapes : dict of str to tuple of (tuple of int), or None
        Shapes of each layer's arrays, if an architecture defines them.
    """

    label: str
    layers: dict[str, bytes]
    shapes: dict[str, tuple[tuple[int, ...], ...]] | None


@dataclass(frozen=True)
class StartWeights:
    """Start weights of a whole model, and the layers they come from."""

    weights: bytes
    taken: list[str]
    drawn: list[str]
    label: str


def weights_by_layer(
    session: CallerSession, trainer: LocalTrainer, arch: Node, name: str, key: int | None
) -> tuple[DescribedModel, StartWeights]:
    """Return Keras' description of an architecture, and start weights for it from a table.

    Parameters
    ----------
    session : CallerSession
    trainer : LocalTrainer
    arch : dict
        Checked.
    name : str
        Output table of a fit function, table of architectures, or a table of the columns ``layer`` and ``weights``.
    key : int or None
        ``mst_key`` or ``model_id`` of the row to take.

    Raises
    ------
    MopError
        If the table is none of those, lacks the row, has no layer of the architecture, or one with another shape.
    """
    relation = session.relation(name, _WHAT)
    types = {column.name: column.type_sql for column in session.columns(relation)}
    if {"layer", "weights"} <= types.keys():
        source = _listed(session, relation, types, key)
    else:
        source = _of_model(session, trainer, relation, types, name, key)
    model = describe_model(trainer, arch, _SEED)
    return model, _joined(model, source, name)


def _listed(session: CallerSession, relation: Relation, types: dict[str, str], key: int | None) -> SourceWeights:
    if key is not None:
        raise InvalidParameter(
            f"weights_key is for tables of models; {relation} is a list of layers. Received: {key}",
            hint="Omit weights_key.",
        )
    _check_type(relation, types, "weights", "bytea")
    rows = session.execute(statement("SELECT layer::pg_catalog.text AS layer, weights FROM {t}", t=relation))
    layers = {row["layer"]: row["weights"] for row in rows}
    if len(layers) < len(rows) or None in layers or None in layers.values():
        raise InvalidParameter(f"weights: {relation} must have one row for each layer, without NULL")
    return SourceWeights(str(relation), {layer: bytes(weights) for layer, weights in layers.items()}, None)


def _of_model(
    session: CallerSession, trainer: LocalTrainer, relation: Relation, types: dict[str, str], name: str, key: int | None
) -> SourceWeights:
    if missing := [column for column in ("model_arch", "model_weights") if column not in types]:
        hint = (
            "Pass an output table of a fit function, a table of architectures, or a table with the columns layer and"
            " weights."
        )
        raise no_column(_WHAT, str(relation), missing[0], name, hint)
    _check_type(relation, types, "model_weights", "bytea")
    key_column = next((column for column in _KEYS if column in types), None)
    if key is not None and key_column is None:
        raise InvalidParameter(f"weights_key is for tables with many models; {relation} has one. Received: {key}")
    digest = DIGEST[0] if types.get(DIGEST[0]) == DIGEST[1] else NO_DIGEST
    parts = None if key_column == "model_id" else find_parts(session, relation)
    place = ModelLocation(relation, key_column if key is not None else None, key, digest, parts)
    columns = "model_arch::pg_catalog.text AS arch, model_weights IS NOT NULL AS has_weights"
    query = statement(f"SELECT {columns} FROM {{t}}", t=relation) + place.condition + " LIMIT 2"
    rows = session.execute(query, place.params, place.types)
    label = f"{relation} ({key_column} {key})" if key is not None else str(relation)
    if len(rows) != 1:
        many = "no such row" if not rows else "more than one row"
        raise InvalidParameter(
            f"{_WHAT}: {label} has {many}. Received: {name!r}, weights_key {key}",
            hint=f"Select a row with weights_key => its {key_column}."
            if key_column
            else "Pass a table with one model.",
        )
    if not (rows[0]["has_weights"] or parts) or rows[0]["arch"] is None:
        raise InvalidParameter(f"{_WHAT}: {label} has no weights. Received: {name!r}")
    weights = b"".join(weights_at(session, place, label))
    model = describe_model(trainer, check_architecture(rows[0]["arch"]))
    model.check_weights(len(weights), f"{_WHAT}: those of {label}")
    layers, start = {}, 0
    for layer in model.layers:
        layers[layer.name] = weights[start : start + layer.n_bytes]
        start += layer.n_bytes
    return SourceWeights(label, layers, {layer.name: layer.shapes for layer in model.layers})


def _check_type(relation: Relation, types: dict[str, str], column: str, wanted: str) -> None:
    if types[column] != wanted:
        raise wrong_type(_WHAT, relation, column, wanted, types[column])


def _joined(model: DescribedModel, source: SourceWeights, name: str) -> StartWeights:
    pieces, taken, drawn, start = [], [], [], 0
    assert model.drawn is not None, "they were asked for"
    for layer in model.layers:
        piece = source.layers.get(layer.name)
        if piece is None:
            piece = model.drawn[start : start + layer.n_bytes]
            drawn.append(layer.name)
        else:
            _check_fits(layer, piece, source)
            taken.append(layer.name)
        pieces.append(piece)
        start += layer.n_bytes
    if not taken:
        raise InvalidParameter(
            f"{_WHAT}: {source.label} has no layer with the name of a layer of the architecture. Received: {name!r}",
            hint=f"It has {', '.join(source.layers) or 'none'}; the architecture has"
            f" {', '.join(layer.name for layer in model.layers) or 'none'}. Layers are matched by name.",
        )
    return StartWeights(b"".join(pieces), taken, drawn, source.label)


def _check_fits(layer: LayerWeights, piece: bytes, source: SourceWeights) -> None:
    theirs = source.shapes[layer.name] if source.shapes else None
    if len(piece) == layer.n_bytes and theirs in (None, layer.shapes):
        return
    has = f"arrays of the shapes {_text(theirs)}" if theirs else f"{len(piece)} bytes"
    raise InvalidParameter(
        f"{_WHAT}: layer {layer.name!r} of {source.label} has {has}, but the architecture's has"
        f" {_text(layer.shapes)}, {layer.n_bytes} bytes",
        hint="To start a layer from new weights, give it a different name in the new architecture.",
    )


def _text(shapes: Iterable[Iterable[int]]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)
