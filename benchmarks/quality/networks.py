"""The statements that train networks on an ordinary table and predict its test rows."""

import time
from collections.abc import Iterator

import numpy as np
from tables import make_frame_table

from quality.scores import ENSEMBLE, SINGLE, Score, auc, r2
from quality.skew import check_skew
from quality.tables import Split, Table

SCHEMA = "mop_quality"
_STATEMENTS = (
    "SELECT madlib_mop.pack_columns('source', 'packed', '{target}', validation => 'held_out', seed => {seed})",
    "SELECT madlib_mop.propose_networks('packed', 'networks', 'configs', n_configs => {n_configs}, seed => {seed})",
    "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'configs', 10,"
    " validation_table => 'packed_validation', seed => {seed})",
    "SELECT madlib_mop.make_ensemble('models', 'packed_validation', 'ensemble')",
)
_PREDICT = "SELECT madlib.madlib_keras_predict('{models}', 'test', 'row_id', '*', 'told', mst_key => {mst_key})"
_BEST = "SELECT mst_key FROM models_info ORDER BY validation_loss_final LIMIT 1"


def train_networks(connection, table: Table, rows, split: Split, n_configs: int, seed: int) -> Iterator[Score]:
    """Load the rows, run the statements, and return the scores of the ensemble and of the best network.

    With the first seed, the bits of the rows are compared too: see `check_skew`.
    """
    with connection.cursor() as cursor:
        source = load(cursor, rows, split)
        begun = time.monotonic()
        for statement in _STATEMENTS:
            cursor.execute(statement.format(target=table.target, n_configs=n_configs, seed=seed))
        cursor.execute(_BEST)
        ((best,),) = cursor.fetchall()
        expected = rows[table.target].to_numpy()[split.test]
        for contestant, models, key in ((ENSEMBLE, "ensemble", 1), (SINGLE, "models", best)):
            cursor.execute("DROP TABLE IF EXISTS told")
            cursor.execute(_PREDICT.format(models=models, mst_key=key))
            value = _score(cursor, table, split.test, expected)
            yield Score(table.name, table.metric, seed, contestant, value, time.monotonic() - begun)
        if seed == 1:
            print(f"  {table.name:13} {check_skew(cursor, 'models', best, source)}", flush=True)
        cursor.execute("SELECT madlib_mop.drop_run((SELECT max(run_id) FROM madlib_mop.run))")
        cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def load(cursor, rows, split: Split):
    """Create the tables ``source``, with the flag of the validation rows, and ``test``; return the first one's rows."""
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}")
    cursor.execute("SET client_min_messages = warning; SET madlib_mop.segments = 2")
    rows = rows.convert_dtypes()
    rows.insert(0, "row_id", np.arange(len(rows)))
    source = rows.iloc[np.sort(np.concatenate([split.train, split.valid]))]
    source = source.assign(held_out=source["row_id"].isin(split.valid))
    for name, part in (("source", source), ("test", rows.iloc[split.test])):
        make_frame_table(cursor, name, part)
    return source


def _score(cursor, table: Table, test: np.ndarray, expected: np.ndarray) -> float:
    places = {row_id: place for place, row_id in enumerate(test.tolist())}
    if table.task == "regression":
        predicted = np.full(len(test), np.nan)
        cursor.execute("SELECT row_id, prob FROM told")
        for row_id, number in cursor.fetchall():
            predicted[places[row_id]] = number
        return r2(expected, predicted)
    if table.task == "binary":
        positive = sorted({text(value) for value in expected})[1]
        rates = np.full(len(test), np.nan)
        cursor.execute("SELECT row_id, prob FROM told WHERE class_value = %s", [positive])
        for row_id, rate in cursor.fetchall():
            rates[places[row_id]] = rate
        return auc(np.array([text(value) == positive for value in expected]), rates)
    classes = np.empty(len(test), object)
    cursor.execute("SELECT row_id, class_value FROM told WHERE rank = 1")
    for row_id, value in cursor.fetchall():
        classes[places[row_id]] = value
    return float(np.mean([text(value) == told for value, told in zip(expected, classes, strict=True)]))


def text(value) -> str:
    """Return a class as the database writes it."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)
