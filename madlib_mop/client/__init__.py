"""The Python client: train, watch and use models in a database from data frames. It needs no TensorFlow.

>>> from madlib_mop.client import connect
>>> db = connect("dbname=mydb")  # doctest: +SKIP
>>> packed = db.pack(frame, target="churned")  # doctest: +SKIP
>>> run = db.fit(packed, db.networks(packed), epochs=10)  # doctest: +SKIP
>>> run.best().predict(frame)  # doctest: +SKIP

Errors are those of `madlib_mop.errors`. The estimators in scikit-learn's conventions and `load_exported` are imported
when they are used.
"""

from typing import TYPE_CHECKING, Any

from madlib_mop.client.database import Database, Learned, connect
from madlib_mop.client.jobs import Job
from madlib_mop.client.models import Model, RegisteredModel
from madlib_mop.client.runs import Run
from madlib_mop.client.tables import Configurations, Packed
from madlib_mop.errors import hint_of_extra

if TYPE_CHECKING:
    from madlib_mop.client.estimators import HopperClassifier, HopperRegressor
    from madlib_mop.client.exported.model import ExportedModel, load_exported


def __getattr__(name: str) -> Any:
    if name in ("ExportedModel", "load_exported"):
        from madlib_mop.client.exported import model

        return getattr(model, name)
    if name not in ("HopperClassifier", "HopperRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from madlib_mop.client import estimators
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "sklearn":
            raise
        raise ImportError(f"{name} needs scikit-learn. {hint_of_extra('sklearn')}") from None
    return getattr(estimators, name)


__all__ = [
    "Configurations", "Database", "ExportedModel", "HopperClassifier", "HopperRegressor", "Job", "Learned", "Model",
    "Packed", "RegisteredModel", "Run", "connect", "load_exported",
]  # fmt: skip
