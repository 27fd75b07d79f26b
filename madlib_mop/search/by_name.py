"""The methods of search by name, the parser of their parameters, and their searches; called by the driver.

A method is a module in `methods/`, which has its name, with a subclass of `base.Search` and one of
`parameters.SearchParams`. The help text and the manual's tables of methods and parameters are made from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.calls import suggestion
from madlib_mop.models.parameters.literals import read_keywords, shorten
from madlib_mop.models.parameters.search_grid import check_random_state
from madlib_mop.search import methods
from madlib_mop.search.base import Search
from madlib_mop.search.objectives import Costs
from madlib_mop.search.parameters import SearchParams, own_first
from madlib_mop.search.past import PastTrial
from madlib_mop.search.space import GivenPoint, SearchSpace

DEFAULT_METHOD = "hyperband"
#: The default first. A module is imported when its method is used, because some import Optuna.
METHODS = (DEFAULT_METHOD, *sorted({module.name for module in iter_modules(methods.__path__)} - {DEFAULT_METHOD}))


def search_class(method: str) -> type[Search]:
    """Return the class of a method's searches; ``method`` is a name of `METHODS`."""
    module = import_module(f"{methods.__name__}.{method}")
    (found,) = (
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Search) and one.__module__ == module.__name__
    )
    return found


def method_name(text: str | None) -> str:
    """Return a method's name for what a user wrote, in any case; NULL is hyperband.

    Raises
    ------
    InvalidParameter
        There is no such method.
    """
    name = DEFAULT_METHOD if text is None else text.strip().lower()
    if name not in METHODS:
        raise InvalidParameter(f"automl_method is unknown. Received: {text!r}", hint=suggestion(name, METHODS))
    return name


def parse_params(method: str, text: str | None) -> SearchParams:
    """Parse automl_params: ``name=value, ...``, or a JSON object; NULL and '' give the defaults, as do missing names.

    Names may be written in any case, but where two differ by it alone (asha's R and r).

    Raises
    ------
    UnreadableText
        The text does not parse.
    InvalidParameter
        A name is not one of the method's, or a value cannot be used.
    """
    kind = search_class(method).params_class
    if text is None or not text.strip():
        return kind()
    hint = f"Write e.g. {kind().text}."
    given, names = {}, [field.name for field in own_first(kind)]
    for written, value in read_keywords(text, "automl_params", hint).items():
        alike = [name for name in names if name.lower() == written.lower()]
        name = written if written in names else alike[0] if len(alike) == 1 else None
        if name is None:
            raise InvalidParameter(
                f"automl_params: {method} has no parameter of that name. Received: {written!r}",
                hint=suggestion(written, names),
            )
        if name in given:
            raise InvalidParameter(f"automl_params: {name} occurs twice. Received: {shorten(text)}", hint=hint)
        given[name] = value
    try:
        return kind(**given)
    except InvalidParameter as error:
        raise InvalidParameter(f"automl_params: {error.message}", hint=error.hint or hint) from None


def make_search(
    method: str | None,
    params: SearchParams | str | None,
    space: SearchSpace,
    random_state: int,
    past: Sequence[PastTrial] = (),
    can_pace: bool = True,
    given: Sequence[GivenPoint] = (),
    costs: Mapping[int, Costs] = MappingProxyType({}),
) -> Search:
    """Make a search.

    Parameters
    ----------
    method : str or None
        A name of `METHODS`, in any case; None is hyperband.
    params : SearchParams, str or None
        automl_params as a user gave it, or parsed.
    space : SearchSpace
    random_state : int
        A search without one could not be resumed: draw one and record it where the user gave none.
    past : sequence of PastTrial
        Configurations of earlier runs.
    can_pace : bool
        False for a search that an earlier version began.
    given : sequence of GivenPoint
        The configurations that its parameter ``try_first`` names.
    costs : mapping of int to tuple of int
        With several objectives: what each architecture costs, by model_id.

    Raises
    ------
    UnreadableText, InvalidParameter
        The method, a parameter or the random state cannot be used.
    """
    name = method_name(method)
    if not isinstance(params, SearchParams):
        params = parse_params(name, params)
    if random_state is None:
        raise ValueError("a search needs a random_state")
    check_random_state(random_state)
    return search_class(name)(params, space, random_state, past, can_pace, given, costs)
