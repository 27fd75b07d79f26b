"""What comes before training: frames to tables, tables to packed tables, and configurations; a base of `Database`."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.client.calling.errors import bad_input
from madlib_mop.client.calling.sessions import execute, rows_of
from madlib_mop.client.calling.statements import call_of
from madlib_mop.client.calls import Calls
from madlib_mop.client.exported.incoming import bytes_of
from madlib_mop.client.frames.columns import Frame, check_names, read_frame, sample_name
from madlib_mop.client.networks import Params, architectures_of, load_models, texts_of
from madlib_mop.client.tables import (
    Configurations,
    Packed,
    create_table,
    drop_tables,
    find_table,
    names_of,
    new_name,
    read_name,
)

_IS_PACKED = """
SELECT 1 WHERE pg_catalog.to_regclass(%s) IS NOT NULL AND pg_catalog.to_regclass(%s) IS NOT NULL
"""


class Preparing(Calls):
    """Packing and configurations."""

    def upload(self, data: object, table: str | None = None) -> str:
        """Copy a data frame of pandas, Polars or Arrow into a new table; return the table's quoted name.

        Parameters
        ----------
        data : DataFrame or pyarrow.Table
            The index of pandas is not copied: call ``reset_index()`` first. Missing values become NULL.
        table : str, optional
            Its name. Default: a new name that begins with ``frame_``.
        """
        return self._copied(read_frame(data), table)

    def pack(
        self,
        data: object,
        target: str | Sequence[str],
        *,
        table: str | None = None,
        packed: str | None = None,
        validation: float | str | None = 0.2,
        seed: int = 1,
        test: float | None = None,
        replace: bool = False,
        **arguments: Any,
    ) -> Packed:
        """Pack rows of ordinary columns for training, with ``pack_columns``.

        Parameters
        ----------
        data : DataFrame, pyarrow.Table or str
            A data frame of pandas, Polars or Arrow, which is copied into a new table, or the name of a table or view.
        target : str or sequence of str
            The columns to predict: texts, booleans and whole numbers with few values as classes, other numbers as
            numbers. ``task='classification'`` or ``task='regression'`` says it instead.
        table : str, optional
            Name of the new table for a data frame. Default: a new name.
        packed : str, optional
            Name of the packed table. Default: a new name.
        validation : float, str or None
            Rows to keep for validation: a share, or a rule such as ``'last 20% by joined'``; None: no rows.
        seed : int
            Of the order of the rows, and of the rows that are held out.
        test : float, optional
            Share of the rows to hold out besides those for validation, in a packed table of their own
            (``Packed.test``), for an evaluation after the choice of a model.
        replace : bool
            Whether an existing packed table ``packed`` is dropped, with all that belongs to it, in the transaction that
            makes the new one.
        **arguments
            Further arguments of ``pack_columns``, such as ``exclude`` and ``columns``.

        Raises
        ------
        MopError
            If the data or the arguments cannot be used. Nothing is left then, except the table of a data frame if
            ``pack_columns`` itself fails after the copy.
        """
        targets = [target] if isinstance(target, str) else list(target)
        check_names(targets, "target")
        if replace and packed is None:
            raise bad_input("replace=True needs packed, the name of the packed table to replace. Received: None")
        given = {"validation": validation, "seed": seed, **arguments}
        given |= {"test": test} if test is not None else {}
        given |= {"replace": True} if replace else {}
        dependent = ", ".join(Identifier(name).sql for name in targets)
        call_of("pack_columns", {"source_table": "x", "output_table": "x", "dependent": dependent, **given})
        source, is_new = self._source_of(data, targets, table)
        output = read_name(packed if packed is not None else new_name(_stem(source)), "packed").sql
        try:
            self.call("pack_columns", source_table=source, output_table=output, dependent=dependent, **given)
        except BaseException:
            if is_new and table is None:
                drop_tables(self.sessions, [read_name(source, "table")])
            raise
        return self._packed(output, source, owns_source=is_new)

    def _source_of(self, data: object, targets: Sequence[str], table: str | None) -> tuple[str, bool]:
        """Return the table of the rows, and whether it is a new one, with the rows of a data frame."""
        if isinstance(data, str):
            if table is not None:
                raise bad_input("table names the new table of a data frame; data is the name of a table already")
            return data, False
        frame = read_frame(data)
        _check_targets(targets, [column.name for column in frame.columns])
        return self._copied(frame, table), True

    def pack_arrays(
        self,
        data: object,
        target: str,
        inputs: str | Sequence[str],
        *,
        validation: object = None,
        table: str | None = None,
        packed: str | None = None,
        seed: int = 1,
        **arguments: Any,
    ) -> Packed:
        """Pack rows whose inputs are arrays of any dimensions, such as images, with ``training_preprocessor_dl``.

        Parameters
        ----------
        data : mapping of str to numpy.ndarray, DataFrame, pyarrow.Table or str
            Arrays by name, all with n_rows as their first dimension, a data frame with columns of arrays, or the name
            of a table.
        target : str
            The column to predict: a class, or an array.
        inputs : str or sequence of str
            The columns of the inputs.
        validation : as data, optional
            Rows for validation, packed in the same way.
        table, packed : str, optional
            Names of the new table and of the packed table. Default: new names.
        seed : int
            Of the order of the rows.
        **arguments
            Further arguments of ``training_preprocessor_dl``, such as ``normalizing_const``.
        """
        names = [inputs] if isinstance(inputs, str) else list(inputs)
        check_names([target, *names], "target and inputs")
        columns = {
            "dependent_varname": Identifier(target).sql,
            "independent_varname": ", ".join(Identifier(name).sql for name in names),
        }
        given = {**columns, "seed": seed, **arguments}
        call_of("training_preprocessor_dl", {"source_table": "x", "output_table": "x", **given})
        parts = [_part(data, "data", [target, *names])]
        if validation is not None:
            parts.append(_part(validation, "validation", [target, *names]))
        with contextlib.ExitStack() as made:  # tables without a name of the caller's are dropped after an error

            def drops(name: Relation | Identifier) -> None:
                made.callback(drop_tables, self.sessions, [name])

            sources = []
            for i, part in enumerate(parts):
                source = part if isinstance(part, str) else self._copied(part, table if i == 0 else None)
                if not isinstance(part, str) and (i > 0 or table is None):
                    drops(read_name(source, "table"))
                sources.append(source)
            output = read_name(packed if packed is not None else new_name(_stem(sources[0])), "packed")
            self.call("training_preprocessor_dl", source_table=sources[0], output_table=output.sql, **given)
            drops(output)
            drops(_with_end(output, "_summary"))
            if validation is not None:
                kept = _with_end(output, "_validation").sql
                self.call(
                    "validation_preprocessor_dl", source_table=sources[1], output_table=kept,
                    training_preprocessor_table=output.sql, **columns,
                )  # fmt: skip
            made.pop_all()
        if validation is not None and not isinstance(parts[1], str):
            drop_tables(self.sessions, [read_name(sources[1], "table")])
        return self._packed(output.sql, sources[0], owns_source=not isinstance(parts[0], str))

    def packed(self, table: str) -> Packed:
        """Return the handle of an existing packed table; ``<table>_validation`` and ``<table>_test`` are the packed
        tables of its validation rows and test rows, if there are any."""
        return self._packed(table, None, owns_source=False)

    def networks(
        self, packed: Packed | str, n_configs: int = 16, *, epochs: int = 10, table: str | None = None, **arguments: Any
    ) -> Configurations:
        """Propose networks and configurations for a packed table, with ``propose_networks``.

        Parameters
        ----------
        packed : Packed or str
        n_configs : int
            Number of configurations; the first one is the most robust.
        epochs : int
            Number of epochs that you will train: learning rates fall until the last one.
        table : str, optional
            Name of the model selection table; that of the architectures ends in ``_networks``. Default: a new name.
        **arguments
            Further arguments of ``propose_networks``, such as ``seed``.
        """
        name = read_name(table if table is not None else new_name("configs"), "table")
        networks = _with_end(name, "_networks")
        given = {"n_configs": n_configs, "num_iterations": epochs, **arguments}
        tables = {"packed_table": table_of(packed, "packed"), "arch_table": networks.sql, "configs_table": name.sql}
        self.call("propose_networks", **tables, **given)
        return self._configurations(name.sql, networks.sql)

    def configurations(
        self,
        models: object,
        compile: Params | Sequence[Params],
        fit: Params | Sequence[Params] = "",
        *,
        table: str | None = None,
        **arguments: Any,
    ) -> Configurations:
        """Write every combination of models, compile parameters and fit parameters as a configuration.

        Parameters
        ----------
        models : Keras model, str or dict, or a sequence of these
            Keras models, or their JSON. Weights are not used: training starts with new ones.
        compile : dict or str, or a sequence of these
            For example ``{"optimizer": "Adam(learning_rate=0.01)", "loss": "mse", "metrics": ["mae"]}``.
        fit : dict or str, or a sequence of these
            For example ``{"batch_size": 32, "epochs": 1}``; epochs within one iteration.
        table : str, optional
            Name of the model selection table; that of the architectures ends in ``_networks``. Default: a new name.
        **arguments
            Further arguments of ``load_model_selection_table``, such as ``object_table``.

        Raises
        ------
        MopError
            Before any statement, if a model or a parameter is none that the library trains.
        """
        architectures = architectures_of(models)
        compiles, fits = texts_of(compile, "compile"), texts_of(fit, "fit")
        name = read_name(table if table is not None else new_name("configs"), "table")
        networks = _with_end(name, "_networks")
        given = {"model_arch_table": networks.sql, "model_selection_table": name.sql, **arguments}
        given |= {"compile_params_list": compiles, "fit_params_list": fits}
        call_of("load_model_selection_table", {"model_id_list": [1], **given})
        with self.sessions.begin() as connection:
            keys = load_models(connection, networks.sql, architectures)
            call = call_of("load_model_selection_table", {"model_id_list": keys, **given})
            execute(connection, call.text, call.values)
        return self._configurations(name.sql, networks.sql)

    def import_model(self, table: str, source: Any, name: str | None = None, description: str | None = None) -> int:
        """Add a model of Keras to a table of architectures, with its weights as start weights; return its ``model_id``.

        Parameters
        ----------
        table : str
            Created if there is none.
        source : str, Path, bytes or keras.Model
            A ``.keras`` file, its content, or a model.
        name, description : str, optional

        Raises
        ------
        MopError
            If the file is none of a Keras model of Keras' own layers. None of its code is run.
        """
        given = {"model_arch_table": table, "file": bytes_of(source), "name": name, "description": description}
        return int(self.call("import_model", **given))

    def import_weights(
        self, table: str, model_id: int, source: Any, *, by_name: bool = False, skip_mismatch: bool = False
    ) -> int:
        """Give an architecture of a table the weights of a file; return the number of layers that got weights.

        Parameters
        ----------
        table : str
        model_id : int
        source : str, Path, bytes or keras.Model
            A ``.keras``, ``.weights.h5``, ``.h5`` or ``.safetensors`` file, its content, or a model.
        by_name : bool
            Whether layers are matched by their names; others keep their weights.
        skip_mismatch : bool
            Whether layers that do not fit are left as they are.

        Raises
        ------
        MopError
            If the file is damaged, has something that is refused, or does not fit.
        """
        given = {"model_arch_table": table, "model_id": model_id, "file": bytes_of(source)}
        return int(self.call("import_weights", **given, by_name=by_name, skip_mismatch=skip_mismatch))

    def _copied(self, frame: Frame, table: str | None) -> str:
        name = read_name(table if table is not None else new_name("frame"), "table")
        with self.sessions.begin() as connection:
            return create_table(self.sessions, connection, name.sql, frame)

    def _packed(self, table: str, source: str | None, owns_source: bool) -> Packed:
        with self.sessions.begin() as connection:
            relation = find_table(connection, table, "packed")
            validation, test = (_packed_beside(connection, relation, suffix) for suffix in ("_validation", "_test"))
            rows = _summary(connection, relation)
            given = find_table(connection, source, "data") if source is not None else None
        return Packed(self, relation, validation, test, given, names_of(rows), owns_source)

    def _configurations(self, table: str, networks: str) -> Configurations:
        with self.sessions.begin() as connection:
            return Configurations(
                self, find_table(connection, table, "table"), find_table(connection, networks, "table")
            )


def _packed_beside(connection: Connection, packed: Relation, suffix: str) -> Relation | None:
    """Return the packed table of this suffix; None if there is none, or another table has the name."""
    beside = packed.with_suffix(suffix)
    found = rows_of(connection, _IS_PACKED, [beside.sql, beside.with_suffix("_summary").sql])
    return beside if found else None


def _summary(connection: Connection, packed: Relation) -> Any:
    """Return ``dependent_varname`` of a packed table's summary."""
    query = statement("SELECT dependent_varname FROM {t}", t=packed.with_suffix("_summary"))
    ((names,),) = rows_of(connection, query)
    return names


def _part(data: object, what: str, names: Sequence[str]) -> Frame | str:
    """Return rows of arrays as a frame, or the name of their table."""
    if isinstance(data, str):
        return data
    if not isinstance(data, Mapping):
        return read_frame(data, what, only=names)
    import pandas as pd

    arrays = {name: np.asarray(array) for name, array in data.items()}
    lengths = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if len(lengths) != 1 or None in lengths:
        raise bad_input(f"{what} must be arrays with the same number of rows. Received: {sorted(map(str, lengths))}")
    columns = {name: list(array) if array.ndim > 1 else array for name, array in arrays.items()}
    return read_frame(pd.DataFrame(columns), what, only=names)


def _check_targets(targets: Sequence[str], names: Sequence[str]) -> None:
    for name in targets:
        if name not in names:
            raise bad_input(f"the frame has no column {name!r} (target)", f"It has {', '.join(names[:20])}.")


def _stem(source: str) -> str:
    return f"{sample_name(source.rpartition('.')[2])}_packed"


def _with_end(name: Relation | Identifier, end: str) -> Relation | Identifier:
    return name.with_suffix(end) if isinstance(name, Relation) else Identifier(name.name + end)


def table_of(handle: Packed | Configurations | str, what: str) -> str:
    return handle.table if isinstance(handle, Packed | Configurations) else read_name(handle, what).sql
