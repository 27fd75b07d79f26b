"""The estimators of the client in a database, and scikit-learn's own checks of estimators (slow: each fit trains)."""

import gc
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from madlib_mop.client import HopperClassifier, HopperRegressor, connect
from madlib_mop.client.estimators import _shared
from madlib_mop.client.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def by_environment(db):
    """Estimators without a database use the module's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MADLIB_MOP_DSN", db.dsn)
        patch.setenv("PGOPTIONS", "-c madlib_mop.segments=2")
        yield
    for database in _shared.values():
        database.close()
    _shared.clear()


@pytest.fixture(scope="module")
def flowers():
    return load_iris(return_X_y=True, as_frame=True)


@pytest.fixture(scope="module")
def classifier(flowers, by_environment):
    X, y = flowers
    kinds = np.array(["setosa", "versicolor", "virginica"])[y]
    return HopperClassifier(n_configs=1, epochs=8, random_state=1).fit(X, kinds)


def test_a_classifier_predicts_the_classes_it_was_given(classifier, flowers):
    X, y = flowers
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"] and classifier.n_features_in_ == 4
    assert classifier.feature_names_in_.tolist() == X.columns.tolist()
    predicted = classifier.predict(X)
    assert (predicted == classifier.classes_[y]).mean() > 0.9
    probabilities = classifier.predict_proba(X)
    assert probabilities.shape == (150, 3) and probabilities.dtype == np.float32
    assert (classifier.classes_[probabilities.argmax(axis=1)] == predicted).all()
    with pytest.warns(UserWarning, match="does not have valid feature names"):  # scikit-learn's convention
        assert (classifier.predict(X.to_numpy()) == predicted).all()


def test_a_fitted_estimator_is_its_names_and_can_be_pickled(classifier, flowers):
    X, _ = flowers
    thawed = pickle.loads(pickle.dumps(classifier))
    assert (thawed.predict(X) == classifier.predict(X)).all()


def test_training_leaves_only_the_tables_of_models(classifier, db):
    kept = [name for (name,) in db.rows("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace ="
                                        " 'public'::regnamespace")]  # fmt: skip
    assert {name.partition("_")[0] for name in kept} == {"hopper"}


def test_features_of_any_kind_in_a_frame(db):
    ages = np.array([20, 30, np.nan, 50] * 15) + np.arange(60) / 100  # equal rows would be on one side of the split
    X = pd.DataFrame({"city": ["Bonn", "Kiel", None, "Ulm"] * 15, "age": ages})
    y = np.where(X["age"].fillna(40) > 35, 3.5, 1.5)
    with connect(db.dsn, settings={"segments": 1}) as database:
        regressor = HopperRegressor(n_configs=1, epochs=20, random_state=1, database=database).fit(X, y)
        predicted = regressor.predict(X)
        assert predicted.dtype == np.float64 and regressor.score(X, y) > 0.5
        regressor.drop()


def at_server(db) -> tuple[set[str], set[int]]:
    """Return the tables of users, and the runs."""
    tables = db.rows("SELECT relname FROM pg_class WHERE relkind IN ('r', 'p')"
                     " AND relnamespace = 'public'::regnamespace")  # fmt: skip
    return {name for (name,) in tables}, {run_id for (run_id,) in db.rows("SELECT run_id FROM madlib_mop.run")}


def test_an_estimator_in_a_pipeline_is_cross_validated_and_leaves_nothing(flowers, db):
    X, y = flowers
    before = at_server(db)
    scores = cross_val_score(make_pipeline(StandardScaler(), HopperClassifier(1, 8, random_state=1)), X, y, cv=2)
    gc.collect()
    assert scores.min() > 0.8 and at_server(db) == before


def test_a_fit_that_is_interrupted_leaves_nothing(flowers, db, monkeypatch):
    before = at_server(db)

    def interrupt(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "best", interrupt)
    with pytest.raises(KeyboardInterrupt):
        HopperClassifier(1, 1, random_state=1).fit(*flowers)
    assert at_server(db) == before


def test_the_models_of_a_process_go_at_its_end_unless_they_are_kept(db):
    code = """
import numpy as np
from madlib_mop.client import HopperClassifier
X = np.random.default_rng(1).normal(size=(40, 2))
a, b = (HopperClassifier(1, 1, random_state=1).fit(X, [0, 1] * 20) for _ in range(2))
print(b.keep().model_table_)
"""
    tables, runs = at_server(db)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = done.stdout.strip().split('"')[3]
    now_tables, now_runs = at_server(db)
    assert now_tables - tables == {kept, f"{kept}_info", f"{kept}_summary"} and len(now_runs - runs) == 1, done.stderr


#: Checks that cannot hold, each with its reason.
EXPECTED = {}


@parametrize_with_checks(
    [HopperClassifier(n_configs=1, epochs=20, random_state=1), HopperRegressor(n_configs=1, epochs=20, random_state=1)],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)
