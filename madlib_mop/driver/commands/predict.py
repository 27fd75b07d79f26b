"""The command madlib_keras_predict: one trained model over the rows of a table, in the caller's session."""

from madlib_mop.driver.call import Call
from madlib_mop.driver.gpus import assign_gpus
from madlib_mop.driver.inference.model import read_model
from madlib_mop.driver.inference.prediction import predict_table
from madlib_mop.driver.inference.rows import read_test_table
from madlib_mop.driver.inference.wanted import read_pred_type


def madlib_keras_predict(call: Call) -> None:
    """Predict a table; everything is checked first, and an error on the way leaves no output table."""
    a, session = call.arguments, call.session
    wanted = read_pred_type(a)
    gpus = assign_gpus(a.get("use_gpus"), [0])
    output = session.output(a.get("output_table"), ("",), "output_table")
    model = read_model(session, a.get("model_table"), a.get("mst_key"))
    table = read_test_table(session, a.get("test_table"), a.get("id_col"), a.get("independent_varname"), model)
    if not predict_table(session, model, table, output, wanted, list(gpus.values())):
        session.warning(f"{call.function}: test_table {table.relation} has no rows; {output} is empty")
