"""One output of a trained model: its classes, the meaning of its units, and how its predictions were before."""

from dataclasses import dataclass

from madlib_mop.columns.preprocessors.profiles import ColumnProfile
from madlib_mop.errors import InvalidParameter

_NUMBER_ARRAYS = ("real[]", "double precision[]", "numeric[]")
_NUMBER_LOSSES = frozenset(
    """
    mse meansquarederror mae meanabsoluteerror mape meanabsolutepercentageerror msle meansquaredlogarithmicerror huber
    huberloss logcosh poisson cosinesimilarity
    """.split()
)


@dataclass(frozen=True)
class DependentOutput:
    """One output of a model.

    Attributes
    ----------
    name : str
        The dependent column that it was trained on.
    vartype : str
        That column's type.
    values : tuple of (str or None), or None
        The class values as text: NULL, if it is a class, first; padding (None) last. None if unknown, because the
        column was an array (one-hot, or numbers) or a number to predict.
    values_text : str or None
        The same as an array in PostgreSQL's text form.
    loss : str or None
        Name of its loss.
    is_exact : bool
        Whether there must be a class value for each unit; else those beyond them are padding.
    """

    name: str
    vartype: str
    values: tuple[str | None, ...] | None
    values_text: str | None
    loss: str | None
    is_exact: bool = False

    def is_number(self, n_units: int) -> bool:
        """Return whether the output is the prediction itself, rather than a score for each class."""
        if self.values is not None:
            return n_units == 1 and len(self.values) > 2
        if not self.vartype.endswith("[]"):
            return n_units == 1
        loss = (self.loss or "").replace("_", "").lower()
        return self.vartype in _NUMBER_ARRAYS and loss in _NUMBER_LOSSES

    def labels(self, n_units: int) -> list[str | None]:
        """Return the class value of each unit: its index if values are unknown, None for the padding.

        Raises
        ------
        InvalidParameter
            If the model's number of units differs from the number of classes.
        """
        if self.values is None:
            return [None] if n_units == 1 and self.is_number(1) else [str(unit) for unit in range(n_units)]
        if len(self.values) > n_units or (self.is_exact and len(self.values) < n_units):
            raise InvalidParameter(
                f"the model has {n_units} outputs for {self.name!r}, which has {len(self.values)} classes",
                hint="Pass one class value for each output."
                if self.is_exact
                else "The _summary table does not belong to this model.",
            )
        return [*self.values, *[None] * (n_units - len(self.values))]


@dataclass(frozen=True)
class PredictionProfile:
    """How the predictions of a registered version were, for rows of earlier.

    Attributes
    ----------
    output : str
    table : str
        The packed table whose rows were predicted.
    profile : ColumnProfile
    """

    output: str
    table: str
    profile: ColumnProfile
