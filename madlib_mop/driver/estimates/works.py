"""What decides the costs of a configuration, of a run's plan or of the record."""

from collections.abc import Sequence

from madlib_mop.driver.estimates.costs import Work
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.parameters.custom import CustomFunctions
from madlib_mop.models.sharing import Architectures
from madlib_mop.models.sizes import optimizer_slots, size_of


def work_of(
    c: Configuration,
    architectures: Architectures,
    n_places: int = 1,
    row_shapes: Sequence[Sequence[int]] = (),
    functions: CustomFunctions | None = None,
) -> Work:
    """Return what decides the costs of a configuration; ``architectures`` are those met before. Raises MopError."""
    optimizer, fit = c.compiled.optimizer, c.fit
    extra = "" if functions is None else functions.digest(c.compiled.custom_names)
    return Work(
        graph=architectures.signature(c, extra),
        size=size_of(architectures.checked(c), row_shapes),
        n_slots=optimizer_slots(optimizer.name, dict(optimizer.kwargs)),
        batch_size=fit.batch_size,
        n_passes=max(1, fit.epochs - fit.initial_epoch),
        most_rows=None if fit.steps_per_epoch is None else fit.steps_per_epoch * fit.batch_size,
        n_places=n_places,
    )
