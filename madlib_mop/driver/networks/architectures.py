"""Architectures for the inputs and targets of a preprocessor, from small to large; `training` trains them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.certainty.balance import log_shares, rarest_class
from madlib_mop.columns.preprocessors.fits import ClassFit, FittedColumn
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.networks.graph import Graph, LayerOutput, Node
from madlib_mop.driver.networks.inputs import join_inputs, layer_name, level_weights, linear_inputs, term_weights

_NARROWEST, _WIDEST = 64, 512
#: Units of a hidden layer for each of a text's, so that a text has 4 to 32.
_WIDTHS_OF_TEXT = 16
#: Tables with fewer training rows get lower frequencies and learning rates, since high ones fit noise.
ENOUGH_ROWS = 4_000


@dataclass(frozen=True)
class NetworkForm:
    """The form of a network.

    Attributes
    ----------
    name : str
    body : str
        ``mlp``: hidden layers one after another. ``resnet``: blocks with a sum around each. ``linear``: none.
    depth : int
        Hidden layers, or blocks.
    widen : int
        Factor of the width that fits the number of rows (`hidden_width`).
    frequency : float or None
        Of the periodic embeddings of numbers in tables of 4,000 rows or more (`join_inputs`); None for none.
    dropout : float
        Rate after each hidden layer.
    """

    name: str
    body: str
    depth: int
    widen: int
    frequency: float | None
    dropout: float

    @property
    def description(self) -> str:
        """One line for the table of architectures."""
        if self.body == LINEAR:
            return "logistic or linear regression: no hidden layer"
        body = "residual blocks" if self.body == "resnet" else "hidden layers"
        numbers = "numbers as they are" if self.frequency is None else "periodic embeddings of numbers"
        return f"{self.depth} {body}, {numbers}, dropout {self.dropout}"


#: The body and the name of the linear model.
LINEAR = "linear"
#: In the order of their use: the first is the most robust, the second shows what the others add; each next one differs
#: from those before it.
RECIPES = (
    NetworkForm("periodic perceptron", "mlp", 3, 1, 0.3, 0.1),
    NetworkForm(LINEAR, LINEAR, 0, 0, None, 0.0),
    NetworkForm("wide periodic perceptron", "mlp", 3, 2, 1.0, 0.05),
    NetworkForm("residual network", "resnet", 2, 1, None, 0.1),
    NetworkForm("periodic residual network", "resnet", 2, 1, 1.0, 0.1),
    NetworkForm("perceptron", "mlp", 2, 1, None, 0.1),
    NetworkForm("smooth perceptron", "mlp", 3, 1, 0.1, 0.3),
)


def hidden_width(n_rows: int) -> int:
    """Return the units of a hidden layer for so many training rows: a power of two near 1.2 sqrt(n), 64 to 512."""
    wanted = 1.2 * math.sqrt(max(n_rows, 1))
    return int(min(_WIDEST, max(_NARROWEST, 2 ** round(math.log2(wanted)))))


def is_regression(preprocessor: Preprocessor) -> bool:
    """Return whether all targets are numbers."""
    return all(not isinstance(column.fit, ClassFit) for column in preprocessor.targets)


def architecture(
    preprocessor: Preprocessor,
    n_rows: int,
    recipe: NetworkForm,
    class_counts: Mapping[str, Sequence[int]] | None = None,
) -> Node:
    """Return a network as JSON.

    The perceptron is that of RealMLP (Holzmüller et al., "Better by Default", 2024): SELU for classes, Mish for
    numbers. The residual network is that of Gorishniy et al. ("Revisiting Deep Learning Models for Tabular Data", 2021,
    section 3.2), with layer normalization in place of batch normalization, since a model visits one segment after
    another and their statistics differ. Ensembles within a network, as in TabM (Gorishniy et al., "TabM: Advancing
    Tabular Deep Learning with Parameter-Efficient Ensembling", 2024), are not proposed: `make_ensemble` combines the
    networks that the leaderboard has already.

    Where the classes of a target are unbalanced, the logarithms of their shares are added to the output, so that the
    untrained network predicts about these shares. They are a layer of their own and not the start of the bias, because
    weight decay would draw the bias to equal shares.

    Parameters
    ----------
    preprocessor : Preprocessor
        Its tensors are the inputs, its targets the outputs, both in their order.
    n_rows : int
        Training rows.
    recipe : NetworkForm
    class_counts : mapping of str to (sequence of int), optional
        The training rows of each class, by target.
    """
    graph = Graph(recipe.name.replace(" ", "_"))
    frequency = None if recipe.frequency is None else recipe.frequency * min(1.0, math.sqrt(n_rows / ENOUGH_ROWS))
    width = hidden_width(n_rows)
    if recipe.body == LINEAR:
        return _linear(graph, preprocessor, class_counts or {})
    text_units = width // _WIDTHS_OF_TEXT
    joined = join_inputs(graph, preprocessor.tensors, frequency, max(recipe.dropout, 0.1), text_units)
    width *= recipe.widen
    body = _residual if recipe.body == "resnet" else _perceptron
    last = body(graph, joined, width, recipe, "mish" if is_regression(preprocessor) else "selu")
    outputs = []
    for place, column in enumerate(preprocessor.targets, 1):
        name = output_name(column.name, place)
        shares = _shares(column, class_counts or {})
        if not isinstance(column.fit, ClassFit):
            outputs.append(graph.dense(last, 1, name))
        elif shares is None:
            outputs.append(graph.dense(last, len(column.fit.classes), name, activation="softmax"))
        else:
            outputs.append(_probabilities(graph, graph.dense(last, len(column.fit.classes), "scores"), name, shares))
    return graph.document(outputs)


def output_name(target: str, place: int) -> str:
    """Return the name of the layer that predicts a target, by the target's place from 1."""
    return f"predicted_{layer_name(target, str(place))}"


def _shares(column: FittedColumn, class_counts: Mapping[str, Sequence[int]]) -> tuple[float, ...] | None:
    """Return the logarithms of the shares of a target's classes; None if they are not known to be unbalanced."""
    counts = class_counts.get(column.name, ())
    if not isinstance(column.fit, ClassFit) or len(counts) != len(column.fit.classes) or rarest_class(counts) is None:
        return None
    return log_shares(counts)


def _probabilities(graph: Graph, scores: LayerOutput, name: str, shares: tuple[float, ...] | None) -> LayerOutput:
    if shares is not None:
        scores = graph.same("Rescaling", scores, "class_shares", scale=1.0, offset=list(shares))
    return graph.same("Activation", scores, name, activation="softmax")


def _linear(graph: Graph, preprocessor: Preprocessor, class_counts: Mapping[str, Sequence[int]]) -> Node:
    """Return logistic or linear regression: a weight for each number, level and term, all 0 at the start.

    Weights of 0 predict the same for all rows, so that what a few steps do to a rare level is little.
    """
    inputs = linear_inputs(graph, preprocessor.tensors)
    outputs = []
    for place, column in enumerate(preprocessor.targets, 1):
        name = output_name(column.name, place)
        is_class, shares = isinstance(column.fit, ClassFit), _shares(column, class_counts)
        n_units = len(column.fit.classes) if isinstance(column.fit, ClassFit) else 1
        more = [level_weights(graph, x, tensor, n_units) for x, tensor in inputs.indices]
        more += [term_weights(graph, x, weights, tensor, n_units) for x, weights, tensor in inputs.terms]
        if not more and shares is None:
            last = {"activation": "softmax"} if is_class else {}
            outputs.append(graph.dense(inputs.vector, n_units, name, kernel_initializer="zeros", **last))
            continue
        numbers = graph.dense(inputs.vector, n_units, "numbers", kernel_initializer="zeros")
        if not is_class:
            outputs.append(graph.add([numbers, *more], name))
        else:
            scores = graph.add([numbers, *more]) if more else numbers
            outputs.append(_probabilities(graph, scores, name, shares))
    return graph.document(outputs)


def _perceptron(graph: Graph, x: LayerOutput, width: int, recipe: NetworkForm, activation: str) -> LayerOutput:
    initializer = "lecun_normal" if activation == "selu" else "he_normal"
    for _ in range(recipe.depth):
        x = graph.dense(x, width, "hidden", activation=activation, kernel_initializer=initializer)
        x = graph.dropout(x, recipe.dropout)
    return x


def _residual(graph: Graph, x: LayerOutput, width: int, recipe: NetworkForm, _: str) -> LayerOutput:
    x = graph.dense(x, width, "first")
    for _number in range(recipe.depth):
        y = graph.same("LayerNormalization", x)
        y = graph.dense(y, 2 * width, "hidden", activation="relu", kernel_initializer="he_normal")
        y = graph.dropout(y, recipe.dropout)
        y = graph.dense(y, width, "back")
        x = graph.add([x, y])
    x = graph.same("LayerNormalization", x)
    return graph.same("Activation", x, activation="relu")
