"""The handle of a database: what people call first. `connect` makes it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mop_backend.registered_names import is_registered, with_newest
from sqlalchemy import Engine

from madlib_mop.catalog.facts.now import RunLine, read_runs
from madlib_mop.catalog.names import Identifier
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.sessions import ClientSessions, check_settings, make_engine
from madlib_mop.client.calling.statements import arguments_of, call_of
from madlib_mop.client.calls import read_own
from madlib_mop.client.exported.incoming import bytes_of
from madlib_mop.client.frames.columns import check_names
from madlib_mop.client.jobs import Job
from madlib_mop.client.models import Model, RegisteredModel
from madlib_mop.client.preparing import Preparing, table_of
from madlib_mop.client.progress import Progress
from madlib_mop.client.runs import Run, train
from madlib_mop.client.tables import Configurations, Packed, drop_tables, find_table, new_name, read_name
from madlib_mop.errors import NotReady, mst_key_with_name

if TYPE_CHECKING:
    import pandas

#: The variable with the default DSN, as for the command line.
ENVIRONMENT = "MADLIB_MOP_DSN"
_FIT = "madlib_keras_fit_multiple_model"
_IDENTITY = """
SELECT pg_catalog.current_database(), current_user,
       (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'madlib_mop')
"""


def connect(dsn: str | Engine | None = None, *, settings: Mapping[str, object] | None = None) -> "Database":
    """Return the handle of a database that has the extension.

    Parameters
    ----------
    dsn : str or sqlalchemy.Engine, optional
        A URI or keywords of libpq, such as ``postgresql://analyst@db.example.org/mydb``. PGHOST and the other variables
        of libpq, and ``~/.pgpass``, supply what is missing. Or a URL of SQLAlchemy, such as
        ``postgresql+psycopg2://...``, or an engine, which stays open when the handle is closed. Default: the value of
        the variable MADLIB_MOP_DSN.
    settings : mapping, optional
        Settings of schema ``madlib_mop`` for all calls, such as ``{"segments": 2}``.

    Raises
    ------
    NotReady
        If the login fails, or the database does not have the extension.
    InvalidParameter
        If the DSN or a setting cannot be read.

    Examples
    --------
    >>> with connect("dbname=mydb") as db:  # doctest: +SKIP
    ...     db.runs()
    """
    if dsn is None:
        dsn = os.environ.get(ENVIRONMENT, "")
    if not isinstance(dsn, str | Engine):
        raise bad_input(
            f"dsn must be a text or an engine of SQLAlchemy. Received: {type(dsn).__name__}",
            "An async engine cannot be used. run.wait_async() and run.follow_async() are for async programs.",
        )
    checked = check_settings(settings)
    is_own = isinstance(dsn, str)
    engine = make_engine(dsn) if isinstance(dsn, str) else dsn
    database = Database(ClientSessions(engine, checked), is_own)
    try:
        database.check()
    except BaseException:
        database.close()
        raise
    return database


@dataclass(frozen=True)
class Learned:
    """What `Database.learn` returns.

    Attributes
    ----------
    model : RegisteredModel
        The version that was registered.
    summary : pandas.DataFrame
        Indexed by ``item``, with the columns ``value``, ``baseline`` and ``note``: the quality on the rows that were
        held out, the run, and the statements that repeat it.
    """

    model: RegisteredModel
    summary: "pandas.DataFrame"


class Database(Preparing):
    """A database with the extension; `connect` returns it. Threads may share it.

    Each call is a transaction of its own, so training sees what packing has written. A handle opens sessions when it
    needs them.

    Parameters
    ----------
    sessions : ClientSessions
    is_own : bool
        Whether `close` ends all sessions of the engine.
    """

    def __init__(self, sessions: ClientSessions, is_own: bool = False):
        super().__init__(sessions)
        self._is_own = is_own
        self._label = "not connected"

    def __repr__(self) -> str:
        return f"Database({self._label})"

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> "Database":
        return self  # sklearn.base.clone copies the parameters of an estimator: a handle is shared

    def __reduce__(self) -> Any:
        raise TypeError("a Database has sessions and cannot be pickled: call connect() in each process")

    def check(self) -> None:
        """Log in, and raise NotReady if the database does not have the extension."""
        ((name, role, version),) = self.sessions.rows(_IDENTITY)
        if version is None:
            hint = "A superuser runs there: CREATE EXTENSION madlib_mop CASCADE."
            raise noted(NotReady(f"database {name!r} does not have the extension madlib_mop", hint=hint))
        self._label = f"{name!r} as {role!r}, madlib_mop {version}"

    def close(self) -> None:
        """Close the sessions. An engine that was passed to `connect` stays open."""
        if self._is_own:
            self.sessions.engine.dispose()

    def learn(self, data: object, target: str, *, table: str | None = None, **arguments: Any) -> Learned:
        """Train networks that predict a column, and register the best, with ``learn``: one call for all.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or str
            A data frame of pandas, Polars or Arrow, which is copied into a new table, or the name of a table or view.
        target : str
            The column to predict.
        table : str, optional
            Name of the new table for a data frame. Default: a new name. The table stays.
        **arguments
            Further arguments of the SQL function, such as ``name``, ``budget`` and ``exclude``. With a data frame
            without ``table``, ``name`` is needed.

        Raises
        ------
        MopError
            If the data or the arguments cannot be used.
        """
        check_names([target], "target")
        if not isinstance(data, str) and table is None and arguments.get("name") is None:
            raise bad_input("learn needs name, the name of the model, for a data frame. Received: None")
        given = {"dependent": Identifier(target).sql, **arguments}
        call_of("learn", {"source_table": "x", **given})
        source, is_new = self._source_of(data, [target], table)
        try:
            summary = self.call("learn", source_table=source, **given).set_index("item")
        except BaseException:
            if is_new and table is None:
                drop_tables(self.sessions, [read_name(source, "table")])
            raise
        return Learned(RegisteredModel(self, str(summary.loc["model", "value"])), summary)

    def score(self, model: Model | str, data: object, output: str | None = None, **arguments: Any) -> str:
        """Predict all rows of a table in the database, and write a new table, with ``score``; return its quoted name.

        Parameters
        ----------
        model : Model or str
            A handle, or the name of a registered model, such as ``churn@champion``, or ``churn`` for ``churn@newest``.
        data : DataFrame, pyarrow.Table or str
            A data frame of pandas, Polars or Arrow, or the name of a table or view.
        output : str, optional
            Name of the new table. Default: a new name.
        **arguments
            Further arguments of the SQL function: ``keep``, ``of_class``, ``calibrated``, ``mst_key``, ``replace``,
            ``independent_varname``. A data frame has no primary key, so all of its columns are copied by default.

        Raises
        ------
        MopError
            If the rows, the model or the arguments cannot be used.
        """
        if isinstance(model, RegisteredModel):
            given = {"model_table": model.name, **arguments}
        elif isinstance(model, Model):
            given = {"model_table": model.table, "mst_key": model.mst_key, **arguments}
        else:
            given = {"model_table": model, **arguments}
        name = read_name(output if output is not None else new_name("scored"), "output").sql
        call_of("score", {"source_table": "x", "output_table": name, **given})
        source, is_new = self._source_of(data, [], None)
        try:
            self.call("score", source_table=source, output_table=name, **given)
        finally:
            if is_new:
                drop_tables(self.sessions, [read_name(source, "table")])
        return name

    def fit(
        self,
        packed: Packed | str,
        configs: Configurations | str,
        epochs: int = 10,
        *,
        models: str | None = None,
        wait: bool = True,
        progress: Progress = True,
        **arguments: Any,
    ) -> Run:
        """Train all configurations, with ``madlib_keras_fit_multiple_model``.

        Parameters
        ----------
        packed : Packed or str
        configs : Configurations or str
            Of `networks` or `configurations`, or the name of a model selection table.
        epochs : int
            Number of iterations; in each, every model trains on all rows.
        models : str, optional
            Name of the output table. Default: a new name.
        wait : bool
            True: return when training has ended. An interrupt (Ctrl-C) stops the run, and ``run.resume()`` continues
            it. False: return at once; training goes on in a thread of this process. If the process ends, the run is
            interrupted. A job (`submit`) does not need the process.
        progress : bool or callable
            Whether progress is shown: in a notebook as a bar, elsewhere as lines on stderr. Or a function that gets
            a `RunStatus` (madlib_mop.catalog.facts.now) after each change, in the calling thread.
        **arguments
            Further arguments of the SQL function, such as ``seed``, ``early_stopping`` and ``max_seconds``. The
            validation table is that of ``packed``, and metrics are computed after each epoch, unless given.

        Raises
        ------
        MopError
            If the call fails; the run is kept, if it had begun.
        """
        call = call_of(_FIT, self._fit_arguments(packed, configs, epochs, models, arguments))
        return train(self, call, None, wait, progress)

    def explain_fit(
        self, packed: Packed | str, configs: Configurations | str, epochs: int = 10, **arguments: Any
    ) -> "pandas.DataFrame":
        """Return what `fit` would cost with these arguments: visits, time, memory, disk, and what limits it.

        Nothing is trained or changed. For other functions, pass their arguments to the SQL function: ``db.call(
        "explain_fit", function_name="madlib_keras_automl", arguments={...})``.

        Parameters
        ----------
        packed, configs, epochs, **arguments
            As for `fit`.

        Returns
        -------
        pandas.DataFrame
            Indexed by ``item``, with the columns ``value``, ``low``, ``high``, ``unit`` and ``note``.

        Raises
        ------
        MopError
            What `fit` would raise before it begins.
        """
        given = arguments_of(_FIT, self._fit_arguments(packed, configs, epochs, None, arguments))
        found: pandas.DataFrame = self.call("explain_fit", function_name=_FIT, arguments=given)
        return found.set_index("item")

    def submit(
        self,
        packed: Packed | str,
        configs: Configurations | str,
        epochs: int = 10,
        *,
        models: str | None = None,
        job: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Job:
        """Submit the training as a job, which a job worker (``madlib-mop work``) runs without this process.

        Parameters
        ----------
        packed, configs, epochs, models, **arguments
            As for `fit`.
        job : mapping, optional
            Further arguments of ``submit``, such as ``{"priority": 10, "time_limit": "2 hours"}``.
        """
        given = arguments_of(_FIT, self._fit_arguments(packed, configs, epochs, models, arguments))
        extra = dict(job or {})
        if taken := extra.keys() & {"statement", "arguments"}:
            raise bad_input(f"job has {min(taken)!r}, which submit() itself passes")
        return Job(self, int(self.call("submit", statement=_FIT, arguments=given, **extra)))

    def job(self, job_id: int) -> Job:
        """Return the handle of a job."""
        return Job(self, job_id)

    def run(self, run_id: int) -> Run:
        """Return the handle of a run.

        Raises
        ------
        InvalidParameter
            If there is no such run, or the role may not see it.
        """
        run = Run(self, run_id)
        run.progress  # noqa: B018 -- raises
        return run

    def runs(self, limit: int = 100) -> "pandas.DataFrame":
        """Return the newest runs that the role may see: one row for each, indexed by ``run_id``."""
        import pandas as pd

        names = list(RunLine.__slots__)
        lines = read_runs(self.sessions.rows, limit)
        rows = [tuple(getattr(line, name) for name in names) for line in lines]
        return pd.DataFrame(rows, columns=names).set_index("run_id")

    def model(self, table: str, mst_key: int | None = None) -> Model:
        """Return the handle of a trained model of an output table.

        Parameters
        ----------
        table : str
            Output table of a function that trains, or of ``make_ensemble``. Or a registered model, as for `registered`.
        mst_key : int, optional
            The model; None for a table of ``madlib_keras_fit``, which has one, and for a registered model.
        """
        if is_registered(table):
            if mst_key is not None:
                raise noted(mst_key_with_name(table, mst_key))
            return RegisteredModel(self, table.strip().lower())  # a role that may only export need not predict
        with self.sessions.begin() as connection:
            return Model(self, find_table(connection, table, "table"), mst_key)

    def registered(self, name: str) -> RegisteredModel:
        """Return the handle of a registered model: of a version, or of what an alias stands for at each call.

        Parameters
        ----------
        name : str
            Such as ``churn@champion`` or ``churn@3``; ``churn`` alone is ``churn@newest``, as in SQL.

        Raises
        ------
        MopError
            If there is none that the role may use.
        """
        model = RegisteredModel(self, with_newest(name.strip().lower(), None))
        model.version  # noqa: B018 -- raises
        return model

    def import_version(self, name: str, source: Any, **arguments: Any) -> RegisteredModel:
        """Store a model of Keras in the registry as a new version, and return the handle of the version.

        Parameters
        ----------
        name : str
            Such as ``churn``.
        source : str, Path, bytes or keras.Model
            A ``.keras`` file, its content, or a model. A file that `Model.export` wrote keeps its classes, its
            normalizing constant and its preprocessor.
        **arguments
            Further arguments of the SQL function ``import_version``: ``class_values``, ``normalizing_const``,
            ``compile_params``, ``note``.

        Raises
        ------
        MopError
            If the file is none of a Keras model of Keras' own layers, or contradicts itself. None of its code is run.
        """
        version = self.call("import_version", name=name, file=bytes_of(source), **arguments)
        return RegisteredModel(self, f"{name.lower()}@{version}")

    def registry(self) -> "pandas.DataFrame":
        """Return the versions of all registered models that the role may use: a row for each."""
        return read_own(self.sessions, "SELECT * FROM madlib_mop.registry ORDER BY name, version")

    def _fit_arguments(
        self,
        packed: Packed | str,
        configs: Configurations | str,
        epochs: int,
        models: str | None,
        arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        given: dict[str, Any] = {
            "source_table": table_of(packed, "packed"),
            "model_output_table": read_name(models if models is not None else new_name("models"), "models").sql,
            "model_selection_table": table_of(configs, "configs"),
            "num_iterations": epochs,
        }
        if isinstance(packed, Packed) and packed.validation is not None:
            given["validation_table"] = packed.validation
        return {**given, **arguments}
