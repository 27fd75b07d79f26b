"""Compiles custom functions; called by ``recipe.py``, after the trainer has entered its sandbox.

Python source is executed, or a dill pickle loaded, only if a superuser registered it. An error in it fails the models
that use it, and names the function and line.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from madlib_mop.errors import ModelFailed
from madlib_mop.models.parameters.custom import CustomFunctions, is_pickle
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.backends.base.interface import Tensor
from madlib_mop.trainer.process.failures import MEMORY, failure_of, sentence_of

_WANTED = "Return one value for each row, float32 (batch,), computed from y_true and y_pred."
_MAX_KEPT = 256
CustomFunction = Callable[[Tensor, Tensor], Any]  # (y_true, y_pred) -> one number a row, to be checked


def define(functions: CustomFunctions, names: Iterable[str]) -> dict[str, CustomFunction]:
    """Create functions by name.

    Returns
    -------
    dict of str to callable
        ``f(y_true, y_pred)`` each; its errors become ModelFailed with its name.

    Raises
    ------
    ModelFailed
        If one cannot be created, or is no function of (y_true, y_pred).
    """
    return {name: _made(name, functions.objects[name], functions.pickles) for name in names}


@functools.lru_cache(_MAX_KEPT)
def _made(name: str, value: bytes, pickles: bool) -> CustomFunction:
    try:
        function = _opened(name, value, pickles) if is_pickle(value) else _executed(name, value)
    except (Exception, SystemExit) as error:
        raise _failed(name, error, _file(name), "cannot be created") from error
    if not callable(function) or isinstance(function, type):
        raise ModelFailed(
            f"custom function {name!r} is not a function but {_kind(function)}",
            hint="Register source that has def name(y_true, y_pred): ...",
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ModelFailed(
            f"custom function {name!r} must take two positional arguments, y_true and y_pred; it takes"
            f" {inspect.signature(function)}"
        ) from None
    except ValueError:  # a function written in C has no signature
        pass
    return _guarded(name, function)


def _executed(name: str, value: bytes) -> Any:
    # A name of its own: the source must not see itself as one of our modules or as a script.
    namespace = {"__name__": f"custom_function_{name}"}
    exec(compile(value.decode("utf-8"), _file(name), "exec", dont_inherit=True), namespace)
    if name not in namespace:
        raise NameError(f"the source does not define {name}")
    return namespace[name]


def _opened(name: str, value: bytes, pickles: bool) -> Any:
    if not pickles:
        raise ModelFailed(
            f"custom function {name!r} is a pickle, which trainers do not load",
            hint="Register its source, or ask a superuser to set pickled_functions to on in madlib_mop.setting.",
        )
    try:
        import dill
    except ImportError:
        raise ModelFailed(
            f"custom function {name!r} is a dill pickle, and dill is not installed in the library's environment",
            hint="Install dill there.",
        ) from None
    return dill.loads(value)


def _guarded(name: str, function: CustomFunction) -> CustomFunction:
    """Return the function with checks of its errors and its result."""
    file = getattr(getattr(function, "__code__", None), "co_filename", _file(name))

    def checked(y_true: Tensor, y_pred: Tensor) -> Any:
        try:
            result = function(y_true, y_pred)
        except Exception as error:
            if failure_of(error).kind == MEMORY:
                raise
            raise _failed(name, error, file, "failed") from error
        return _checked(name, result, y_pred)

    checked.__name__ = checked.__qualname__ = name
    return checked


def _checked(name: str, result: Any, y_pred: Tensor) -> Any:
    """Reject results that are not one number for each row: Keras would accept them, or fail later without the
    function's name."""
    try:
        form = choice.current().tensor_form(result)
    except (TypeError, ValueError):
        raise ModelFailed(f"custom function {name!r} returned {_kind(result)}, not a tensor", hint=_WANTED) from None
    if not form.is_number:
        raise ModelFailed(f"custom function {name!r} returned values of type {form.dtype}", hint=_WANTED)
    shape = form.shape
    if shape and shape[0] is not None and shape[0] != y_pred.shape[0]:
        raise ModelFailed(
            f"custom function {name!r} returned the shape {_text(shape)} for predictions of the shape"
            f" {_text(y_pred.shape)}: neither one value for each row nor a single value",
            hint=_WANTED,
        )
    return form.tensor


def _failed(name: str, error: BaseException, file: str, what: str) -> ModelFailed:
    if isinstance(error, ModelFailed):
        return error
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == file:
            line = step.tb_lineno
        step = step.tb_next
    where = f" in line {line}" if line else ""
    return ModelFailed(
        f"custom function {name!r} {what}{where}: {type(error).__name__}: {sentence_of(error)}",
        hint="Correct it and register it again: delete_custom_function, then load_custom_function.",
    )


def _file(name: str) -> str:
    return f"<custom function {name}>"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _text(shape: Iterable[int | None]) -> str:
    return "(" + ", ".join("batch" if size is None else str(size) for size in shape) + ")"
