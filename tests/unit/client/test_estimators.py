"""What the estimators do before they need a database."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from madlib_mop.client import HopperClassifier, HopperRegressor
from madlib_mop.client.calling.sessions import Sessions, make_engine
from madlib_mop.client.database import Database

ESTIMATORS = (HopperClassifier, HopperRegressor)
SECRET = "hunter2secret"


def database() -> Database:
    return Database(Sessions(make_engine(f"postgresql://ann:{SECRET}@localhost:1/db"), {}))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_estimator_is_cloned_with_the_same_database_and_pickled_without(kind):
    estimator = kind(n_configs=2, random_state=3, database=database())
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params() and copy.database is estimator.database
    thawed = pickle.loads(pickle.dumps(estimator))
    assert thawed.database is None and thawed.n_configs == 2
    assert SECRET not in repr(estimator) + str(estimator.get_params())


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_dsn_is_no_database(kind):
    with pytest.raises(TypeError, match="database must be a Database") as raised:
        kind(database=f"password={SECRET}").fit(np.eye(4), [0, 1, 0, 1])
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    "X, y, message",
    [
        (np.eye(3), [1, 2], "inconsistent numbers of samples"),
        (np.eye(3), None, "requires y"),
        (np.eye(3), [1.0, np.nan, 2.0], "NaN"),
        (np.array([[1.0, np.inf], [1.0, 2.0]]), [0, 1], "infinity"),
        (np.ones((1, 3)), [1], "1 sample"),
        (np.ones(3), [1, 2, 3], "1D array"),
        (pd.DataFrame({"a": [1, 2]}), None, "requires y"),
        (pd.DataFrame({"a": [1]}), [1], "n_samples=1"),
        (pd.DataFrame({"a": [1, 2]}), [1], "inconsistent numbers of samples"),
    ],
)
def test_bad_rows_are_refused_before_a_session(kind, X, y, message):
    with pytest.raises(ValueError, match=message):
        kind(database=database()).fit(X, y)


def test_a_classifier_needs_classes():
    with pytest.raises(ValueError, match="1 class"):
        HopperClassifier(database=database()).fit(np.eye(3), ["a", "a", "a"])
    with pytest.raises(ValueError, match="continuous"):
        HopperClassifier(database=database()).fit(np.eye(3), [0.1, 0.2, 0.3])


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_predictions_need_a_fitted_estimator(kind):
    with pytest.raises(NotFittedError):
        kind(database=database()).predict(np.eye(3))
