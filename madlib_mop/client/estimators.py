"""Estimators in scikit-learn's conventions that train and predict in a database; needs scikit-learn."""

import contextlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import narwhals as nw
import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data

from madlib_mop.catalog.facts.now import read_runs
from madlib_mop.catalog.names import MAX_NAME_BYTES, SYSTEM_COLUMNS
from madlib_mop.client.database import ENVIRONMENT, Database, connect
from madlib_mop.client.models import Model
from madlib_mop.client.tables import drop_tables, new_name, read_name
from madlib_mop.errors import InvalidParameter, MopError

#: Arrays with more features become one column of arrays; a table has at most 1,600 columns.
_MAX_COLUMNS = 1_000
#: With fewer rows, none are kept for validation.
_MIN_VALIDATED = 50
_MAX_SEED = 2**31 - 1
_shared: dict[tuple[int, str], Database] = {}  # by process and DSN: their sessions have trainers for predictions


class _Hopper(BaseEstimator):
    """What both estimators do."""

    def __init__(
        self,
        n_configs: int = 4,
        epochs: int = 10,
        *,
        validation: float = 0.2,
        random_state: Any = None,
        database: Database | None = None,
    ):
        self.n_configs = n_configs
        self.epochs = epochs
        self.validation = validation
        self.random_state = random_state
        self.database = database

    def model(self) -> Model:
        """Return the handle of the trained model, and `keep` its tables. Raises NotFittedError before `fit`."""
        check_is_fitted(self)
        self.keep()
        return self._handle()

    def keep(self) -> Self:
        """Let the trained models and their run stay at the server when this estimator is deleted; return it."""
        if (at_end := getattr(self, "_at_end", None)) is not None:
            at_end.detach()
        return self

    def drop(self) -> None:
        """Drop the tables of the trained models, and delete their run from the record, as far as they are there."""
        check_is_fitted(self)
        self.keep()
        _drop_trained(self._connected(), self.model_table_, [self.run_id_])

    def __getstate__(self) -> Any:
        self.keep()  # the pickle needs the models too
        state = {name: value for name, value in super().__getstate__().items() if name != "_at_end"}
        # a pickle has no sessions: it uses those of its process's variables
        return {**state, "database": None} if "database" in state else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _connected(self) -> Database:
        if self.database is not None:
            if not isinstance(self.database, Database):
                raise TypeError(
                    f"database must be a Database or None. Received: {type(self.database).__name__}. Pass"
                    " madlib_mop.client.connect(...)"
                )
            return self.database
        key = (os.getpid(), os.environ.get(ENVIRONMENT, ""))
        if key not in _shared:
            _shared[key] = connect()
        return _shared[key]

    def _handle(self) -> Model:
        return self._connected().model(self.model_table_, self.mst_key_)

    def _fit(self, frame: "nw.DataFrame[Any]", y: npt.NDArray[Any]) -> None:
        """Train on rows whose target is ``y``: texts of classes, or numbers."""
        target = "target"
        while target in frame.columns:
            target += "_"
        column = nw.new_series(target, y.tolist(), backend=frame.implementation)
        seed = int(check_random_state(self.random_state).randint(_MAX_SEED))
        database, table = self._connected(), new_name("hopper")
        with contextlib.ExitStack() as made, contextlib.ExitStack() as models:

            def drops(of: contextlib.ExitStack, drop: Callable[..., None], *arguments: Any) -> None:
                of.callback(_drop_quietly, drop, *arguments)

            with _as_value_errors():
                source = database.upload(nw.to_native(frame.with_columns(column)))
                drops(made, drop_tables, database.sessions, [read_name(source, "table")])
                share = self.validation if len(y) >= _MIN_VALIDATED else None
                task = "regression" if y.dtype.kind == "f" else "classification"
                packed = database.pack(source, target, validation=share, seed=seed, task=task)
                drops(made, packed.drop)
                configs = database.networks(packed, self.n_configs, epochs=self.epochs, seed=seed)
                drops(made, configs.drop)
                drops(models, _drop_failed, database, table)
                run = database.fit(
                    packed, configs, self.epochs, models=table, progress=False, seed=seed, schedule="rotation",
                )  # fmt: skip
            best = run.best()
            models.pop_all()
        earlier = getattr(self, "_at_end", None)
        self.run_id_ = run.run_id
        self.model_table_, self.mst_key_ = best.table, best.mst_key
        self._at_end = weakref.finalize(self, _drop_at_end, os.getpid(), database, best.table, run.run_id)
        if earlier is not None:
            earlier()

    def _read(self, X: Any, y: Any, y_numeric: bool) -> "tuple[nw.DataFrame[Any], npt.NDArray[Any]]":
        """Return checked features and targets of `fit`, with sklearn's errors and warnings."""
        frame = _as_frame(X)
        if y is not None:
            _check_targets(y)
        if frame is None:
            X, y = validate_data(
                self, X, y, dtype="numeric", ensure_all_finite="allow-nan", ensure_min_samples=2, y_numeric=y_numeric
            )
            frame = _frame_of(X)
            self._columns = frame.columns
            return frame, np.asarray(y)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        validate_data(self, X, skip_check_array=True)
        if len(frame) < 2:
            raise ValueError(f"Found a frame with n_samples={len(frame)}, while a minimum of 2 is required.")
        y = column_or_1d(y, warn=True)
        _check_targets(y)  # of a series of another library, whose missing values pandas does not know
        check_consistent_length(X, y)
        self._columns = _column_names(frame.columns)
        return frame.rename(dict(zip(frame.columns, self._columns, strict=True))), y

    def _features(self, X: Any) -> Any:
        """Return checked features of a prediction, as a data frame."""
        check_is_fitted(self)
        frame = _as_frame(X)
        if frame is None:
            checked = validate_data(self, X, reset=False, dtype="numeric", ensure_all_finite="allow-nan")
            frame = _frame_of(checked)
            if len(frame.columns) == len(self._columns):  # of a fit with a data frame too, whose columns have names
                frame = frame.rename(dict(zip(frame.columns, self._columns, strict=True)))
            return nw.to_native(frame)
        validate_data(self, X, reset=False, skip_check_array=True)
        return nw.to_native(frame.rename(dict(zip(frame.columns, self._columns, strict=True))))


class HopperClassifier(ClassifierMixin, _Hopper):
    """Classify rows with the best of several networks that are trained in a database.

    `fit` copies the rows into the database, packs and trains, and removes the rows. The features may be numbers in an
    array, or columns of any kind in a data frame: numbers, categories, texts, booleans and dates. Missing values are
    accepted. Columns that ``pack_columns`` ignores, such as keys and constants, are ignored.

    Parameters
    ----------
    n_configs : int
        Number of proposed configurations; the best one on the validation rows is kept.
    epochs : int
        Number of epochs of each.
    validation : float
        Share of the rows that only choose the configuration. With fewer than 50 rows, all rows do both.
    random_state : int, RandomState or None
        Seed of the configurations, the split, the start weights and the order of the rows. With an int, repeated calls
        give the same bits.
    database : Database or None
        None: the database of the variable MADLIB_MOP_DSN, or of PGHOST and the other variables of libpq. It is no DSN,
        which `get_params` would show with its password. A pickle of the estimator does not have it.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray
        If X was a data frame whose columns have names.
    model_table_ : str
        The table of the trained models, of which ``mst_key_`` is the best. It is dropped, and the run deleted, by the
        next ``fit``, by ``drop()``, and when the estimator is deleted; not after ``keep()`` or ``model()``, nor once
        the estimator was pickled.
    mst_key_ : int
    run_id_ : int
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train.

        Parameters
        ----------
        X : array of shape (n_samples, n_features), or a data frame
            At least 2 rows.
        y : array of shape (n_samples,)
            At least two classes.

        Raises
        ------
        ValueError
            If X or y cannot be used.
        MopError
            If the database cannot be used, or no configuration can be trained.
        """
        frame, y = self._read(X, y, y_numeric=False)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y must have two classes at least. Received: 1 class, {classes[0]!r}")
        self._fit(frame, codes.astype(str))
        self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the probability of each class, in the order of ``classes_``: float32, (n_samples, n_classes).

        Raises
        ------
        ValueError
            If X cannot be used.
        """
        features = self._features(X)
        model = self._handle()
        with _as_value_errors():
            found = nw.from_native(model.predict_proba(features), eager_only=True).to_numpy()
        order = [int(text or 0) for text in model.targets[0].texts or ()]
        probabilities = np.zeros((len(found), len(self.classes_)), np.float32)
        probabilities[:, order] = found
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the class with the highest probability, of shape (n_samples,). Raises as `predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[best]
        return found


class HopperRegressor(RegressorMixin, _Hopper):
    """Predict numbers with the best of several networks that are trained in a database.

    Features are those of `HopperClassifier`. The target is standardised for training; predictions are in its own units.

    Parameters
    ----------
    n_configs : int
        Number of proposed configurations; the best one on the validation rows is kept.
    epochs : int
        Number of epochs of each.
    validation : float
        Share of the rows that only choose the configuration. With fewer than 50 rows, all rows do both.
    random_state : int, RandomState or None
        Seed of the configurations, the split, the start weights and the order of the rows. With an int, repeated calls
        give the same bits.
    database : Database or None
        None: the database of the variable MADLIB_MOP_DSN, or of PGHOST and the other variables of libpq. It is no DSN,
        which `get_params` would show with its password. A pickle of the estimator does not have it.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : ndarray
        If X was a data frame whose columns have names.
    model_table_ : str
        The table of the trained models, of which ``mst_key_`` is the best. It is dropped, and the run deleted, by the
        next ``fit``, by ``drop()``, and when the estimator is deleted; not after ``keep()`` or ``model()``, nor once
        the estimator was pickled.
    mst_key_ : int
    run_id_ : int
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Train; X as for `HopperClassifier.fit`, y an array of finite numbers, of shape (n_samples,).

        Raises
        ------
        ValueError
            If X or y cannot be used.
        MopError
            If the database cannot be used, or no configuration can be trained.
        """
        frame, y = self._read(X, y, y_numeric=True)
        assert_all_finite(y, input_name="y")
        self._fit(frame, y.astype(np.float64))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the predicted numbers: float64 of shape (n_samples,). Raises ValueError if X cannot be used."""
        features, model = self._features(X), self._handle()
        with _as_value_errors():
            found = model.predict(features)
        values: npt.NDArray[np.float64] = np.asarray(found, np.float64)
        return values


def _drop_trained(database: Database, table: str, run_ids: Sequence[int]) -> None:
    """Delete runs, and drop the table of their models, as far as they are there."""
    for run_id in run_ids:
        with contextlib.suppress(InvalidParameter):
            database.call("drop_run", run_id=run_id)
    with contextlib.suppress(InvalidParameter):
        database.call("drop_models", model_table=table)


def _drop_failed(database: Database, table: str) -> None:
    """Delete what a call of fit left that failed: the run that would have written this table, and the table."""
    runs = read_runs(database.sessions.rows, None)
    _drop_trained(database, table, [run.run_id for run in runs if run.output_table.endswith(f".{table}")])


def _drop_at_end(pid: int, database: Database, table: str, run_id: int) -> None:
    """Drop the models of an estimator that is deleted; a process that was forked leaves those of its parent alone."""
    if os.getpid() == pid:
        _drop_quietly(_drop_trained, database, table, [run_id])


def _drop_quietly(drop: Callable[..., None], *arguments: Any) -> None:
    """Drop something; if that fails, warn: there may be another error to raise, or nobody to get this one."""
    try:
        drop(*arguments)
    except MopError as error:
        left = f"tables or runs of an estimator are still at the server: {error.message}"
        warnings.warn(left, ResourceWarning, stacklevel=2)


@contextlib.contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise errors about the data as ValueError, as scikit-learn's estimators do."""
    try:
        yield
    except InvalidParameter as error:
        raise ValueError(error.message) from error


def _check_targets(y: Any) -> None:
    """Raise ValueError if a target is missing, before scikit-learn says something else of it."""
    import pandas as pd

    missing = np.asarray(pd.isna(y))
    if missing.any():
        row = f": the target of row {int(np.argwhere(missing)[0][0])} (from 0) is missing" if missing.ndim else ""
        raise ValueError(f"Input y contains NaN{row}.")


def _as_frame(X: Any) -> "nw.DataFrame[Any] | None":
    """Return a data frame whose columns have names; None for anything else, such as an array."""
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame) or not all(isinstance(name, str) for name in frame.columns):
        return None
    return frame


def _frame_of(X: npt.NDArray[Any]) -> "nw.DataFrame[Any]":
    """Return an array of features as a frame: a column for each feature, or one of arrays for very many."""
    import pandas as pd

    n_features = X.shape[1]
    if n_features > _MAX_COLUMNS:
        assert_all_finite(X, input_name="X")
        return nw.from_native(pd.DataFrame({"x": list(X.astype(np.float32))}), eager_only=True)
    return nw.from_native(pd.DataFrame(X, columns=[f"x{i}" for i in range(n_features)]), eager_only=True)


def _column_names(names: Sequence[str]) -> list[str]:
    """Return the names of a frame's columns if a table can have them, else numbered ones."""
    can = all(
        0 < len(name.encode()) <= MAX_NAME_BYTES and "\0" not in name and name not in SYSTEM_COLUMNS for name in names
    )
    return list(names) if can else [f"x{i}" for i in range(len(names))]
