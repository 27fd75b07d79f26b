"""The predictions of a table, counted: what register records, so that drift can compare later ones with them."""

from madlib_mop.columns.drift.profiler import Profiler
from madlib_mop.driver.drift.outputs import CountedOutputs
from madlib_mop.driver.inference.labelled_rows import find_labelled
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.output import PredictionProfile
from madlib_mop.driver.inference.packed_rows import predicted_buffers
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_rows


def record_predictions(session: CallerSession, model: TrainedModel, name: str) -> tuple[PredictionProfile, ...]:
    """Predict all rows of a table, and return the distribution of each output.

    Parameters
    ----------
    session : CallerSession
    model : TrainedModel
    name : str
        The table, packed or not, as written by the caller in the argument ``baseline``.

    Raises
    ------
    MopError
        If there is no such table, it does not fit the model, or it has no rows.
    """
    (rows,) = find_labelled(session, name, "baseline").rows_of([model])
    outputs = CountedOutputs(model, Profiler)
    with LocalTrainer(session) as trainer:
        for _, _, scores in predicted_buffers(session, trainer, model, rows, "baseline"):
            outputs.add(scores)
    if not outputs.counters:
        raise no_rows(name, "baseline")
    found = []
    for output, profiler in outputs.counters.items():
        assert isinstance(profiler, Profiler), "it was made so"
        found.append(PredictionProfile(output, str(rows.relation), profiler.profile()))
    return tuple(found)
