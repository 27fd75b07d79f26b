"""Whether two models have the same configuration: by the meaning of their parameters, not by their text."""

from collections.abc import Iterable

from madlib_mop.catalog.rows.model import Parameters
from madlib_mop.models.parameters.parser import CompileParams, parse_compile_params, parse_fit_params


def same_configuration(one: Parameters, other: Parameters, custom_names: Iterable[str]) -> bool:
    """Return whether two models have the same architecture, compile parameters and fit parameters.

    Parameters
    ----------
    one, other : Parameters
    custom_names : iterable of str
        The run's custom functions.
    """
    if one.model_arch != other.model_arch:
        return False
    if (one.compile_params, one.fit_params) == (other.compile_params, other.fit_params):
        return True
    fit = [parse_fit_params(each.fit_params) for each in (one, other)]
    return _compile(one, custom_names) == _compile(other, custom_names) and fit[0] == fit[1]


def same_optimizer(one: Parameters, other: Parameters, custom_names: Iterable[str]) -> bool:
    """Return whether two models have an optimizer of the same kind, with any arguments."""
    return _compile(one, custom_names).optimizer.name == _compile(other, custom_names).optimizer.name


def _compile(parameters: Parameters, custom_names: Iterable[str]) -> CompileParams:
    return parse_compile_params(parameters.compile_params, custom_names)
