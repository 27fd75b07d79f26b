"""What the estimators do before they need a database."""

import copy
import gc
import os
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from madlib_mop.client import HopperClassifier, HopperRegressor, estimators
from madlib_mop.client.calling.sessions import ClientSessions, make_engine
from madlib_mop.client.database import Database
from madlib_mop.client.frames.columns import read_frame
from madlib_mop.errors import InvalidParameter, ModelFailed, NotReady

ESTIMATORS = (HopperClassifier, HopperRegressor)
SECRET = "hunter2secret"


def database() -> Database:
    return Database(ClientSessions(make_engine(f"postgresql://ann:{SECRET}@localhost:1/db"), {}))


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


@pytest.mark.parametrize("as_frame", [False, True])
@pytest.mark.parametrize(
    "labels",
    [
        np.array(["2020-01-01", "NaT", "2020-01-02"], "datetime64[D]"),
        np.array(["a", None, "b"], object),
        np.array(["a", np.nan, "b"], object),
        np.array([1.0, np.nan, 2.0]),
        [1, np.nan, 2],
        pd.Series([1, None, 2], dtype="Int64"),
        pd.Series(["a", None, "b"], dtype="string"),
        pd.Series(pd.Categorical(["a", None, "b"])),
        pl.Series(["a", None, "b"]),
    ],
)
def test_a_missing_label_is_no_class(labels, as_frame):
    X = np.eye(3)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        HopperClassifier(database=database()).fit(pd.DataFrame(X, columns=list("abc")) if as_frame else X, labels)


@pytest.mark.parametrize("labels", [[1, None, 2], pd.Series([1.5, None, 2], dtype="Float64")])
def test_a_missing_number_is_no_target(labels):
    with pytest.raises(ValueError, match="Input y contains NaN"):
        HopperRegressor(database=database()).fit(pd.DataFrame(np.eye(3), columns=list("abc")), labels)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    "column", [[1.0, np.inf, 2.0], [{"a": 1}, {"a": 2}, {}], pd.period_range("2020-01", periods=3, freq="M")]
)
def test_a_frame_with_values_that_no_column_has_is_a_value_error(kind, column):
    with pytest.raises(ValueError, match="column 'c' of the frame") as raised:
        kind(database=NoDatabase()).fit(pd.DataFrame({"c": column}), [0, 1, 0])
    assert raised.value.__cause__.sqlstate.startswith("22")


class NoDatabase(Database):
    """A database that checks frames, and has no sessions."""

    def __init__(self) -> None:
        super().__init__(ClientSessions(make_engine("postgresql://localhost:1/db"), {}))

    def upload(self, data, table=None):
        self.frame = read_frame(data)
        "".join(self.frame.pieces())
        raise StopIteration


@pytest.mark.parametrize("names", [["xmin", "b"], ["ctid", "tableoid"], ["x" * 64, "b"]])
def test_columns_have_other_names_in_the_table_if_it_cannot_have_theirs(names):
    database = NoDatabase()
    with pytest.raises(StopIteration):
        HopperClassifier(database=database).fit(pd.DataFrame([[1, 2], [3, 4]], columns=names), [0, 1])
    assert [column.name for column in database.frame.columns] == ["x0", "x1", "target"]


def test_a_classifier_needs_classes():
    with pytest.raises(ValueError, match="1 class"):
        HopperClassifier(database=database()).fit(np.eye(3), ["a", "a", "a"])
    with pytest.raises(ValueError, match="continuous"):
        HopperClassifier(database=database()).fit(np.eye(3), [0.1, 0.2, 0.3])


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_predictions_need_a_fitted_estimator(kind):
    with pytest.raises(NotFittedError):
        kind(database=database()).predict(np.eye(3))


class MadeAtServer(NoDatabase):
    """A database that only notes what an estimator makes and drops: `left` has what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.left: set[str] = set()
        self.n_fits, self.fails = 0, None
        self.sessions = SimpleNamespace(rows=None)

    def upload(self, data, table=None):
        self.left.add("rows")
        return "rows"

    def pack(self, source, target, **arguments):
        return self._handle("packed")

    def networks(self, packed, n_configs, **arguments):
        return self._handle("configs")

    def fit(self, packed, configs, epochs, *, models, **arguments):
        self.n_fits += 1
        run_id = self.n_fits
        self.left |= {f"run {run_id}"}
        self.models = models
        if self.fails is not None:
            raise self.fails
        self.left |= {f"models {run_id}"}
        return SimpleNamespace(run_id=run_id, best=lambda: SimpleNamespace(table=f"models {run_id}", mst_key=1))

    def call(self, function, **arguments):
        name = arguments["model_table"] if function == "drop_models" else f"run {arguments['run_id']}"
        if name not in self.left:
            raise InvalidParameter(f"there is no {name}")
        self.left.remove(name)

    def model(self, table, mst_key=None):
        return f"handle of {table}"

    def _handle(self, name):
        self.left.add(name)
        return SimpleNamespace(drop=lambda: self.left.remove(name))

    def runs(self, fetch, limit):
        """Return what the role may see: also a run of another table."""
        assert limit is None
        found = [SimpleNamespace(run_id=99, output_table="public.others")]
        if f"run {self.n_fits}" in self.left:
            found.append(SimpleNamespace(run_id=self.n_fits, output_table=f"public.{self.models}"))
        return found


@pytest.fixture(scope="module")
def few_objects():
    """Leave what exists already to no collection of garbage: TensorFlow has millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def made(monkeypatch, few_objects):
    database = MadeAtServer()
    monkeypatch.setattr(estimators, "drop_tables", lambda sessions, names: database.left.remove("rows"))
    monkeypatch.setattr(estimators, "read_runs", database.runs)
    return database


def fitted(kind, database):
    return kind(database=database).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_models_and_their_run_go_with_the_estimator(kind, made):
    estimator = fitted(kind, made)
    assert made.left == {"models 1", "run 1"}, "what was needed for training only is dropped"
    estimator.fit(np.eye(4), [0, 1, 0, 1])
    assert made.left == {"models 2", "run 2"}, "those of the fit before are dropped"
    del estimator
    gc.collect()
    assert made.left == set()


@pytest.mark.parametrize("ask", [lambda e: e.keep(), lambda e: e.model(), pickle.dumps, copy.deepcopy])
def test_models_that_somebody_may_still_use_stay(ask, made):
    estimator = fitted(HopperClassifier, made)
    ask(estimator)
    del estimator
    gc.collect()
    assert made.left == {"models 1", "run 1"}


def test_dropped_models_are_not_dropped_again(made):
    estimator = fitted(HopperRegressor, made)
    for _ in range(2):
        estimator.drop()
    assert made.left == set()
    made.left = {"models 1", "run 1"}  # somebody else's
    del estimator
    gc.collect()
    assert made.left == {"models 1", "run 1"}


@pytest.mark.parametrize("error", [ModelFailed("all 2 models failed"), KeyboardInterrupt()])
def test_a_fit_that_fails_leaves_nothing(error, made):
    made.fails = error
    with pytest.raises(type(error)):
        fitted(HopperClassifier, made)
    assert made.left == set()


def test_a_fork_of_the_process_drops_nothing(made, monkeypatch):
    estimator = fitted(HopperClassifier, made)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    del estimator
    gc.collect()
    assert made.left == {"models 1", "run 1"}


def test_what_cannot_be_dropped_is_a_warning_and_no_other_error(made):
    def lost(function, **arguments):
        raise NotReady("the connection was lost")

    estimator = fitted(HopperClassifier, made)
    made.call = lost
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del estimator
        gc.collect()
    assert ["still at the server: the connection was lost" in str(one.message) for one in caught] == [True]
    made.fails = ModelFailed("all 2 models failed")
    with pytest.raises(ModelFailed), pytest.warns(ResourceWarning, match="still at the server"):
        fitted(HopperClassifier, made)
