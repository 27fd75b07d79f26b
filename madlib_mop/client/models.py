"""The handle of a trained model: predictions in the database, the model as one of Keras, and its files."""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mop_backend.registered_names import is_registered
from mop_backend.weights import (
    PARTS_SUFFIX,
    WEIGHTS_DAMAGED,
    WRITE_AGAIN,
    ModelWeights,
    WeightErrors,
    of_field,
    of_parts,
)

from madlib_mop.catalog.names import Relation, statement
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.statements import call_of, whole_number
from madlib_mop.client.calls import Calls, read_own
from madlib_mop.client.exported.weights import read_safetensors
from madlib_mop.client.predicting import ClientPredictor
from madlib_mop.client.tables import Packed
from madlib_mop.client.targets import Target, TargetFacts, facts_of, read_facts, value_of_json
from madlib_mop.errors import DataDamaged, InsufficientPrivilege, MopError, NotReady, Unsupported, hint_of_extra
from madlib_mop.exports.directory import check_directory, write_directory
from madlib_mop.exports.formats import Format

if TYPE_CHECKING:
    import pandas

_VERSION = (
    "FROM madlib_mop.version_content c JOIN madlib_mop.model_version v ON v.version_id = c.version_id"
    " WHERE v.name = %s AND v.version = %s"
)
_DOCUMENT = f"SELECT c.document {_VERSION}"
_HISTORY = (
    "SELECT alias, change, from_version, to_version, changed_by, changed_at, reason, is_current"
    " FROM madlib_mop.alias_history WHERE name = %s ORDER BY change_id DESC"
)

_HAS_DIGEST = (
    "SELECT 1 FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass(%s) AND attname = 'weights_digest'"
    " AND atttypid = 'pg_catalog.text'::pg_catalog.regtype"
)

#: Whether there is a table of parts of weights; any role could make one of that name.
_HAS_PARTS = (
    "SELECT 1 FROM pg_catalog.pg_class t JOIN pg_catalog.pg_class p ON p.relowner = t.relowner"
    " WHERE t.oid = pg_catalog.to_regclass(%s) AND p.oid = pg_catalog.to_regclass(%s)"
)
#: Of weights that the server has checked.
_NEVER = WeightErrors(AssertionError, AssertionError)


class Model:
    """One trained model of an output table.

    Attributes
    ----------
    table : str
        The quoted name of the output table, with its schema.
    mst_key : int or None
        None for a table of ``madlib_keras_fit``.
    """

    def __init__(self, calls: Calls, table: Relation, mst_key: int | None):
        self._calls = calls
        self._relation = table
        self.table = table.sql
        self.mst_key = None if mst_key is None else whole_number(mst_key, "mst_key")

    def __repr__(self) -> str:
        return f"Model({self.table!r}, mst_key={self.mst_key})"

    @property
    def targets(self) -> tuple[Target, ...]:
        """The outputs, with their classes."""
        return self._facts.targets

    def predict(self, data: Any, key: str | None = None) -> Any:
        """Predict rows in the database: the class of each, or the number in the units of the table.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, numpy.ndarray or str
            Rows with the input columns of training, in any order; further columns are ignored. For a model that was
            trained on arrays (``training_preprocessor_dl``): an array of shape (n_rows, *shape of a row). A text is the
            name of a table or view with these columns, which is not copied.
        key : str, optional
            For a table: the column that identifies a row, the index of the result.

        Returns
        -------
        Series or DataFrame
            In the order of the rows, with the index of a pandas frame; of the library of the frame, and of pandas for
            arrays and tables. A model with several outputs returns a frame with a column for each. A model of arrays
            that has no classes, and more than one unit in its output, returns a list of their values for each row.

        Raises
        ------
        MopError
            If a column is missing or has another kind of type, or a value is NaN or infinite.
        """
        return self._with_facts(lambda facts, predictor: _predicted(facts.targets, predictor, data, key))

    def predict_proba(self, data: Any, key: str | None = None, calibrated: bool = False) -> Any:
        """Predict the probability of each class.

        Parameters
        ----------
        data, key
            As for `predict`.
        calibrated : bool
            Whether probabilities are calibrated by the held-out rows of the version; for registered models. The
            columns are then float64.

        Returns
        -------
        DataFrame
            A column of float32 for each class, in the order of ``model.targets[0].classes``. In pandas, the names are
            the classes; in other libraries, their texts. A row whose array is NULL has NaN.

        Raises
        ------
        Unsupported
            If the model predicts numbers, or has several outputs.
        """
        if calibrated and not is_registered(self.table):
            raise noted(Unsupported(f"{self.table} is no registered model, so nothing calibrates its probabilities",
                                    hint="model.register('churn', held_out=...) records held-out rows."))  # fmt: skip
        ask = _calibrated if calibrated else _probabilities
        return self._with_facts(lambda facts, predictor: ask(facts.targets, predictor, data, key))

    def drift(self, data: Any, baseline: Any = None, **arguments: Any) -> "pandas.DataFrame":
        """Compare rows of today, and the predictions of them, with the training rows.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or str
            Rows with the input columns of training, or the name of a table or view with them.
        baseline : DataFrame, pyarrow.Table or str, optional
            Rows to compare with. Default: the training rows, as packing recorded them.
        **arguments
            Further arguments of the SQL function ``drift``: ``predictions``, ``max_rows``, ``moderate``, ``large``.

        Returns
        -------
        pandas.DataFrame
            A row for each comparison, as the SQL function returns it: ``feature``, ``verdict``, ``psi``, ``reason`` ...

        Raises
        ------
        MopError
            If a column is missing or has another type than in training.
        """
        return self._with_facts(lambda _, predictor: predictor.drift(data, baseline, arguments))

    def explain(
        self, data: Any, key: str | None = None, background: Any = None, **options: Any
    ) -> "pandas.DataFrame":
        """Return what each column of some rows contributes to their predictions.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or str
            Rows with the input columns of training, or the name of a table or view with them.
        key : str, optional
            For a table: the column that identifies a row.
        background : DataFrame, pyarrow.Table, Packed or str, optional
            Rows to compare with. Default: the training rows.
        **options
            Further arguments of the SQL function ``explain_prediction``: ``of_class``, ``n_background``,
            ``n_permutations``, ``seed``.

        Returns
        -------
        pandas.DataFrame
            For each row of ``data`` a row for each column, the largest contribution first: ``row`` (its number, from 0)
            or the key, ``output``, ``class``, ``feature``, ``contribution``, ``standard_error``, ``base`` and
            ``prediction``.

        Raises
        ------
        MopError
            If a column is missing, or the background is not known.
        """
        rows = background.table if isinstance(background, Packed) else background
        return self._with_facts(lambda _, predictor: predictor.explained(data, key, rows, options))

    def importance(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return by how much the loss grows if the values of a column are exchanged between rows.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``importance``: ``metric``, ``n_repeats``, ``max_rows``, ``seed``.

        Returns
        -------
        pandas.DataFrame
            A row for each output and column: ``feature``, ``importance``, ``lower``, ``upper`` ...
        """
        return self._of_labelled("importance", data, arguments)

    def metrics(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return how good the predictions of some rows are, beside the best constant answer.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``metrics``: ``by`` (not for packed rows), ``max_slices``.

        Returns
        -------
        pandas.DataFrame
            A row for each output, slice and metric: ``slice``, ``metric``, ``value``, ``baseline`` ...
        """
        return self._of_labelled("metrics", data, arguments)

    def confusion_matrix(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return how many rows have each pair of a true and a predicted class.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``confusion_matrix``: none.

        Returns
        -------
        pandas.DataFrame
            A row for each pair: ``actual``, ``predicted``, ``n_rows``, ``share_of_actual``.
        """
        return self._of_labelled("confusion_matrix", data, arguments)

    def roc_curve(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return the false and the true positive rate at each threshold of a class's probability.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``roc_curve``: ``of_class``, ``max_points``.

        Returns
        -------
        pandas.DataFrame
            A row for each threshold: ``threshold``, ``false_positive_rate``, ``true_positive_rate``, ``auc``.
        """
        return self._of_labelled("roc_curve", data, arguments)

    def precision_recall_curve(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return precision and recall at each threshold of a class's probability.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``precision_recall_curve``: ``of_class``, ``max_points``.

        Returns
        -------
        pandas.DataFrame
            A row for each threshold: ``threshold``, ``precision``, ``recall``, ``average_precision`` ...
        """
        return self._of_labelled("precision_recall_curve", data, arguments)

    def choose_threshold(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return the threshold of a class's probability that costs least, has a precision, or has the highest F1.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``choose_threshold``: ``of_class``, ``cost_false_positive`` and
            ``cost_false_negative``, or ``least_precision``, or ``highest_f1=True``.

        Returns
        -------
        pandas.DataFrame
            A row for each class: ``threshold``, ``precision``, ``recall``, ``cost`` ...
        """
        return self._of_labelled("choose_threshold", data, arguments)

    def reliability(self, data: Any, **arguments: Any) -> "pandas.DataFrame":
        """Return how probable classes are predicted to be, and how often they are true.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table, Packed or str
            Rows with the inputs and the true values, or the name of a table or view with them, packed or not.
        **arguments
            Further arguments of the SQL function ``reliability``: ``of_class``, ``n_bins``, ``calibrated``.

        Returns
        -------
        pandas.DataFrame
            A row for each interval: ``lower``, ``upper``, ``probability``, ``share``, ``calibration_error`` ...
        """
        return self._of_labelled("reliability", data, arguments)

    def partial_dependence(self, data: Any, feature: str, **arguments: Any) -> "pandas.DataFrame":
        """Return the mean prediction of some rows, if all of them had the same value in a column.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or str
            Rows with the inputs, or the name of a table or view with them.
        feature : str
            The column.
        **arguments
            Further arguments of the SQL function ``partial_dependence``: ``of_class``, ``n_values``, ``max_rows``,
            ``seed``.

        Returns
        -------
        pandas.DataFrame
            A row for each output, class and value: ``value``, ``prediction``, ``lower``, ``upper`` ...
        """
        given = {"feature": feature, **arguments}
        return self._with_facts(
            lambda _, predictor: predictor.of_rows("partial_dependence", {"source_table": data}, given)
        )

    def register(
        self,
        name: str,
        note: str | None = None,
        baseline: Packed | str | None = None,
        held_out: Packed | str | None = None,
        calibration: str | None = None,
        explained: Packed | str | None = None,
    ) -> "RegisteredModel":
        """Copy the model into the registry as the next version of a name, and return the handle of the version.

        Parameters
        ----------
        name : str
            Such as ``churn``.
        note : str, optional
        baseline : Packed or str, optional
            A packed table: its predictions are recorded, and `drift` compares later ones with them. Of a `Packed`, the
            validation rows, if it has some.
        held_out : Packed or str, optional
            A table of rows that neither trained nor chose the model, packed or not: `predict_interval`, `predict_set`
            and calibrated probabilities need them. Of a `Packed`, the test rows.
        calibration : str, optional
            ``temperature`` (the default) or ``isotonic``.
        explained : Packed or str, optional
            A table of rows, not packed: the importance of the columns and the partial dependence of the predictions of
            these rows are recorded, and reports show them. Of a `Packed`, the table that was packed.
        """
        if isinstance(baseline, Packed):
            baseline = baseline.validation or baseline.table
        if isinstance(held_out, Packed):
            held_out = held_out.test or held_out.table
        if isinstance(explained, Packed):
            explained = explained.source
        given = {"name": name, "model_table": self.table, "mst_key": self.mst_key, "note": note, "baseline": baseline}
        given |= {"held_out": held_out, "calibration": calibration, "explained": explained}
        version = self._calls.call("register", **given)
        return RegisteredModel(self._calls, f"{name.lower()}@{version}")

    def to_keras(self) -> Any:
        """Build the model in this process, with Keras: same architecture, same bits of all weights; not compiled.

        It takes the encoded rows that networks get, not rows of ordinary columns: ``madlib_mop.transform`` writes them.
        It does not divide: divide the arrays that it gets by the ``normalizing_const`` with which they were packed.

        Returns
        -------
        keras.Model

        Raises
        ------
        Unsupported
            If Keras is not installed, or the architecture has a layer that the library does not accept. It is built
            with ``safe_mode``: no code of an architecture is run.
        """
        if find_spec("keras") is None:
            raise noted(Unsupported("Keras is not installed", hint=hint_of_extra("keras")))
        arch, weights = self._stored()
        from madlib_mop.imports.loading import build_for, load_flat  # imports Keras and its backend
        from madlib_mop.models.architecture import check_architecture

        try:
            model = build_for(check_architecture(arch), weights.n_bytes)
        except MopError as error:
            raise noted(error) from None
        n_needed = 4 * sum(prod(variable.shape) for variable in model.weights)
        if weights.n_bytes != n_needed:
            message = f"the weights of {self} have {weights.n_bytes:,} bytes, and its architecture needs {n_needed:,}"
            raise noted(NotReady(message))
        load_flat(model, weights)
        return model

    def export(self, path: str | Path, format: str = "keras") -> list[Path]:
        """Write the model into a directory: its file, ``signature.json``, ``preprocessor.json`` and ``README.md``.

        The server converts the model, so TensorFlow is not needed here. `load_exported` loads the directory.

        Parameters
        ----------
        path : str or Path
            The directory; created if there is none. Files of an earlier export of the same format are replaced.
        format : str
            ``keras``, ``saved_model``, ``onnx`` or ``safetensors``.

        Returns
        -------
        list of Path
            The files, and the directory of a SavedModel.

        Raises
        ------
        MopError
            If the role may not export the model, the format cannot express it, or a file cannot be written.
        """
        call = call_of("export_parts", {"model_table": self.table, "mst_key": self.mst_key, "format": format})
        form = Format(str(call.values[-1]))
        try:
            check_directory(Path(path))
            return write_directory(Path(path), form, self._exported(form))
        except MopError as error:
            raise noted(error) from None

    def card(self) -> str:
        """Return the model's card as Markdown: its data, metrics, inputs, outputs and lineage."""
        return str(self._calls.call("model_card", model_table=self.table, mst_key=self.mst_key))

    def _of_labelled(self, function: str, data: Any, arguments: dict[str, Any]) -> "pandas.DataFrame":
        """Return what an SQL function returns for rows with their true values."""
        rows = {"source_table": data.table if isinstance(data, Packed) else data}
        return self._with_facts(lambda _, predictor: predictor.of_rows(function, rows, arguments))

    def _exported(self, form: Format) -> bytes:
        given = {"model_table": self.table, "mst_key": self.mst_key, "format": form.value}
        call = call_of("export_parts", given)
        return b"".join(bytes(part) for (part,) in self._calls.sessions.rows_in_turn(call.text, call.values))

    def _stored(self) -> tuple[str, ModelWeights]:
        """Return the architecture, and the weights, which are read part by part if they do not fit into a field."""
        checked = self._calls.sessions.rows(_HAS_DIGEST, [self._relation.sql])
        digest = "weights_digest" if checked else "NULL"  # tables of earlier versions have none
        query = f"SELECT model_arch::pg_catalog.text, model_weights, {digest} FROM {{t}}"
        rows = self._of_key(statement(query, t=self._relation))
        if not rows:
            raise bad_input(f"{self.table} has no model with mst_key {self.mst_key}")
        ((arch, weights, digest),) = rows
        errors = WeightErrors(
            lambda: noted(DataDamaged(f"{self} is damaged: {WEIGHTS_DAMAGED}", hint=WRITE_AGAIN)),
            lambda: noted(NotReady(f"the weights of {self} have changed between two queries", hint="Call again.")),
        )
        if weights is not None:
            return arch, of_field(bytes(weights), digest, errors)
        table = self._relation.with_suffix(PARTS_SUFFIX)
        if not self._calls.sessions.rows(_HAS_PARTS, [self._relation.sql, table.sql]):
            raise noted(NotReady(f"{self} has no weights: model_weights is NULL, and there is no table {table}"))
        parts = self._of_key(statement("SELECT part, pg_catalog.octet_length(data) FROM {t}", t=table))
        query, key = statement("SELECT data FROM {t} WHERE part = %s", t=table), [self.mst_key]
        if self.mst_key is None:
            key = []
        else:
            query += " AND mst_key = %s"

        def read(number: int) -> bytes | None:
            rows = self._calls.sessions.rows(query, [number, *key])
            return bytes(rows[0][0]) if len(rows) == 1 else None

        return arch, of_parts(sorted((int(number), int(n_bytes)) for number, n_bytes in parts), read, digest, errors)

    def _of_key(self, query: str) -> list[tuple[Any, ...]]:
        if self.mst_key is None:
            return self._calls.sessions.rows(query)
        return self._calls.sessions.rows(query.replace("%", "%%") + " WHERE mst_key = %s", [self.mst_key])

    @cached_property
    def _facts(self) -> TargetFacts:
        return read_facts(self._calls.sessions, self._relation)

    def _with_facts(self, ask: Callable[[TargetFacts, ClientPredictor], Any]) -> Any:
        """Return what ``ask(facts, predictor)`` returns."""
        return self._asked(ask, self._facts)

    def _asked(self, ask: Callable[[TargetFacts, ClientPredictor], Any], facts: TargetFacts) -> Any:
        return ask(facts, ClientPredictor(self._calls.sessions, self.table, self.mst_key, facts))


def _predicted(targets: Sequence[Target], predictor: ClientPredictor, data: Any, key: str | None) -> Any:
    """Return what `Model.predict` returns."""
    if len(targets) > 1:
        rows = predictor.answers("predict_json", data, key)
        columns = {t.name: [value_of_json(t, row) for row in rows.values] for t in targets}
        return rows.frame(columns)
    (target,) = targets
    if target.classes is None:
        rows = predictor.answers("predict_number", data, key)
        numbers = [float(value) if isinstance(value, int | float) else value for value in rows.values]
        return rows.series(target.name, numbers)
    rows = predictor.answers("predict_class", data, key)
    return rows.series(target.name, [target.value_of(text) for text in rows.values])


def _probabilities(targets: Sequence[Target], predictor: ClientPredictor, data: Any, key: str | None) -> Any:
    """Return what `Model.predict_proba` returns."""
    classes, texts, n_padding = targets[0].classes, targets[0].texts, targets[0].n_padding
    if len(targets) != 1 or classes is None or texts is None:
        raise noted(
            Unsupported(
                f"predict_proba is for a model with one output of classes; this one predicts"
                f" {', '.join(t.name for t in targets)}",
                hint="model.predict returns the numbers, and for several outputs a column for each.",
            )
        )
    rows = predictor.answers("predict", data, key)
    width = next((len(row) for row in rows.values if row is not None), len(classes))
    none = [np.nan] * width
    given = [none if row is None else row for row in rows.values]
    values = np.asarray(given, np.float32).reshape(len(given), width)
    if width == 1 and len(classes) + n_padding == 2:
        values = np.hstack([1 - values, values])
    is_pandas = rows.native is None or type(rows.native).__module__.split(".")[0] == "pandas"
    names = classes if is_pandas else [str(text) for text in texts]
    return rows.frame({name: values[:, i] for i, name in enumerate(names)})  # outputs of no class come last


def _calibrated(targets: Sequence[Target], predictor: ClientPredictor, data: Any, key: str | None) -> Any:
    """Return calibrated probabilities, as `Model.predict_proba` does."""
    if len(targets) != 1 or targets[0].texts is None:
        raise noted(Unsupported("predict_proba is for a model with one output of classes"))
    rows, (target,) = predictor.answers("predict_json", data, key, ("calibrated", True)), targets
    keys = ["NULL" if text is None else text for text in target.texts or ()]
    found = [{} if row is None else json.loads(row) if isinstance(row, str) else row for row in rows.values]
    values = np.array([[np.nan if row.get(key) is None else row[key] for key in keys] for row in found], np.float64)
    is_pandas = rows.native is None or type(rows.native).__module__.split(".")[0] == "pandas"
    names = target.classes if is_pandas else [str(text) for text in target.texts or ()]
    return rows.frame({name: values[:, i] for i, name in enumerate(names or ())})


class RegisteredModel(Model):
    """A version of a registered model, or the version that an alias stands for at each call.

    Attributes
    ----------
    name, table : str
        Such as ``churn@3`` or ``churn@champion``.
    mst_key : None
    """

    def __init__(self, calls: Calls, name: str):
        self._calls = calls
        self.name = self.table = name
        self.mst_key = None
        self._model, _, self._of = name.partition("@")
        self._known: dict[int, TargetFacts] = {}

    def __repr__(self) -> str:
        return f"RegisteredModel({self.name!r})"

    @property
    def version(self) -> int:
        """The number of the version with which `predict` answers now. Raises MopError if there is none."""
        return int(self._calls.sessions.rows("SELECT madlib_mop.predict_version(%s)", [self.name])[0][0])

    def predict_interval(self, data: Any, key: str | None = None, coverage: float = 0.9) -> Any:
        """Predict the number of each row, and an interval that has the true number with this probability.

        Parameters
        ----------
        data, key
            As for `predict`.
        coverage : float
            The share of rows whose true number is in the interval, if rows are like the held-out ones.

        Returns
        -------
        DataFrame
            The columns ``prediction``, ``lower`` and ``upper``, float64, in the units of the table.

        Raises
        ------
        MopError
            If the version has no held-out rows, or too few for the coverage, or predicts no number.
        """

        def ask(_: TargetFacts, predictor: ClientPredictor) -> Any:
            rows = predictor.answers("predict_interval", data, key, ("coverage", coverage))
            found = [(None, None, None) if row is None else row for row in rows.values]
            values = np.array(found, np.float64).reshape(len(found), 3)
            return rows.frame({name: values[:, i] for i, name in enumerate(("prediction", "lower", "upper"))})

        return self._with_facts(ask)

    def predict_set(self, data: Any, key: str | None = None, coverage: float = 0.9) -> Any:
        """Predict the classes of each row that are likely enough to have the true one among them.

        Parameters
        ----------
        data, key
            As for `predict`.
        coverage : float
            The share of rows whose true class is in the set, if rows are like the held-out ones.

        Returns
        -------
        Series
            A list of classes for each row, the most probable one first; it can be empty.

        Raises
        ------
        MopError
            If the version has no held-out rows, or too few for the coverage, or predicts no class.
        """

        def ask(facts: TargetFacts, predictor: ClientPredictor) -> Any:
            rows, target = predictor.answers("predict_set", data, key, ("coverage", coverage)), facts.targets[0]
            sets = [None if row is None else [target.value_of(text) for text in row] for row in rows.values]
            return rows.series(target.name, sets)

        return self._with_facts(ask)

    def deploy(self, alias: str, **conditions: Any) -> bool:
        """Give an alias this version, if all conditions are met; return whether it has it now.

        Parameters
        ----------
        alias : str
            Such as ``champion``.
        **conditions
            Further arguments of the SQL function ``deploy``: ``test_table``, ``better_than_current``, ``reason`` ...
        """
        test = conditions.get("test_table")
        if isinstance(test, Packed):
            conditions["test_table"] = test.test or test.validation or test.table
        return bool(self._calls.call("deploy", name=self._model, alias=alias, version=self.version, **conditions))

    def rollback(self, alias: str | None = None, steps: int = 1, reason: str | None = None) -> int:
        """Return an alias to the version that it had before, and return the number of this version.

        Parameters
        ----------
        alias : str, optional
            Default: the alias of this handle.
        steps : int
        reason : str, optional
        """
        if alias is None and self._of.isdecimal():
            raise bad_input(f"alias is missing: {self.name} is a version", "rollback('champion')")
        values = [self._model, alias or self._of, steps, reason]
        return int(self._calls.sessions.rows("SELECT madlib_mop.rollback(%s, %s, %s, %s)", values)[0][0])

    def history(self) -> "pandas.DataFrame":
        """Return the changes of the aliases of this model, the newest first: who, when, why, to which version."""
        return read_own(self._calls.sessions, _HISTORY, [self._model])

    def register(self, name: str, *_: Any, **__: Any) -> "RegisteredModel":
        """Raise Unsupported: a version cannot be registered again; `deploy` gives it an alias."""
        raise noted(Unsupported(f"{self.name} is registered already", hint="deploy('champion') gives it an alias."))

    def _stored(self) -> tuple[str, ModelWeights]:
        arch, weights = read_safetensors(self._exported(Format.SAFETENSORS))
        return arch, ModelWeights([len(weights)], lambda _: weights, None, _NEVER)

    def _with_facts(self, ask: Callable[[TargetFacts, ClientPredictor], Any]) -> Any:
        """Return what ``ask`` returns for one version: it is asked again if the alias was moved meanwhile."""
        while True:
            version = self.version
            try:
                found = self._asked(ask, self._facts_of(version))
            except MopError:
                if self.version == version:
                    raise
            else:
                if self._of.isdecimal() or self.version == version:
                    return found

    @property
    def _facts(self) -> TargetFacts:
        return self._facts_of(self.version)  # looked up each time, because the version of an alias changes

    def _facts_of(self, version: int) -> TargetFacts:
        if version not in self._known:
            try:
                rows = self._calls.sessions.rows(_DOCUMENT, [self._model, version])
            except InsufficientPrivilege:
                rows = []
            if not rows:
                raise self._hidden()
            self._known[version] = facts_of(rows[0][0])
        return self._known[version]

    def _hidden(self) -> InsufficientPrivilege:
        hint = f"In SQL: SELECT madlib_mop.predict_class('{self.name}', t.*) FROM customers AS t."
        return noted(InsufficientPrivilege(f"only the owner of {self._model} can use its handle", hint=hint))
