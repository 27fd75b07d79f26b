"""Searches of configurations, for madlib_keras_automl: pure; the driver trains their proposals and reports losses."""

from .base import Action, Add, Exploit, Extend, Finish, Proposal, Search, Stop
from .hyperband import HyperbandParams, Round, hyperband_rounds
from .methods import METHODS, make_search, method_name, parse_params, search_class
from .parameters import SearchParams
from .space import SearchSpace

__all__ = [
    "METHODS",
    "Action",
    "Add",
    "Exploit",
    "Extend",
    "Finish",
    "HyperbandParams",
    "Proposal",
    "Round",
    "Search",
    "SearchParams",
    "SearchSpace",
    "Stop",
    "hyperband_rounds",
    "make_search",
    "method_name",
    "parse_params",
    "search_class",
]
