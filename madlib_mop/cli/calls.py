"""Creates commands from the specification of an SQL function, with the same argument names."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from madlib_mop.calls import Argument, Function
from madlib_mop.errors import InvalidParameter

_KINDS = {"integer": int, "bigint": int, "boolean": bool, "real": float, "double precision": float}


def command_for(
    function: Function, run: Callable[..., None], options: dict[str, Any], text: str
) -> Callable[..., None]:
    """Return a function for Typer, with a parameter for each argument of an SQL function.

    Parameters
    ----------
    function : Function
        Arguments without a default become positional ones, the others options.
    run : callable
        Called with the function's name, its arguments by name, and the values of ``options`` by name.
    options : dict
        Further parameters by name: (annotation, default).
    text : str
        The command's help.
    """
    parameters = [_parameter(argument) for argument in function.arguments]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]

    def command(**values: Any) -> None:
        given = {a.name: _value(a, values[a.name]) for a in function.arguments}
        run(function.name, given, **{name: values[name] for name in options})

    command.__doc__ = text
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(argument: Argument) -> inspect.Parameter:
    kind = _KINDS.get(argument.type, str)
    option = f"--{argument.name.replace('_', '-')}"
    help_text = argument.help + (", with commas" if argument.type.endswith("[]") else "")
    default = argument.default
    if argument.is_required:
        annotation, default = Annotated[kind, typer.Argument(help=help_text)], inspect.Parameter.empty
    elif kind is bool:  # a flag: false if the option is absent
        annotation, default = Annotated[bool, typer.Option(option, help=help_text)], bool(default)
    else:
        annotation = Annotated[kind | None, typer.Option(option, help=help_text)]
    return inspect.Parameter(argument.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(argument: Argument, value: Any) -> Any:
    """Return a value of the command line in JSON form. Raises InvalidParameter for an invalid list."""
    if not argument.type.endswith("[]") or value is None:
        return value
    items = [item.strip() for item in value.strip("{}").split(",")]
    kind = _KINDS.get(argument.type.removesuffix("[]"), str)
    try:
        return [kind(item) for item in items]
    except ValueError:
        raise InvalidParameter(
            f"{argument.name} must be a comma-separated list such as 1,2. Received: {value}"
        ) from None
