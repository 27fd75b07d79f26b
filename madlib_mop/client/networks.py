"""Configurations from Keras models and Python dictionaries: rows of a table of architectures, and a selection table.

Everything is checked before the first statement; called by `Database.configurations`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.parameters import parameters_text
from madlib_mop.client.calling.sessions import execute, rows_of
from madlib_mop.client.calling.statements import call_of
from madlib_mop.client.tables import find_table
from madlib_mop.errors import MopError
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import compile_params_of, fit_params_of
from madlib_mop.models.parameters.custom import possible_names

Params = str | Mapping[str, Any]


def architectures_of(models: Any) -> list[str]:
    """Return the JSON of models, checked as the server checks it.

    Parameters
    ----------
    models : Keras model, str or dict, or a sequence of these
        A text or a dict is what Keras' ``model.to_json()`` returns.

    Raises
    ------
    MopError
        If one is no model, or has a layer that the library does not accept, such as Lambda.
    """
    given = list(models) if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    if not given:
        raise bad_input("there are no models", "Pass a Keras model, or a list of them.")
    texts = []
    for model in given:
        if callable(getattr(model, "to_json", None)):
            text = model.to_json()
        elif isinstance(model, str):
            text = model
        elif isinstance(model, Mapping):
            text = json.dumps(model)
        else:
            raise bad_input(
                f"a model must be a Keras model, or its JSON as a text or a dict. Received: {type(model).__name__}"
            )
        try:
            check_architecture(text)
        except MopError as error:
            raise noted(error) from None
        texts.append(text)
    return texts


def texts_of(params: Params | Sequence[Params], what: str) -> list[str]:
    """Return sets of compile or fit parameters as texts, checked as the server checks them.

    Parameters
    ----------
    params : str, mapping, or a sequence of these
    what : str
        ``compile`` or ``fit``.

    Raises
    ------
    MopError
        If a parameter is unknown, or has a value that Keras does not take.
    """
    given = [params] if isinstance(params, str | Mapping) or not isinstance(params, Sequence) else list(params)
    if not given:
        raise bad_input(f"there are no {what} parameters", "Pass a dict, or a list of dicts.")
    texts = [parameters_text(one, what) for one in given]
    for text in texts:
        try:
            if what == "compile":
                compile_params_of(text, possible_names(text))
            else:
                fit_params_of(text)
        except MopError as error:
            raise noted(error) from None
    return texts


def load_models(connection: Connection, table: str, architectures: Sequence[str]) -> list[int]:
    """Add architectures to a table, which is created if there is none; return their ``model_id``."""
    keys = []
    for text in architectures:
        call = call_of("load_keras_model", {"keras_model_arch_table": table, "model_arch": text})
        execute(connection, call.text, call.values)
        relation = find_table(connection, table, "architectures")
        newest = statement("SELECT pg_catalog.max({k}) FROM {t}", k=Identifier("model_id"), t=relation)
        ((key,),) = rows_of(connection, newest)
        keys.append(int(key))
    return keys
