"""The context of an error: the called function and the one that raised the error, without inner statements and without
the types of all arguments."""

import psycopg2
import pytest

CALLS = {
    "load_keras_model": "madlib.load_keras_model('t', NULL)",
    "training_preprocessor_dl": "madlib.training_preprocessor_dl('nothing', 't', 'y', 'x')",
    "load_model_selection_table": "madlib.load_model_selection_table('nothing', 't', ARRAY[1], ARRAY['a'], ARRAY['b'])",
    "madlib_keras_fit_multiple_model": "madlib.madlib_keras_fit_multiple_model('nothing', 't', 'm', 1)",
    "madlib_keras_fit": "madlib.madlib_keras_fit('nothing', 't', 'm', 1, 'c', 'f', 1)",
    "madlib_keras_automl": "madlib.madlib_keras_automl('nothing', 't', 'm', 's', ARRAY[1], 'c', 'f')",
    "madlib_keras_evaluate": "madlib.madlib_keras_evaluate('nothing', 't', 'o')",
    "madlib_keras_predict": "madlib.madlib_keras_predict('nothing', 't', 'id', 'x', 'o')",
    "make_ensemble": "madlib_mop.make_ensemble('nothing', 'x', 'y')",
    "drift": "madlib_mop.drift('nothing', 'x')",
    "submit": "madlib_mop.submit('nothing', '{}')",
    "deploy": "madlib_mop.deploy('nothing', 'x', 1)",
    "resume": "madlib_mop.resume(404)",
    "cancel": "madlib_mop.cancel(404)",
    "predict": "madlib_mop.predict('nothing', 1, ARRAY[1])",
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_of_a_call_has_two_lines_of_context(db, name):
    connection = db.connect()
    with connection.cursor() as cursor, pytest.raises(psycopg2.Error) as caught:
        cursor.execute(f"SELECT {CALLS[name]}")
    connection.close()
    lines = caught.value.diag.context.splitlines()
    assert len(lines) == 2 and lines[0].startswith("PL/pgSQL function madlib_mop_calls."), lines
    assert lines[1] == f'SQL function "{name}" statement 1' or f".{name}(" in lines[1], lines
    assert max(map(len, lines)) < 100, lines
