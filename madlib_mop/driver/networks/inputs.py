"""The inputs of a proposed network, one branch for each tensor of a preprocessor; all joined into one vector a row."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from madlib_mop.columns.preprocessors.preprocessor import InputTensor
from madlib_mop.driver.networks.graph import Graph, LayerOutput

#: Maximum number of numeric inputs for which each has an embedding.
MAX_EMBEDDED = 256
_FREQUENCIES, _WIDTH = 16, 4
#: Share of a hashed text's numbers that are dropped in training, before its hidden layer.
_TEXT_DROPOUT = 0.5
#: What a linear model multiplies the weights of a text's terms by: for two classes, its penalty of a term is then that
#: of scikit-learn's LogisticRegression with C = 2.5. On the texts of benchmarks/quality/learned.py, 1 fits too
#: little of the docstrings, and 10 more noise of the titles of comedies.
TERM_SCALE = 5.0
#: Of the first weights of a text's terms.
_TERM_REACH = 0.5
#: Most squares of a side of an image, and of all of it with three colours, for a linear model.
_SQUARES = 16
MOST_SQUARES = 3 * _SQUARES**2
_SIMPLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}\Z")


def layer_name(name: str, otherwise: str) -> str:
    """Return the name of a column if a layer can have it, else another; Keras allows no slash in names."""
    return name if _SIMPLE.match(name) else otherwise


def join_inputs(
    graph: Graph, tensors: Sequence[InputTensor], frequency: float | None, dropout: float, text_units: int
) -> LayerOutput:
    """Add the inputs of a packed table and a branch for each.

    Parameters
    ----------
    graph : Graph
    tensors : sequence of InputTensor
        The preprocessor's, in their order, which is that of the packed table.
    frequency : float or None
        Standard deviation of the first frequencies of periodic embeddings, in cycles a unit; None for no embeddings of
        numbers.
    dropout : float
        Rate in the branches of texts, vectors and images.
    text_units : int
        Maximum number of units of a text's hidden layer.

    Returns
    -------
    LayerOutput
        float32 (n_units,) a row.
    """
    parts: list[LayerOutput] = []
    inputs = _inputs(graph, tensors)
    for place, (x, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        if tensor.kind == "numbers":
            parts.append(x)
            if frequency is not None and x.shape[0] <= MAX_EMBEDDED:
                parts.append(graph.flatten(_periodic(graph, x, frequency)))
        elif tensor.kind == "index":
            parts.append(_index(graph, x, tensor))
        elif tensor.kind == "image":
            parts.append(_image(graph, x, dropout))
        elif tensor.kind == "text":
            parts.append(_text(graph, x, dropout, text_units))
        elif tensor.kind == "terms":
            parts.append(_terms(graph, x, inputs[place + 1], tensor, dropout, text_units))
        elif tensor.kind == "weights":
            continue  # with the terms before them
        else:
            parts.append(_hidden(graph, graph.flatten(x), tensor.kind, dropout, 128))
    return graph.concatenate(parts)


@dataclass(frozen=True)
class LinearInputs:
    """The inputs of a linear model.

    Attributes
    ----------
    vector : LayerOutput
        Numbers, hashed texts, vectors and images, joined into one vector a row.
    indices : tuple of (LayerOutput, InputTensor)
        Categories: the number of the level.
    terms : tuple of (LayerOutput, LayerOutput, InputTensor)
        Texts: the indices and the weights of their terms.
    """

    vector: LayerOutput
    indices: tuple[tuple[LayerOutput, InputTensor], ...]
    terms: tuple[tuple[LayerOutput, LayerOutput, InputTensor], ...]


def linear_inputs(graph: Graph, tensors: Sequence[InputTensor]) -> LinearInputs:
    """Add the inputs of a packed table as they are. Images are averaged over at most 16 x 16 squares."""
    parts: list[LayerOutput] = []
    indices: list[tuple[LayerOutput, InputTensor]] = []
    terms: list[tuple[LayerOutput, LayerOutput, InputTensor]] = []
    inputs = _inputs(graph, tensors)
    for place, (x, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        if tensor.kind == "index":
            indices.append((x, tensor))
        elif tensor.kind == "terms":
            terms.append((x, inputs[place + 1], tensor))
        elif tensor.kind == "weights":
            continue
        elif tensor.kind == "image":
            parts.append(_squares(graph, x))
        else:
            parts.append(graph.flatten(x))
    if parts:
        vector = graph.concatenate(parts)
    else:  # zeros, of which a linear layer makes its bias
        vector = graph.same("Rescaling", indices[0][0] if indices else terms[0][1], scale=0.0, offset=0.0)
    return LinearInputs(vector, tuple(indices), tuple(terms))


def level_weights(graph: Graph, x: LayerOutput, tensor: InputTensor, n_units: int) -> LayerOutput:
    """Return the weights of a category's level, one for each unit, all 0 at the start: (n_units,) a row."""
    rows = graph.layer(
        "Embedding", x, (1, n_units), "levels", input_dim=tensor.n_codes or 1, output_dim=n_units,
        embeddings_initializer="zeros",
    )  # fmt: skip
    return graph.layer("Reshape", rows, (n_units,), target_shape=[n_units])


def term_weights(
    graph: Graph, x: LayerOutput, weights: LayerOutput, tensor: InputTensor, n_units: int
) -> LayerOutput:
    """Return the sum of the terms' weights in the text times those of the model, all 0 at the start: (n_units,) a row.

    The sum is multiplied by `TERM_SCALE`, so that gradient descent and its penalty treat a text as a long row.
    """
    y = _product(graph, x, weights, tensor, n_units, "zeros")
    # the JSON of Dot does not tell its shape, by which a model is compared with its table
    y = graph.layer("Reshape", y, (n_units,), target_shape=[n_units])
    return graph.same("Rescaling", y, "scaled_terms", scale=TERM_SCALE, offset=0.0)


def _inputs(graph: Graph, tensors: Sequence[InputTensor]) -> list[LayerOutput]:
    """Add the inputs, which have the names of their tensors where a layer can have them."""
    names = [layer_name(tensor.name, f"input_{place}") for place, tensor in enumerate(tensors, 1)]
    return [graph.input(name, one.shape, one.dtype) for name, one in zip(names, tensors, strict=True)]


def _periodic(graph: Graph, x: LayerOutput, frequency: float) -> LayerOutput:
    """Return an embedding of each number: (n_numbers, 4) a row.

    It is cos(2 pi w x + b), then a linear layer for each number: RealMLP's PBLD embeddings (Holzmüller et al., "Better
    by Default", 2024, section 3), which simplify the periodic embeddings of Gorishniy et al. ("On Embeddings for
    Numerical Features in Tabular Deep Learning", 2022, section 3.3).
    """
    n = x.shape[0]
    waves = graph.layer(
        "EinsumDense", x, (n, _FREQUENCIES), "waves",
        equation="bf,fk->bfk", output_shape=[n, _FREQUENCIES], bias_axes="fk",
        kernel_initializer=_initializer("RandomNormal", mean=0.0, stddev=2 * math.pi * frequency),
        bias_initializer=_initializer("RandomUniform", minval=-math.pi, maxval=math.pi),
    )  # fmt: skip
    return graph.layer(
        "EinsumDense", graph.layer("Cos", waves, waves.shape), (n, _WIDTH), "embedded",
        equation="bfk,fkd->bfd", output_shape=[n, _WIDTH], bias_axes="fd",
        kernel_initializer=_initializer("RandomNormal", mean=0.0, stddev=1 / math.sqrt(_FREQUENCIES)),
    )  # fmt: skip


def _index(graph: Graph, x: LayerOutput, tensor: InputTensor) -> LayerOutput:
    """Return the embedding of a category, of the width that the preprocessor proposes."""
    width, n_codes = tensor.width or 1, tensor.n_codes or 1
    reach = 1 / math.sqrt(width)
    rows = graph.layer(
        "Embedding", x, (1, width), "embedding", input_dim=n_codes, output_dim=width,
        embeddings_initializer=_initializer("RandomUniform", minval=-reach, maxval=reach),
    )  # fmt: skip
    return graph.flatten(rows)


def _text(graph: Graph, x: LayerOutput, dropout: float, most: int) -> LayerOutput:
    """Return a hidden layer over a hashed text.

    Most texts occur once, so a network learns the texts of its training rows by heart before anything else: in
    `movies` (benchmarks/quality), titles made every network worse than the same one without them. Few units, and
    dropout of the text itself, keep a network from it.
    """
    return _hidden(graph, graph.dropout(x, _TEXT_DROPOUT), "text", dropout, most)


def _terms(
    graph: Graph, x: LayerOutput, weights: LayerOutput, tensor: InputTensor, dropout: float, most: int
) -> LayerOutput:
    """Return a hidden layer over the terms of a text, some of which are dropped in training: see `_text`."""
    units = max(4, most)
    reach = _initializer("RandomUniform", minval=-_TERM_REACH, maxval=_TERM_REACH)
    y = _product(graph, x, graph.dropout(weights, _TEXT_DROPOUT), tensor, units, reach)
    return graph.dropout(graph.same("Activation", y, "text", activation="relu"), dropout)


def _product(
    graph: Graph, x: LayerOutput, weights: LayerOutput, tensor: InputTensor, n_units: int, initializer: object
) -> LayerOutput:
    """Return the product of the sparse matrix of terms, by their indices and weights, with a matrix: (n_units,) a row.
    """
    rows = graph.layer(
        "Embedding", x, (*x.shape, n_units), "terms", input_dim=tensor.n_codes or 1, output_dim=n_units,
        embeddings_initializer=initializer,
    )  # fmt: skip
    return graph.layer("Dot", [weights, rows], (n_units,), "weighted_terms", axes=[1, 1])


def _hidden(graph: Graph, x: LayerOutput, name: str, dropout: float, most: int) -> LayerOutput:
    """Return a narrow hidden layer over a text or a vector; narrower than its input."""
    units = max(4, min(most, x.shape[0] // 2))
    return graph.dropout(graph.dense(x, units, name, activation="relu"), dropout)


def _image(graph: Graph, x: LayerOutput, dropout: float) -> LayerOutput:
    """Return the channels of a small convolutional network: halved until 4 to 7 pixels are left, then averaged."""
    side, channels = x.shape[0], 16
    y = graph.same("Rescaling", x, scale=1 / 255, offset=0.0)
    while side >= 8 and channels <= 128:
        y = graph.layer(
            "Conv2D", y, (side, side, channels), filters=channels, kernel_size=[3, 3], padding="same", activation="relu"
        )
        side //= 2
        y = graph.layer("MaxPooling2D", y, (side, side, channels), pool_size=[2, 2])
        channels *= 2
    y = graph.layer("GlobalAveragePooling2D", y, (y.shape[-1],))
    return graph.dropout(y, dropout)


def _squares(graph: Graph, x: LayerOutput) -> LayerOutput:
    """Return the mean colours of at most 16 x 16 squares of an image."""
    side, channels = x.shape[0], x.shape[2]
    y = graph.same("Rescaling", x, scale=1 / 255, offset=0.0)
    pool = -(-side // _SQUARES)
    if pool > 1:
        y = graph.layer("AveragePooling2D", y, (side // pool, side // pool, channels), pool_size=[pool, pool])
    return graph.flatten(y)


def _initializer(name: str, **config: float) -> dict[str, object]:
    return {"module": "keras.initializers", "class_name": name, "config": config, "registered_name": None}
