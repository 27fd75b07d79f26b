"""The function madlib_mop.predict_version: the version with which predict answers in the same statement."""

from __future__ import annotations

import plpy

from mop_backend import predict, registered, rights
from mop_backend.call import CallError, check_version
from mop_backend.registered_names import is_registered, with_newest


def version_of(model: str | None, version: str) -> int | None:
    """Return the number of the version that a name of a registered model stands for; None after an error."""
    predict.note_error(None)
    try:
        check_version(version)
        rights.check_roles(plpy)
        model = None if model is None else with_newest(model, None)
        if model is None or not is_registered(model):
            raise CallError(
                "predict_version: model_table must name a registered model, such as 'churn@champion'."
                f" Received: {'NULL' if model is None else repr(model)}",
                "22023",
                hint="Tables of models have no versions.",
            )
        return registered.look_up(model, "predict_version").version
    except Exception as error:
        predict.note_error(error)
        return None
