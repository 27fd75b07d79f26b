"""The commands madlib_keras_predict and madlib_keras_predict_byom: one model over the rows of a table."""

from collections.abc import Callable

from madlib_mop.driver.inference.byom import read_own_model
from madlib_mop.driver.inference.model import TrainedModel
from madlib_mop.driver.inference.prediction import predict_table
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.rows import read_rows_to_predict
from madlib_mop.driver.inference.trainer import gpus_of_call
from madlib_mop.driver.inference.wanted import read_pred_type
from madlib_mop.driver.session.call import Call


def madlib_keras_predict(call: Call) -> None:
    """Predict a table with a model from an output table or from the registry."""
    a = call.arguments
    _predict(call, lambda: find_model(call.session, call.function, a.get("model_table"), a.get("mst_key")))


def madlib_keras_predict_byom(call: Call) -> None:
    """Predict a table with a model from an architecture table, also one trained elsewhere."""
    _predict(call, lambda: read_own_model(call.session, call.arguments))


def _predict(call: Call, read: Callable[[], TrainedModel]) -> None:
    """Predict a table; all checks come first, and an error leaves no output table."""
    a, session = call.arguments, call.session
    wanted = read_pred_type(a)
    gpus = gpus_of_call(session, a.get("use_gpus"))
    output = session.output(a.get("output_table"), ("",), "output_table")
    model = read()
    names = a.get("test_table"), a.get("id_col"), a.get("independent_varname")
    reader = read_rows_to_predict(session, *names, model)
    if not predict_table(session, model, reader, output, wanted, gpus):
        session.warning(f"{call.function}: test_table {reader.relation} has no rows; {output} is empty")
