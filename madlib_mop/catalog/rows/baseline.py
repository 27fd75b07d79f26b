"""What the models of a run are compared with, as column ``baselines`` of `madlib_mop.run` has it; learn writes it."""

from dataclasses import dataclass

from madlib_mop.catalog.rows.base import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(Document):
    """One baseline: a model of the run, or figures of what is no model and cannot predict.

    Attributes
    ----------
    name : str
        ``linear model`` or ``gradient boosting``.
    mst_key : int or None
        The model of the run; it has figures of its own in the record. None: it is no model.
    metric_name : str or None
        The first metric of the run's models.
    validation_metric, validation_loss : float or None
        This metric and the loss, on the rows and in the units of the run's validation data; None: not a finite number.
    note : str or None
        What it is.
    """

    name: str
    mst_key: int | None = None
    metric_name: str | None = None
    validation_metric: float | None = None
    validation_loss: float | None = None
    note: str | None = None
