"""Compares the architectures in a database with plain Keras; called by the tests of the README and of the pages."""

import contextlib
import json

from tests.helpers.training import one_thread

_TABLES = """
SELECT a.attrelid::regclass::text
FROM pg_attribute a JOIN pg_attribute w USING (attrelid) JOIN pg_class c ON c.oid = attrelid
WHERE a.attname = 'model_arch' AND w.attname = 'model_weights' AND c.relkind = 'r'
      AND c.relnamespace <> 'madlib_mop'::regnamespace
"""


def assert_keras_reads_them(connection) -> int:
    """Assert that plain Keras reads each ``model_arch`` that has ``model_weights``, and that these weights fit.

    Return the number of architectures.
    """
    with contextlib.suppress(RuntimeError):  # TensorFlow has run with more threads already; this case compares no bits
        one_thread()
    import keras

    ours = {"keras2_hard_sigmoid": lambda x: keras.ops.clip(0.2 * x + 0.5, 0, 1)}  # as in docs/madlib.md
    n_read = 0
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT model_arch::text, length(model_weights) FROM {table}")
            for text, n_bytes in cursor.fetchall():
                model = keras.models.model_from_json(text, custom_objects=ours if "hard_sigmoid" in text else None)
                written = json.loads(model.to_json())["config"]
                assert [one["config"]["name"] for one in written["layers"]] == [
                    one["config"]["name"] for one in json.loads(text)["config"]["layers"]
                ], table
                assert n_bytes in (None, 4 * sum(weight.size for weight in model.get_weights())), table
                n_read += 1
    return n_read
