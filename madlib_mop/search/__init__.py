"""Searches of configurations, for madlib_keras_automl: pure; the driver trains what they propose and tells losses."""

from .base import Action, Add, Exploit, Extend, Finish, Proposal, Search, Stop
from .hyperband import Round, hyperband_rounds
from .make import make_search
from .parameters import HyperbandParams, SearchParams, method_name, parse_params
from .space import SearchSpace

__all__ = [
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
]
