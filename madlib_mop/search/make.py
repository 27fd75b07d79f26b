"""Makes the search of a method by its name; called by the driver, for a new run and for a resume."""

from __future__ import annotations

from importlib import import_module

from madlib_mop.models.parameters.search_grid import check_random_state
from madlib_mop.search.base import Search
from madlib_mop.search.parameters import SearchParams, method_name, parse_params
from madlib_mop.search.space import SearchSpace

_CLASSES = {
    "hyperband": "hyperband:Hyperband",
    "hyperopt": "sampled:Hyperopt",
    "asha": "asha:Asha",
    "tpe": "sampled:Tpe",
    "pbt": "pbt:Pbt",
}


def make_search(method: str | None, params: SearchParams | str | None, space: SearchSpace, random_state: int) -> Search:
    """Make a search; Optuna is imported only for the methods that need it.

    Parameters
    ----------
    method : str or None
        A name of `parameters.METHODS`, in any case; None is hyperband.
    params : SearchParams, str or None
        automl_params as a user gave it, or parsed.
    space : SearchSpace
    random_state : int
        A search without one could not be resumed: draw one and record it where the user gave none.

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
    module, cls = _CLASSES[name].split(":")
    return getattr(import_module(f"madlib_mop.search.{module}"), cls)(params, space, random_state)
