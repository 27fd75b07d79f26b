"""How often prediction sets and intervals have the truth, and how true probabilities are, on rows never seen before.

Ten tables: five that are generated, and five real ones of scikit-learn. A third of the rows, at most 2,000, trains a
few networks. Of the others, a half, at most 1,999, is drawn at random for `register(..., held_out => ...)`; the rest is
fresh. So that small tables say something too, rows are drawn several times, each time for a new version of the model;
the calibrations take turns. Run by `make bench`, or alone:

    make/python.sh benchmarks/certainty.py "$(make -s dsn)"

Targets: sets and intervals for 90 of 100 rows have the truth for 89 to 91 in each table. Calibrated probabilities have
at most half of the calibration error of those of the networks, on the average of the tables of classes: of all, beyond
what true probabilities would have by chance, because with 50 fresh rows these have an error of 4 points; of those with
many fresh rows, the whole error.
"""

import argparse
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import psycopg2
from ratios import Ratio
from tables import make_frame_table

from madlib_mop.certainty.measures import calibration_error, reliability
from madlib_mop.certainty.scores import coverage_error

SCHEMA, MODEL = "mop_certainty", "bench_certainty"
COVERAGE, MOST_OFF, MOST_OF_ERROR = 0.9, 1.0, 0.5
CALIBRATIONS = ("temperature", "isotonic")
N_CONFIGS, N_ITERATIONS, N_GENERATED = 4, 8, 24_000
_MOST_TRAIN, _MOST_HELD_OUT = 2000, 2000
#: Rows are drawn until the standard error of the coverage is so small, but not for ever.
_ERROR, _LEAST_DRAWS, _MOST_DRAWS = 0.005, 4, 24
_N_BINS, _N_SIMULATED = 10, 50
#: Of so many fresh rows, the calibration error by chance is about half a point.
_MANY = 10_000
_ERRORS = ("raw", *CALIBRATIONS, "chance")
_STATEMENTS = (
    "CREATE VIEW train AS SELECT * FROM rows WHERE id < {n_train}",
    "SELECT madlib_mop.pack_columns('train', 'packed', 'y', validation => 0.2, exclude => '{{id}}', task => '{task}',"
    " seed => 1)",
    "SELECT madlib_mop.propose_networks('packed', 'networks', 'configs', n_configs => {n_configs},"
    " num_iterations => {n_iterations}, seed => 1)",
    "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'configs', {n_iterations},"
    " validation_table => 'packed_validation', seed => 1)",
)
#: Asked of the table itself: of a view, a session does not read the next rows ahead.
_FRESH = "r.id NOT IN (SELECT id FROM train) AND r.id NOT IN (SELECT id FROM drawn WHERE draw = %(draw)s)"
_REGISTER = "SELECT madlib_mop.register(%s, 'models', held_out => %s, calibration => %s)"
_RAW = """
SELECT r.id, r.y::text, madlib_mop.predict_json(%(model)s, r)
FROM rows AS r WHERE r.id NOT IN (SELECT id FROM train)
"""
_CLASSES = f"""
SELECT r.id, r.y::text, madlib_mop.predict_json(%(model)s, r, calibrated => true),
       madlib_mop.predict_set(%(model)s, r, %(coverage)s)
FROM rows AS r WHERE {_FRESH}
"""
_NUMBERS = f"""
SELECT r.y BETWEEN i.lower AND i.upper, i.upper - i.lower
FROM rows AS r, madlib_mop.predict_interval(%(model)s, r, %(coverage)s) AS i WHERE {_FRESH}
"""


@dataclass(frozen=True)
class Table:
    """A table with the target ``y``; ``load`` returns a pandas.DataFrame."""

    name: str
    task: str
    load: Callable


@dataclass(frozen=True)
class Found:
    """What was measured for one table.

    Attributes
    ----------
    n_train, n_held_out, n_fresh, n_draws : int
    coverage, error : float
        Share of the fresh rows whose set or interval has the truth; its standard error.
    size : float
        Mean number of classes in a set; mean width of an interval, divided by the width of the interval around the
        middle 90 % of all values of the target.
    errors : dict of str to float
        Expected calibration errors of one draw's fresh rows, means over the draws: of the network's probabilities
        (``raw``), of calibrated ones, and of the network's if they were true (``chance``): the fewer rows, the more.
        Empty for numbers.
    """

    n_train: int
    n_held_out: int
    n_fresh: int
    n_draws: int
    coverage: float
    error: float
    size: float
    errors: dict[str, float]


def _customers(rng):
    """Return who leaves: numbers, some missing, categories and dates."""
    import pandas

    n = N_GENERATED
    age, calls = rng.integers(18, 90, n), rng.poisson(3, n)
    spent = np.exp(rng.normal(3, 1, n))
    plan = rng.choice(["basic", "family", "business"], n, p=(0.5, 0.3, 0.2))
    joined = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(rng.integers(0, 1500, n), "D")
    score = 0.4 * calls - 0.03 * age + 0.8 * (plan == "basic") + 0.3 * np.log(spent) - 1 + rng.logistic(0, 1, n)
    spent[rng.random(n) < 0.1] = np.nan
    y = np.where(score > 0, "leaves", "stays")
    return pandas.DataFrame({"age": age, "calls": calls, "spent": spent, "plan": plan, "joined": joined, "y": y})


def _rare(rng):
    """Return a class of about four in a hundred rows."""
    x = rng.normal(size=(N_GENERATED, 10))
    score = x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * np.abs(x[:, 3]) + rng.logistic(0, 0.6, N_GENERATED)
    return _numbered(x, (score > 3.4).astype(np.int64))


def _mixed_up(rng):
    """Return six classes around centres, with the classes of a seventh of the rows drawn anew."""
    y = rng.integers(0, 6, N_GENERATED)
    x = rng.normal(size=(6, 12))[y] + rng.normal(size=(N_GENERATED, 12))
    return _numbered(x, np.where(rng.random(N_GENERATED) < 1 / 7, rng.integers(0, 6, N_GENERATED), y))


def _prices(rng):
    """Return prices, whose logarithm is normal, by size and place."""
    import pandas

    size, place = rng.gamma(4, 25, N_GENERATED), rng.integers(0, 30, N_GENERATED)
    of_place = rng.normal(0, 0.5, 30)[place]
    y = np.exp(6 + 0.9 * np.log(size) + of_place + rng.normal(0, 0.25, N_GENERATED))
    return pandas.DataFrame({"size": size, "place": np.char.add("p", place.astype(str)), "y": y})


def _waves(rng):
    """Return numbers whose noise grows with one of the inputs."""
    x = rng.uniform(-2, 2, (N_GENERATED, 6))
    noise = rng.standard_t(4, N_GENERATED) * (0.2 + 0.3 * np.abs(x[:, 1]))
    return _numbered(x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + noise)


def _numbered(x, y):
    import pandas

    return pandas.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])]).assign(y=y)


def _bundled(name: str) -> Callable:
    """Return what loads a table of scikit-learn; none of these is downloaded."""

    def load(rng):
        from sklearn import datasets

        return _numbered(*getattr(datasets, f"load_{name}")(return_X_y=True))

    return load


TABLES = (
    Table("customers", "classification", _customers),
    Table("rare class", "classification", _rare),
    Table("mixed up", "classification", _mixed_up),
    Table("prices", "regression", _prices),
    Table("waves", "regression", _waves),
    Table("digits", "classification", _bundled("digits")),
    Table("breast cancer", "classification", _bundled("breast_cancer")),
    Table("wine", "classification", _bundled("wine")),
    Table("iris", "classification", _bundled("iris")),
    Table("diabetes", "regression", _bundled("diabetes")),
)


def compare_certainty(dsn: str, tables: tuple[Table, ...] = TABLES) -> list[Ratio]:
    """Measure and print a line for each table; return the distance from the coverage, and ratios of errors."""
    print(
        f"\ncertainty: sets and intervals for {COVERAGE:.0%} of the rows, by the best of {N_CONFIGS} networks"
        f"\n  {'':14}{'rows: trained, held out, fresh':>32}{'draws':>7}{'covered, %':>18}{'size':>7}"
        f"   calibration error, %:{''.join(f'{name:>12}' for name in _ERRORS)}{'s':>7}"
    )
    found = []
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        try:
            for table in tables:
                began = time.monotonic()
                found.append(_measure(cursor, table))
                print(f"  {table.name:14}{_line(found[-1])}{time.monotonic() - began:7.0f}", flush=True)
        finally:
            _drop(cursor)
    off = [100 * (one.coverage - COVERAGE) for one in found]
    ratios = [Ratio("certainty: coverage, points off at most", max(map(abs, off)), MOST_OFF)]
    print(f"  {100 * COVERAGE + np.mean(off):.2f} of 100 rows are covered, on the average of the tables")
    of_classes = [one for one in found if one.errors]
    large = [one for one in of_classes if one.n_fresh >= _MANY]
    if of_classes:
        print(f"  {'on average':14}{'':64}{_shown(_mean(of_classes))}")
    for name in CALIBRATIONS if of_classes else ():
        mean = _mean(of_classes)
        beyond = (mean[name] - mean["chance"]) / (mean["raw"] - mean["chance"])
        ratios.append(Ratio(f"certainty: calibration error, {name} / raw", mean[name] / mean["raw"]))
        ratios.append(Ratio(f"certainty: the same beyond chance, {name} / raw", beyond, MOST_OF_ERROR))
        if large:
            of_large = _mean(large)
            ratio = of_large[name] / of_large["raw"]
            ratios.append(Ratio(f"certainty: the same of many fresh rows, {name} / raw", ratio, MOST_OF_ERROR))
    print(*ratios, sep="\n", flush=True)
    return ratios


def _mean(tables: list[Found]) -> dict[str, float]:
    return {name: float(np.mean([one.errors[name] for one in tables])) for name in _ERRORS}


def _line(found: Found) -> str:
    rows = f"{found.n_train:,} {found.n_held_out:>7,} {found.n_fresh:>7,}"
    line = f"{rows:>32}{found.n_draws:7}{100 * found.coverage:10.2f} +- {100 * found.error:4.2f}{found.size:7.2f}"
    return line + _shown(found.errors)


def _shown(errors: dict[str, float]) -> str:
    return " " * 24 + "".join(f"{100 * errors[name]:12.2f}" if errors else " " * 12 for name in _ERRORS)


def _measure(cursor, table: Table) -> Found:
    _drop(cursor)
    cursor.execute(f"CREATE SCHEMA {SCHEMA}; SET search_path = {SCHEMA}; SET client_min_messages = warning")
    rng = np.random.default_rng(1)
    rows = table.load(rng)
    rows = rows.iloc[rng.permutation(len(rows))].reset_index(drop=True)
    rows.insert(0, "id", np.arange(len(rows)))
    make_frame_table(cursor, "rows", rows)
    n_train = min(len(rows) // 3, _MOST_TRAIN)
    n_rest = len(rows) - n_train
    # 0.9 (n + 1) is a whole number: exactly this share is to be covered
    n_held_out = min(n_rest // 20 * 10, _MOST_HELD_OUT) - 1
    n_fresh = n_rest - n_held_out
    once = coverage_error(n_held_out, COVERAGE) * math.sqrt((n_rest + 1) / n_fresh)  # of a beta-binomial distribution
    n_draws = min(_MOST_DRAWS, max(_LEAST_DRAWS, math.ceil((once / _ERROR) ** 2)))
    _draw(cursor, rng, range(n_train, len(rows)), n_held_out, n_draws)
    sizes = {"n_train": n_train, "n_configs": N_CONFIGS, "n_iterations": N_ITERATIONS}
    for statement in _STATEMENTS:
        cursor.execute(statement.format(task=table.task, **sizes))
    if table.task == "classification":
        coverage, size, errors = _classes(cursor, n_draws, rng)
    else:
        coverage, width = _numbers(cursor, n_draws)
        low, high = rows["y"].quantile([(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        size, errors = width / (high - low), {}
    return Found(n_train, n_held_out, n_fresh, n_draws, coverage, once / math.sqrt(n_draws), size, errors)


def _draw(cursor, rng, rest: range, n_held_out: int, n_draws: int) -> None:
    """Write which rows are held out in each draw."""
    import pandas

    drawn = [rng.choice(rest, n_held_out, replace=False) for _ in range(n_draws)]
    ids = np.concatenate(drawn)
    make_frame_table(cursor, "drawn", pandas.DataFrame({"draw": np.repeat(np.arange(n_draws), n_held_out), "id": ids}))
    for draw in range(n_draws):
        held_out = f"SELECT * FROM rows WHERE id IN (SELECT id FROM drawn WHERE draw = {draw})"
        cursor.execute(f"CREATE VIEW held_out_{draw} AS {held_out}")


def _register(cursor, draw: int, calibration: str) -> dict[str, object]:
    """Register a version with the rows of a draw; return what its predictions need."""
    cursor.execute(_REGISTER, [MODEL, f"held_out_{draw}", calibration])
    (version,) = cursor.fetchone()
    return {"model": f"{MODEL}@{version}", "coverage": COVERAGE, "draw": draw}


def _classes(cursor, n_draws: int, rng) -> tuple[float, float, dict[str, float]]:
    """Return coverage and size of sets, and the calibration errors."""
    covered, sizes, raw = [], [], {}
    errors: dict[str, list[float]] = {name: [] for name in _ERRORS}
    for draw in range(n_draws):
        calibration = CALIBRATIONS[draw % len(CALIBRATIONS)]
        version = _register(cursor, draw, calibration)
        if not raw:  # those of all versions
            cursor.execute(_RAW, version)
            raw = {number: _predicted(*row) for number, *row in cursor}
        cursor.execute(_CLASSES, version)
        fresh, calibrated = [], []
        for number, y, probabilities, likely in cursor:
            covered.append(y in likely)
            sizes.append(len(likely))
            fresh.append(raw[number])
            calibrated.append(_predicted(y, probabilities))
        errors["raw"].append(_error(fresh))
        errors[calibration].append(_error(calibrated))
        errors["chance"].append(_chance(fresh, rng))
    means = {name: float(np.mean(found)) for name, found in errors.items()}
    return float(np.mean(covered)), float(np.mean(sizes)), means


def _predicted(y: str, probabilities: dict[str, float]) -> tuple[float, bool]:
    """Return the probability of a row's predicted class, and whether it is true."""
    best = max(probabilities, key=probabilities.get)
    return probabilities[best], best == y


def _error(rows: list[tuple[float, bool]]) -> float:
    """Return the expected calibration error of rows as `_predicted` returns them."""
    probabilities, is_true = map(np.array, zip(*rows, strict=True))
    return calibration_error(reliability(probabilities, is_true, _N_BINS))


def _chance(rows: list[tuple[float, bool]], rng) -> float:
    """Return the mean expected calibration error of rows whose probabilities are true."""
    probabilities = np.array([probability for probability, _ in rows])
    simulated = (rng.random(len(rows)) < probabilities for _ in range(_N_SIMULATED))
    return float(np.mean([calibration_error(reliability(probabilities, one, _N_BINS)) for one in simulated]))


def _numbers(cursor, n_draws: int) -> tuple[float, float]:
    """Return coverage and width of intervals."""
    covered, widths = [], []
    for draw in range(n_draws):
        cursor.execute(_NUMBERS, _register(cursor, draw, CALIBRATIONS[0]))
        for is_covered, width in cursor:
            covered.append(is_covered)
            widths.append(width)
    return float(np.mean(covered)), float(np.mean(widths))


def _drop(cursor) -> None:
    cursor.execute("SELECT madlib_mop.drop_registered(name) FROM madlib_mop.registered_model WHERE name = %s", [MODEL])
    cursor.execute(
        "SELECT madlib_mop.drop_run(run_id) FROM madlib_mop.run WHERE model_output_table = %s", [f"{SCHEMA}.models"]
    )
    cursor.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def main() -> None:
    """Measure at the server of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn")
    parser.add_argument("--table", choices=[table.name for table in TABLES], help="one table (all)")
    arguments = parser.parse_args()
    compare_certainty(arguments.dsn, tuple(one for one in TABLES if arguments.table in (None, one.name)))


if __name__ == "__main__":
    main()
