"""Searches of configurations, for madlib_keras_automl: pure; the driver trains their proposals and reports losses."""

from madlib_mop.models.changes import Add, Exploit, Extend, Finish, Proposal, Stop

from .base import Action, Search
from .by_name import METHODS, make_search, method_name, parse_params, search_class
from .location import Locator
from .methods.hyperband import HyperbandParams, Round, hyperband_rounds
from .objectives import costs_of, first_front, read_constraints, read_objective
from .parameters import SIMILAR, SearchParams
from .past import WORST, PastTrial
from .space import GivenPoint, SearchSpace

__all__ = [
    "METHODS",
    "SIMILAR",
    "WORST",
    "Action",
    "Add",
    "Exploit",
    "Extend",
    "Finish",
    "GivenPoint",
    "HyperbandParams",
    "Locator",
    "PastTrial",
    "Proposal",
    "Round",
    "Search",
    "SearchParams",
    "SearchSpace",
    "Stop",
    "costs_of",
    "first_front",
    "hyperband_rounds",
    "make_search",
    "method_name",
    "parse_params",
    "read_constraints",
    "read_objective",
    "search_class",
]
