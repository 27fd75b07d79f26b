"""Gradient boosting, scikit-learn's perceptrons and LightGBM, tuned on the same rows as the networks."""

import time
import warnings
from collections.abc import Iterator

import numpy as np

from quality.draws import boosting, perceptrons
from quality.scores import BOOSTING, LIGHTGBM, PERCEPTRON, Score, auc, r2
from quality.tables import Split, Table

_MOST_LEVELS = 200
_MOST_TREES, _PATIENCE = 1000, 20
_WORD_UNITS = 32


def train_rivals(table: Table, rows, split: Split, n_configs: int, seed: int) -> Iterator[Score]:
    """Return the scores of each contestant; the configuration with the lowest loss on the validation rows counts.

    Each trains with one thread: with more, OpenMP's threads wait for each other where other work shares the cores.
    """
    from threadpoolctl import threadpool_limits

    warnings.filterwarnings("ignore")
    with threadpool_limits(1):
        yield from _train(table, rows, split, n_configs, seed)


def _train(table: Table, rows, split: Split, n_configs: int, seed: int) -> Iterator[Score]:
    rows, kinds = columns_of(table, rows)
    y = rows.pop(table.target).to_numpy()
    if table.task != "regression":
        y = np.unique(y.astype(str), return_inverse=True)[1]
    ys = [y[part] for part in (split.train, split.valid, split.test)]
    contestants = {BOOSTING: _boosting, PERCEPTRON: _perceptrons}
    try:
        import lightgbm  # noqa: F401
    except ImportError:
        pass
    else:
        contestants[LIGHTGBM] = _lightgbm
    for name, fits in contestants.items():
        begun = time.monotonic()
        encoder = encoder_of(kinds, table.task, dense=name != PERCEPTRON)
        xs = [encoder.fit_transform(rows.iloc[split.train], ys[0])]
        xs += [encoder.transform(rows.iloc[part]) for part in (split.valid, split.test)]
        is_category = np.arange(xs[0].shape[1]) < len(kinds["few"])
        best, lowest = None, np.inf
        for predict in fits(table.task, xs, ys, is_category, n_configs, seed):
            loss = loss_of(table.task, ys[1], predict(xs[1]))
            if loss < lowest:
                best, lowest = predict(xs[2]), loss
        value = score_of(table.task, ys[2], best)
        yield Score(table.name, table.metric, seed, name, value, time.monotonic() - begun)


def columns_of(table: Table, rows):
    """Return the rows with dates as numbers, and the names of the columns of each kind."""
    import pandas

    types, rows = pandas.api.types, rows.copy()
    for name in list(rows):
        column = rows[name]
        if types.is_datetime64_any_dtype(column):
            at = rows.pop(name).dt
            parts = {"days": column.astype("int64") / column.astype("int64").std(), "month": at.month,
                     "weekday": at.weekday, "hour": at.hour, "day_of_year": at.dayofyear}  # fmt: skip
            rows = rows.assign(**{f"{name}_{part}": values for part, values in parts.items() if values.nunique() > 1})
    kinds = {"few": [], "many": [], "words": [], "numbers": []}
    for name in rows:
        if name == table.target:
            continue
        if types.is_numeric_dtype(rows[name]):
            kind = "numbers"
            rows[name] = rows[name].astype(float)
        elif name in table.words:
            kind = "words"
            rows[name] = rows[name].fillna("").astype(str)
        else:
            kind = "few" if rows[name].nunique() <= _MOST_LEVELS else "many"
            rows[name] = rows[name].astype(object).where(rows[name].notna(), None)
        kinds[kind].append(name)
    return rows, kinds


def encoder_of(kinds, task: str, dense: bool, all_terms: bool = False):
    """Return the encoder of trees, whose first columns are numbered categories, or of perceptrons.

    Texts become 32 components of their TF-IDF, or, with ``all_terms``, the TF-IDF itself: a sparse matrix.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

    def words():
        if all_terms:
            return TfidfVectorizer()
        return make_pipeline(TfidfVectorizer(max_features=5000), TruncatedSVD(_WORD_UNITS, random_state=0))

    def scaled(*steps):
        return make_pipeline(*steps, SimpleImputer(add_indicator=True), StandardScaler())

    target = {"binary": "binary", "classes": "multiclass", "regression": "continuous"}[task]
    many = TargetEncoder(target_type=target, random_state=0)
    if dense:
        few = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
        steps = [("few", few, kinds["few"]), ("many", many, kinds["many"]),
                 ("numbers", "passthrough", kinds["numbers"])]  # fmt: skip
    else:
        one_hot = make_pipeline(
            SimpleImputer(strategy="constant", fill_value="missing", missing_values=None),
            OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2),
        )
        steps = [("few", one_hot, kinds["few"]), ("many", scaled(many), kinds["many"]),
                 ("numbers", scaled(), kinds["numbers"])]  # fmt: skip
    steps += [(name, words(), name) for name in kinds["words"]]
    return ColumnTransformer([step for step in steps if step[2]])


def _boosting(task, xs, ys, is_category, n_configs, seed):
    return boosted(boosting(n_configs, seed), task, xs, ys, is_category, seed)


def boosted(configurations, task, xs, ys, is_category, seed):
    """Train scikit-learn's gradient boosting with each configuration; yield the function that predicts."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    form = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    for values in configurations:
        model = form(**values, max_iter=_MOST_TREES, early_stopping=True, n_iter_no_change=_PATIENCE,
                     categorical_features=is_category, random_state=seed)  # fmt: skip
        model.fit(xs[0], ys[0], X_val=xs[1], y_val=ys[1])
        yield model.predict if task == "regression" else model.predict_proba


def _perceptrons(task, xs, ys, _is_category, n_configs, seed):
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    mean, deviation = (ys[0].mean(), ys[0].std()) if task == "regression" else (0, 1)
    form = MLPRegressor if task == "regression" else MLPClassifier
    for values in perceptrons(n_configs, seed):
        values["batch_size"] = min(values["batch_size"], len(ys[0]))
        model = form(**values, max_iter=200, early_stopping=True, random_state=seed)
        model.fit(xs[0], (ys[0] - mean) / deviation if task == "regression" else ys[0])
        if task == "regression":
            yield lambda x, model=model: model.predict(x) * deviation + mean
        else:
            yield model.predict_proba


def _lightgbm(task, xs, ys, is_category, n_configs, seed):
    import lightgbm

    names = {"max_leaf_nodes": "num_leaves", "min_samples_leaf": "min_child_samples", "l2_regularization": "reg_lambda",
             "max_features": "colsample_bytree", "learning_rate": "learning_rate"}  # fmt: skip
    form = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    for values in boosting(n_configs, seed):
        model = form(**{names[name]: value for name, value in values.items()}, n_estimators=_MOST_TREES,
                     random_state=seed, verbosity=-1, n_jobs=1)  # fmt: skip
        model.fit(xs[0], ys[0], eval_set=[(xs[1], ys[1])], categorical_feature=np.flatnonzero(is_category).tolist(),
                  callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)])  # fmt: skip
        yield model.predict if task == "regression" else model.predict_proba


def loss_of(task: str, expected: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean squared error, or the log loss of probabilities."""
    if task == "regression":
        return float(np.square(expected - predicted).mean())
    return float(-np.log(np.maximum(predicted[np.arange(len(expected)), expected], 1e-15)).mean())


def score_of(task: str, expected: np.ndarray, predicted: np.ndarray) -> float:
    """Return R2 of numbers, and AUC or accuracy of probabilities."""
    if task == "regression":
        return r2(expected, predicted)
    if task == "binary":
        return auc(expected == 1, predicted[:, 1])
    return float((predicted.argmax(1) == expected).mean())
