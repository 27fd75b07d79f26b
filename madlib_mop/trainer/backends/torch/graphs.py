"""Steps of Keras models as graphs of PyTorch's operations: the same kernels in the same order, without Python.

Called by ``loop.py``. In a step of a small network, Keras' layers, metrics and optimizer take longer than the kernels.
So one step is recorded while it is made: which operations it calls, backward and update included, below automatic
differentiation. PyTorch's interpreter of graphs (TorchScript's) then calls them again on other values. Nothing is
combined or compiled, so the results have the bits of the step.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

#: ``f(*values of the variables, *inputs) -> result``; changes the values in place, as the step changes the variables.
Graph = Callable[..., torch.Tensor]

#: What reads a tensor's values past the operations.
_READS = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.data_ptr,
    }
)
_LIFT_FRESH = torch.ops.aten.lift_fresh.default
_ITEM = torch.ops.aten._local_scalar_dense.default
#: The argument that PyTorch takes as a number, and some optimizers of Keras give as a tensor: a rate.
_FACTOR = "alpha"
_TENSOR = torch._C.TensorType.get()
#: As the interpreter takes them: c10::MemoryFormat.
_MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2}
_OF_OPERATION = "RuntimeError: "
# without the interpreter's own passes, which could combine operations
torch._C._set_graph_executor_optimize(False)


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


def recorded(
    step: Callable[..., torch.Tensor], values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Graph | None]:
    """Make a step and record it; return its result and its graph.

    The graph is None if the step cannot be repeated by one: it decides by the value of a tensor, or draws random
    numbers with a generator of its own.

    Parameters
    ----------
    step : callable
        ``step(*inputs)``.
    values : sequence of Tensor
        The values of all variables that it may read or change.
    inputs : sequence of Tensor
        Of the shapes for which the graph will be used.
    """
    recorder = _Recorder([*values, *inputs])
    with _Calls(recorder), recorder:
        result = step(*inputs)
    return result, recorder.graph(result)


class _Unrecordable(Exception):
    """An operation, or one of its arguments, has no place in a graph."""


def _signature(schema: str) -> str:
    """Return the name of an operation and its overload: ``aten::add.Tensor``."""
    return schema.partition("(")[0]


class _Recorder(TorchDispatchMode):
    """Writes the operations of a step into a graph, while they are executed.

    Attributes
    ----------
    is_repeatable : bool
        Whether a graph can repeat the step, as far as it is known.
    factor : Tensor or None
        What the current call of a function has as its factor, whose number PyTorch reads.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]):
        super().__init__()
        self.is_repeatable = True
        self.factor: torch.Tensor | None = None
        self._graph: Any = torch._C.Graph()
        # without the weak references, all intermediate results would stay in memory until the end of the step
        self._values: Any = WeakTensorKeyDictionary()
        for tensor in inputs:
            self._values[tensor] = self._graph.addInput()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Execute an operation and record it."""
        kwargs = kwargs or {}
        if function is _ITEM and args[0] is self.factor:
            return function(*args)
        node = self._node(function, args, kwargs) if self.is_repeatable else None
        result = function(*args, **kwargs)
        if node is not None:
            self._note(node, function._schema.returns, result)
        return result

    def graph(self, result: torch.Tensor) -> Graph | None:
        """Return the graph of what was recorded, which returns this result."""
        if not self.is_repeatable or result not in self._values:
            return None
        self._graph.registerOutput(self._values[result])
        made = torch._C._create_function_from_graph("step", self._graph)

        def graph(*tensors: torch.Tensor) -> torch.Tensor:
            try:
                found: torch.Tensor = made(*tensors)
            except RuntimeError as error:  # the interpreter's text has that of the operation at its end
                raise RuntimeError(str(error).rpartition(_OF_OPERATION)[2].strip()) from None
            return found

        return graph

    def _node(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the graph's node of an operation, which has its arguments; None if there is none."""
        schema = function._schema
        try:
            if torch.Tag.dynamic_output_shape in function.tags:  # Python sees the shape, which values decide
                raise _Unrecordable
            given = [*args, *(kwargs.get(one.name, one.default_value) for one in schema.arguments[len(args) :])]
            for argument, one in zip(given, schema.arguments, strict=True):
                if one.is_write:
                    self._must_not_be_constant(argument)
            if function is _LIFT_FRESH:  # of numbers of Python, as a new tensor each time: the step may change it
                copied = self._graph.insertConstant(args[0].clone())
                return self._inserted("aten::clone", [copied, self._graph.insertConstant(None)], [_TENSOR])
            values = [self._argument(value, one) for value, one in zip(given, schema.arguments, strict=True)]
            node = self._inserted(schema.name, values, [returned.type for returned in schema.returns])
            # the interpreter chooses among operations of one name by the types of the arguments
            wanted, found = _signature(str(schema)), _signature(node.schema())
            if found not in (wanted, wanted.replace(".Tensor", ".Scalar")):  # both make a tensor of a number
                raise _Unrecordable
            return node
        except Exception:  # the step is made, whatever becomes of its graph
            self.is_repeatable = False
            return None

    def _note(self, node: Any, returns: Sequence[Any], result: Any) -> None:
        """Remember which values of the graph the results of an operation are."""
        results = [result] if len(returns) == 1 else list(result or ())
        for value, one in zip(node.outputs(), results, strict=True):
            if isinstance(one, torch.Tensor):
                self._values[one] = value
            elif isinstance(one, list | tuple) and all(isinstance(item, torch.Tensor) for item in one):
                unpacked = self._inserted("prim::ListUnpack", [value], [_TENSOR] * len(one))
                for item, item_value in zip(one, unpacked.outputs(), strict=True):
                    self._values[item] = item_value
            elif one is not None:  # the step gets to know a value; None is a result that was not asked for
                self.is_repeatable = False

    def _inserted(self, name: str, inputs: Sequence[Any], types: Sequence[Any]) -> Any:
        node = self._graph.create(name, inputs, len(types))
        for output, its_type in zip(node.outputs(), types, strict=True):
            output.setType(its_type)
        return self._graph.insertNode(node)

    def _argument(self, argument: Any, declared: Any) -> Any:
        if declared.name == _FACTOR and self.factor is not None:
            tensor = self._value_of(self.factor, _TENSOR)
            return next(iter(self._inserted("aten::item", [tensor], [declared.type]).outputs()))
        return self._value_of(argument, declared.type)

    def _value_of(self, argument: Any, its_type: Any) -> Any:
        """Return the graph's value of an argument: of a tensor that was recorded, of a list, or a constant."""
        if isinstance(its_type, torch._C.OptionalType) and argument is not None:
            return self._value_of(argument, its_type.getElementType())
        if isinstance(argument, torch.Tensor):
            if argument in self._values:
                return self._values[argument]
            return self._graph.insertConstant(argument)
        if isinstance(its_type, torch._C.ListType) and isinstance(argument, list | tuple):
            items = [self._value_of(item, its_type.getElementType()) for item in argument]
            return next(iter(self._inserted("prim::ListConstruct", items, [its_type]).outputs()))
        if isinstance(argument, torch.memory_format):
            argument = _MEMORY_FORMATS.get(argument, argument)
        if isinstance(its_type, torch._C.FloatType) and isinstance(argument, int):
            argument = float(argument)
        if isinstance(argument, torch.Generator):  # perhaps one for this step only
            raise _Unrecordable
        return self._graph.insertConstant(argument)

    def _must_not_be_constant(self, argument: Any) -> None:
        """Raise _Unrecordable for a tensor that a graph would have as a constant, and change."""
        tensors = argument if isinstance(argument, list | tuple) else [argument]
        if any(isinstance(one, torch.Tensor) and one not in self._values for one in tensors):
            raise _Unrecordable


class _Calls(TorchFunctionMode):
    """Looks at a step's calls of PyTorch's functions: for factors that are tensors, and for values that are read."""

    def __init__(self, recorder: _Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        kwargs = kwargs or {}
        if function in _READS:
            self._recorder.is_repeatable = False
        factor = kwargs.get(_FACTOR)
        self._recorder.factor = factor if isinstance(factor, torch.Tensor) else None
        try:
            return function(*args, **kwargs)
        finally:
            self._recorder.factor = None
