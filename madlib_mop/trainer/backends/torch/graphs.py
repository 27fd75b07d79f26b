"""Steps of Keras models as graphs of PyTorch's operations: the same kernels in the same order, without Keras' Python.

Called by ``loop.py``. In a step of a small network, Keras' layers, metrics and optimizer take longer than the kernels.
`make_fx` captures which operations a step calls, backward and update included, below automatic differentiation. The
graph calls them again on other values, so its results have the bits of the step. Nothing is combined or compiled.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import torch
from torch.fx.experimental.proxy_tensor import make_fx

#: ``f(*values of the variables, *inputs) -> results``; changes the values in place, as the step changes the variables.
Graph = Callable[..., list[torch.Tensor]]


class Untraceable(Exception):
    """The step decides by the value of a tensor, which no graph can: a random seed, for example."""


@contextlib.contextmanager
def standing_for(variables: Sequence[keras.Variable], tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let tensors stand for the values of variables."""
    own = [variable._value for variable in variables]
    try:
        for variable, tensor in zip(variables, tensors, strict=True):
            variable._value = tensor
        yield
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable._value = value


def graph_of(
    step: Callable[..., list[torch.Tensor]], variables: Sequence[keras.Variable], inputs: Sequence[torch.Tensor]
) -> Graph:
    """Capture a step.

    Parameters
    ----------
    step : callable
        ``step(*inputs)``: reads and changes variables.
    variables : sequence of keras.Variable
        All that it may read or change.
    inputs : sequence of Tensor
        Of the shapes for which the graph will be used.

    Raises
    ------
    Untraceable
        If the step needs the value of a tensor.
    """
    values = [variable._value for variable in variables]

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with standing_for(variables, tensors[: len(values)]):
            return step(*tensors[len(values) :])

    # With tensors that have no values, nothing is computed, and a step that needs a value fails.
    capture = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)
    try:
        graph: Graph = capture(*values, *inputs).forward
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise Untraceable(str(error)) from error
    return graph
