"""A small example of every call that creates a table of ours; for tests of these tables on any engine."""

from tests.helpers.averaging import average
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.searches import search
from tests.helpers.training import fit, script

COMPILE = ADAM.format(0.01)
#: Relations that the helpers create as a user, with plain SQL.
MADE_BY_USER = {"iris", "iris_train", "iris_test"}
METRIC = """
import keras

def spread(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)
"""


def make_all_tables(db, n_segments: int) -> None:
    """Pack iris, load architectures, configurations and a function; train, average, search, evaluate and predict."""
    load_iris(db)
    pack_iris(db, n_segments, "train", "valid")
    load_perceptrons(db, "arch")
    db.rows("SELECT madlib.load_custom_function('functions', %s, 'spread')", [METRIC.encode()])
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1, 2], ARRAY[%s], ARRAY['batch_size=8'])",
        [COMPILE],
    )
    fit(db, "models", "mst", 1, source_table="train", seed=9, schedule="rotation")
    average(db, "averaged", 1, 1, COMPILE, "batch_size=8, epochs=1", source_table="train", seed=9)
    search(db, "found", "hyperband", "R=3, eta=3, skip_last=0", random_state=9)
    script(
        db,
        "SELECT madlib.madlib_keras_evaluate('models', 'valid', 'evaluated', mst_key := 1)",
        "SELECT madlib.madlib_keras_predict('models', 'iris_test', 'id', 'attributes', 'predicted', 'prob',"
        " mst_key := 1)",
        "SELECT madlib.hyperband_schedule('brackets', 9, 3, 0)",
        "SELECT madlib.gpu_configuration('gpus', 'tensorflow')",
    )


def our_tables(db) -> list[str]:
    """Return the names of all tables that the extension and `make_all_tables` created, in its schemas and public."""
    rows = db.rows(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'r'"
        " AND c.relnamespace::regnamespace::text IN ('public', 'madlib', 'madlib_mop') ORDER BY 1"
    )
    return [name for (name,) in rows if name not in MADE_BY_USER]


def not_heap(db) -> list[str]:
    """Return those tables, including TOAST tables, with an access method other than heap."""
    rows = db.rows(
        "SELECT DISTINCT c.oid::regclass::text FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid"
        " JOIN pg_am a ON a.oid IN (c.relam, t.relam) WHERE a.amname <> 'heap' AND c.oid = ANY (%s::regclass[]::oid[])",
        [our_tables(db)],
    )
    return [name for (name,) in rows]
