"""An exported model as MLflow uses models; ``mlflow.pyfunc.load_model`` calls `_load_pyfunc`.

`madlib_mop.trackers.mlflow_models` writes the directories. MLflow itself is not imported.
"""

from collections.abc import Mapping
from typing import Any

from madlib_mop.client.calling.errors import bad_input
from madlib_mop.client.exported.model import ExportedModel, load_exported
from madlib_mop.exports.formats import Format

_METHODS = ("predict", "predict_proba", "outputs")


class MlflowModel:
    """A model whose rows MLflow passes.

    Attributes
    ----------
    model : ExportedModel
    """

    def __init__(self, model: ExportedModel):
        self.model = model

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Predict rows.

        Parameters
        ----------
        data : pandas.DataFrame, numpy.ndarray or dict of str to numpy.ndarray
            Rows with the input columns of training. For a model that was trained on arrays: an array (n_rows, *shape
            of a row), or one for each input by its name.
        params : mapping, optional
            ``method``: the method of `ExportedModel` that is called: ``predict`` (default), ``predict_proba`` or
            ``outputs``.

        Raises
        ------
        MopError
            If the method is unknown, a column is missing, or a value cannot be used.
        """
        method = str((params or {}).get("method", _METHODS[0]))
        if method not in _METHODS:
            raise bad_input(f"method must be one of {', '.join(_METHODS)}. Received: {method!r}")
        if self.model.preprocessor is None and isinstance(data, Mapping):
            names = [one.name for one in self.model.signature.inputs]
            arrays = [data[name] for name in names]
            data = arrays if len(arrays) > 1 else arrays[0]
        return getattr(self.model, method)(data)


def _load_pyfunc(path: str) -> MlflowModel:
    """Return the model of a directory. MLflow prescribes the name of this function."""
    return MlflowModel(load_exported(path, Format.KERAS))
