"""How soon a search that starts from an earlier run reaches the loss of a search that does not, on pairs of tables.

The earlier run is a search on the first table of a pair, by default one of more configurations; both searches that are
compared are on the second one.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import numpy as np
import psycopg2
from hopper import SCHEMA, load_rows
from ratios import Ratio

N_SEGMENTS, N_CONFIGS, N_ITERATIONS, N_SEEDS = 2, 16, 3, 5
N_EARLIER = 64  # configurations of the earlier run
MOST_OF_VISITS = 0.5
_VALID_SHARE = 0.25
_MOST_ROWS = 2000
_COMPILE = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']], 'optimizer_params_list': [
    {'optimizer': ['Adam'], 'lr': [0.00001, 1.0, 'log']},
    {'optimizer': ['SGD'], 'lr': [0.00001, 1.0, 'log'], 'momentum': [0.0, 0.99, 'linear']}]}"""
_FIT = "{'batch_size': [8, 32, 128], 'epochs': [1]}"
_ENDS_WITH = """
SELECT min(e.loss), (SELECT count(*) FROM madlib_mop.visit v WHERE v.run_id = %(run_id)s)
FROM madlib_mop.search_event e WHERE e.run_id = %(run_id)s AND e.event = 'result'
"""
#: Visits until the end of the first model that reached a loss; none if no model did.
_UNTIL = """
SELECT nullif(count(*), 0) FROM madlib_mop.visit v WHERE v.run_id = %(run_id)s AND v.ended_at <= (
    SELECT max(w.ended_at) FROM madlib_mop.visit w WHERE w.run_id = %(run_id)s AND w.mst_key = (
        SELECT e.mst_key FROM madlib_mop.search_event e
        WHERE e.run_id = %(run_id)s AND e.event = 'result' AND e.loss <= %(loss)s ORDER BY e.ordinal LIMIT 1))
"""

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Pair:
    """Two real tables with equal shapes and classes; ``load`` returns their rows: numbers, and numbers of classes."""

    name: str
    load: Callable[[], tuple[Rows, Rows]]


def _digits() -> tuple[Rows, Rows]:
    """Return the first half of the images of digits, and the second one, which other persons wrote."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    half = len(x) // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def _breast_cancer() -> tuple[Rows, Rows]:
    """Return the means of ten measures of cells, and their worst values."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return (x[:, :10], y), (x[:, 20:], y)


def _diamonds() -> tuple[Rows, Rows]:
    """Return measures of diamonds of the best cut and of the second best, with the fifth that their price is in."""
    from quality.tables import TABLES

    (table,) = (table for table in TABLES if table.name == "diamonds")
    rows = table.load()
    found = []
    for cut in ("Ideal", "Premium"):
        of_cut = rows[rows["cut"] == cut].sample(_MOST_ROWS, random_state=0)
        price = of_cut["price"].to_numpy()
        bands = np.searchsorted(np.quantile(price, (0.2, 0.4, 0.6, 0.8)), price)
        found.append((of_cut[["carat", "depth", "table", "x", "y", "z"]].to_numpy(), bands))
    return found[0], found[1]


def _flights() -> tuple[Rows, Rows]:
    """Return plan and weather of flights from Newark and from JFK, and whether they arrived late."""
    from quality.tables import TABLES

    (table,) = (table for table in TABLES if table.name == "flights")
    columns = "month hour minute distance temp dewp humid wind_speed precip pressure visib".split()
    rows = table.load().dropna(subset=columns)
    found = []
    for origin in ("EWR", "JFK"):
        of_origin = rows[rows["origin"] == origin].sample(_MOST_ROWS, random_state=0)
        found.append((of_origin[columns].to_numpy(), of_origin["late"].to_numpy().astype(np.int16)))
    return found[0], found[1]


PAIRS = (
    Pair("digits, two halves", _digits),
    Pair("breast cancer, two sets of columns", _breast_cancer),
    Pair("diamonds, two cuts", _diamonds),
    Pair("flights, two airports", _flights),
)


def compare_past(dsn: str, n_seeds: int = N_SEEDS, n_earlier: int = N_EARLIER) -> list[Ratio]:
    """Search on each pair of tables with and without an earlier run; print the ratios of visits and their median."""
    print(
        f"\npast: tpe, {N_CONFIGS} configurations, {N_ITERATIONS} iterations, {N_SEGMENTS} segments, after a search of"
        f" {n_earlier} configurations\n  visits until the loss of the search without start_from / its visits",
        flush=True,
    )
    ratios = []
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for pair in PAIRS:
            shares = []
            for seed in range(1, n_seeds + 1):
                share, loss = _share(cursor, pair, seed, n_earlier)
                shares.append(share)
                print(f"  {pair.name:36} seed {seed}   loss {loss:7.4f}   {share:6.2f}", flush=True)
            ratios.append(Ratio(f"past: {pair.name}", median(shares), MOST_OF_VISITS))
        cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    ratios.append(Ratio("past: median of the pairs", median(ratio.value for ratio in ratios), MOST_OF_VISITS))
    print(*ratios, sep="\n", flush=True)
    return ratios


def _share(cursor, pair: Pair, seed: int, n_earlier: int) -> tuple[float, float]:
    """Return the share of visits until a search with past experience has the loss of one without, and this loss."""
    earlier, later = pair.load()
    _load(cursor, earlier, seed)
    earlier_id = _search(cursor, 100 + seed, n_configs=n_earlier)
    _load(cursor, later, seed)
    alone_id = _search(cursor, seed)
    taught_id = _search(cursor, seed, f", start_from='runs {earlier_id}'")
    cursor.execute(_ENDS_WITH, {"run_id": alone_id})
    loss, n_visits = cursor.fetchone()
    cursor.execute(_UNTIL, {"run_id": taught_id, "loss": loss})
    (n_until,) = cursor.fetchone()
    for run_id in (earlier_id, alone_id, taught_id):
        cursor.execute("SELECT madlib_mop.drop_run(%s)", [run_id])
    return math.inf if n_until is None else n_until / n_visits, loss


def _load(cursor, rows: Rows, seed: int) -> None:
    """Pack a random split of the rows, scaled by their means and deviations, and load the two networks."""
    from sklearn.model_selection import train_test_split

    x, y = np.asarray(rows[0], np.float32), rows[1]
    x, x_valid, y, y_valid = train_test_split(x, y, test_size=_VALID_SHARE, random_state=seed, stratify=y)
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    deviation[deviation == 0] = 1
    load_rows(cursor, (x - mean) / deviation, y, (x_valid - mean) / deviation, y_valid)
    cursor.execute(f"SET madlib_mop.segments = {N_SEGMENTS}")
    cursor.execute("SELECT madlib.training_preprocessor_dl('train_rows', 'train', 'y', 'x', seed := 1)")
    cursor.execute("SELECT madlib.validation_preprocessor_dl('valid_rows', 'valid', 'y', 'x', 'train')")
    for hidden in ((32,), (64, 32)):
        model = _network(x.shape[1], int(y.max()) + 1, hidden)
        cursor.execute("SELECT madlib.load_keras_model('arch', %s::json)", [model.to_json()])


def _network(n_inputs: int, n_classes: int, hidden: tuple[int, ...]):
    import keras

    layers = [keras.layers.Dense(n, activation="relu") for n in hidden]
    return keras.Sequential([keras.Input((n_inputs,)), *layers, keras.layers.Dense(n_classes, activation="softmax")])


def _search(cursor, random_state: int, more: str = "", n_configs: int = N_CONFIGS) -> int:
    """Search, and return the run_id."""
    cursor.execute(
        "SELECT madlib.madlib_keras_automl('train', 'models', 'arch', 'best', ARRAY[1, 2], %s, %s, 'tpe', %s,"
        " random_state := %s, validation_table := 'valid', replace := true)",
        [_COMPILE, _FIT, f"num_configs={n_configs}, num_iterations={N_ITERATIONS}{more}", random_state],
    )
    cursor.execute("SELECT max(run_id) FROM madlib_mop.run")
    (run_id,) = cursor.fetchone()
    return run_id
