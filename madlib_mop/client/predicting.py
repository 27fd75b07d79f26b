"""Predicts rows in the database: of data frames, of tables, and arrays; called by `models`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection

from madlib_mop.catalog.names import Identifier, statement
from madlib_mop.client.calling.errors import bad_input, noted
from madlib_mop.client.calling.sessions import ClientSessions, execute, own_path, rows_of
from madlib_mop.client.calling.statements import call_of, scalar
from madlib_mop.client.frames.columns import Frame, FrameColumn, read_frame
from madlib_mop.client.frames.results import frame_of, like, pandas_of, series_like
from madlib_mop.client.frames.values import write_array, write_integer
from madlib_mop.client.tables import create_table, find_table, new_name
from madlib_mop.client.targets import TargetFacts
from madlib_mop.errors import Unsupported

if TYPE_CHECKING:
    import pandas

_ROW = "__row__"
#: A row of ``t`` as an argument. A lone ``t`` would be the column of that name, if there is one.
_WHOLE_ROW = "t.*"
#: Numbers of one call of predict_rows.
_CALL_NUMBERS = 1_000_000
#: For models of arrays: the function that takes the place of one for rows.
_FORMS_OF_ARRAYS = {"predict_number": "predict", "predict_json": "predict_named"}
_FORMS_OF_ARRAYS |= {name: name for name in ("predict", "predict_class")}
#: Arguments of explain_prediction that `Model.explain` takes, besides the background; and the columns that it returns.
_OPTIONS = ("of_class", "n_background", "n_permutations", "seed")
_EXPLAINED = ("output", "class", "feature", "contribution", "standard_error", "base", "prediction")


@dataclass(frozen=True, slots=True)
class Answers:
    """Predictions of some rows, and what they belong to: a frame, the keys of a table, or neither."""

    native: Any
    keys: list[Any] | None
    values: list[Any]
    key_name: str | None = None

    def series(self, name: str, values: Sequence[Any]) -> Any:
        """Return values as a series."""
        if self.native is not None:
            return series_like(self.native, name, values)
        import pandas as pd

        return pd.Series(list(values), index=self._index(), name=name)

    def frame(self, columns: dict[Any, Any]) -> Any:
        """Return columns as a frame."""
        if self.native is not None:
            return like(self.native, columns)
        return pandas_of(columns, self._index())

    def _index(self) -> "pandas.Index":
        import pandas as pd

        return pd.RangeIndex(len(self.values)) if self.keys is None else pd.Index(self.keys, name=self.key_name)


class ClientPredictor:
    """Predicts with one model.

    Parameters
    ----------
    sessions : ClientSessions
    table : str
        The quoted name of the table of models.
    mst_key : int or None
    facts : TargetFacts
    """

    def __init__(self, sessions: ClientSessions, table: str, mst_key: int | None, facts: TargetFacts):
        self._sessions, self._table, self._mst_key, self._facts = sessions, table, mst_key, facts

    def answers(self, function: str, data: Any, key: str | None, option: tuple[str, Any] | None = None) -> "Answers":
        """Return what a function predicts for each row.

        Parameters
        ----------
        function : str
        data, key
            As for `Model.predict`.
        option : tuple of (str, object), optional
            Name and value of a further argument, of a function that takes the name of a registered model.
        """
        types = self._facts.types
        if isinstance(data, str):
            return self._of_table(function, data, key, types is None, option)
        if key is not None:
            raise bad_input("key is for the name of a table: rows of a frame have the frame's order")
        if types is None:
            if option is not None:
                raise noted(Unsupported(f"{function} with {option[0]} takes the name of a table with arrays"))
            return self._of_arrays(function, data)
        frame = read_frame(data, only=list(types))
        return Answers(frame.native, None, self._of_frame(function, frame, types, option))

    def drift(self, data: Any, baseline: Any, arguments: dict[str, Any]) -> "pandas.DataFrame":
        """Return what the SQL function drift returns for a frame or the name of a table.

        Parameters
        ----------
        data, baseline : DataFrame, pyarrow.Table, str or None
            A frame is copied into a temporary table.
        arguments : dict
            Further arguments of the function.
        """
        if self._facts.types is None:
            arguments = {"independent_varname": ", ".join(Identifier(n).sql for n in self._facts.inputs), **arguments}
        return self.of_rows("drift", {"source_table": data, "baseline": baseline}, arguments)

    def of_rows(self, function: str, rows: dict[str, Any], arguments: dict[str, Any]) -> "pandas.DataFrame":
        """Return what an SQL function returns for some rows.

        Parameters
        ----------
        function : str
            Such as ``drift``.
        rows : dict
            By argument: a frame, which is copied into a temporary table, the name of a table, or None.
        arguments : dict
            Further arguments.
        """
        given = {"model_table": self._table, "mst_key": self._mst_key, **arguments}
        call_of(function, {**given, "source_table": "x"})  # a wrong argument is an error before anything is copied
        with self._sessions.begin() as connection:
            for what, data in rows.items():
                if data is not None:
                    given[what] = data if isinstance(data, str) else self._sent(connection, data, what)
            call = call_of(function, given)
            return frame_of(execute(connection, call.text, call.values))

    def explained(self, data: Any, key: str | None, background: Any, options: dict[str, Any]) -> "pandas.DataFrame":
        """Return the explanations of the rows of a frame or a table, as `Model.explain` does."""
        types = self._facts.types
        if types is None:
            raise bad_input("explain is for models of ordinary columns; this one was trained on arrays")
        for name in options:
            if name not in _OPTIONS:
                raise bad_input(f"explain has no argument {name!r}", f"Its arguments are {', '.join(_OPTIONS)}.")
        if isinstance(data, str) and key is None:
            raise bad_input("key is missing: the column of the table that identifies a row", "explain('t', key='id')")
        if not isinstance(data, str) and key is not None:
            raise bad_input("key is for the name of a table: rows of a frame have numbers, from 0")
        slots = "".join(f", {name} => %s" for name in options)
        call = f"madlib_mop.explain_prediction(%s, {_WHOLE_ROW}, %s{slots}, background => %s) WITH ORDINALITY"
        values = [self._table, self._mst_key, *map(scalar, options.values())]
        with self._sessions.begin() as connection:
            if isinstance(data, str):
                rows, row = find_table(connection, data, "data").sql, Identifier(key or "").sql
            else:
                rows, row = self._numbered(connection, read_frame(data, only=list(types)), types), _ROW
            if background is not None and not isinstance(background, str):
                background = self._sent(connection, background, "background")
            shown = Identifier(key or "row").sql
            found = ", ".join(f"e.{name}" for name in _EXPLAINED)
            query = f"SELECT t.{row} AS {shown}, {found} FROM {rows} AS t, ".replace("%", "%%")
            query += f"{call} AS e ORDER BY t.{row.replace('%', '%%')}, e.ordinality"
            with own_path(connection):  # the name of the background; functions of a view may depend on it
                return frame_of(execute(connection, query, [*values, background]))

    def _numbered(self, connection: Connection, frame: Frame, types: dict[str, str]) -> str:
        """Copy a frame with the numbers of its rows into a temporary table; return its name."""
        columns = (_row_numbers(frame), *(c.as_trained(types[c.name]) for c in frame.columns))
        sent = Frame(columns, frame.n_rows, frame.native)
        name = Identifier(new_name("predicted")).sql
        return create_table(self._sessions, connection, name, sent, temporary=True)

    def _sent(self, connection: Connection, data: Any, what: str) -> str:
        """Copy a frame into a temporary table; return its name. Targets are copied if the frame has them."""
        types = self._facts.types
        if types is None:
            frame = read_frame(data, what, only=self._facts.inputs)
        else:
            present = _column_names(data)
            targets = [target.name for target in self._facts.targets if target.name in present]
            frame = read_frame(data, what, only=[*types, *targets])
            columns = [c.as_trained(types[c.name]) if c.name in types else c for c in frame.columns]
            frame = Frame(tuple(columns), frame.n_rows, frame.native)
        return create_table(self._sessions, connection, Identifier(new_name("drift")).sql, frame, temporary=True)

    def _call(self, function: str, row: str, option: tuple[str, Any] | None) -> tuple[str, list[Any]]:
        """Return the call of a function for a row ``t``, and its values."""
        if option is None:
            return f"madlib_mop.{function}(%s, %s, {row})", [self._table, self._mst_key]
        name, value = option
        call = f"madlib_mop.{function}(%s, {row}, {name} => %s)"
        if function == "predict_interval":  # a row is a text in the client, and an array is none
            call = f"(SELECT ARRAY[i.prediction, i.lower, i.upper] FROM {call} AS i)"
        return call, [self._table, value]

    def _of_frame(
        self, function: str, frame: Frame, types: dict[str, str], option: tuple[str, Any] | None
    ) -> list[Any]:
        call, values = self._call(function, _WHOLE_ROW, option)
        with self._sessions.begin() as connection:
            rows = self._numbered(connection, frame, types)
            found = rows_of(connection, f"SELECT t.{_ROW}, {call} FROM {rows} AS t", values)
        return [value for _, value in sorted(found, key=lambda row: int(row[0]))]

    def _of_table(
        self, function: str, table: str, key: str | None, takes_arrays: bool, option: tuple[str, Any] | None
    ) -> "Answers":
        if key is None:
            raise bad_input("key is missing: the column of the table that identifies a row", "predict('t', key='id')")
        row, form = _WHOLE_ROW, function
        if takes_arrays:
            row = statement("t.{c}", c=Identifier(self._one_input()))
            form = _FORMS_OF_ARRAYS.get(function, function)
        call, values = self._call(form, row.replace("%", "%%"), option)
        with self._sessions.begin() as connection:
            source = find_table(connection, table, "data")
            names = statement("SELECT t.{k}", k=Identifier(key)).replace("%", "%%")
            query = f"{names}, {call} FROM {source.sql.replace('%', '%%')} AS t"
            with own_path(connection):  # functions of a view may depend on it
                found = rows_of(connection, query, values)
        return Answers(None, [row[0] for row in found], [_first(function, row[1]) for row in found], key)

    def _of_arrays(self, function: str, data: Any) -> "Answers":
        """Predict rows of one input of arrays, many in one call."""
        name, native = self._one_input(), None
        if isinstance(data, np.ndarray | list | tuple):
            rows: npt.NDArray[np.float32] = _numbers(data)
        else:
            native = read_frame(data).native
            import narwhals as nw

            frame = nw.from_native(native, eager_only=True)
            if name not in frame.columns:
                raise bad_input(f"the frame has no column {name!r}, which the model needs", "It is a column of arrays.")
            rows = _numbers(frame[name].to_list())
        if function == "predict_json":
            raise noted(Unsupported("a model of arrays with several outputs predicts tables only",
                                    hint="db.call('madlib_keras_predict', ...) writes a table."))  # fmt: skip
        form = {"predict_class": "predict_class_rows"}.get(function, "predict_rows")
        step = max(1, min(10_000, _CALL_NUMBERS // max(1, rows[0].size)))
        call = f"SELECT n, p FROM madlib_mop.{form}(%s, %s, CAST(%s AS real[])) WITH ORDINALITY AS r(p, n)"
        values: list[Any] = []
        with self._sessions.begin() as connection:
            for start in range(0, len(rows), step):
                text = write_array(rows[start : start + step])
                found = rows_of(connection, call, [self._table, self._mst_key, text])
                values += [_first(function, value) for _, value in sorted(found, key=lambda row: int(row[0]))]
        return Answers(native, None, values)

    def _one_input(self) -> str:
        inputs = self._facts.inputs
        if len(inputs) != 1:
            raise noted(
                Unsupported(
                    f"the model has {len(inputs)} inputs of arrays: {', '.join(inputs)}",
                    hint="db.call('madlib_keras_predict', ...) predicts tables with several columns of arrays.",
                )
            )
        return inputs[0]


def _column_names(data: Any) -> list[str]:
    """Return the names of a frame's columns; [] if it is no frame."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    return list(frame.columns) if isinstance(frame, nw.DataFrame) else []


def _row_numbers(frame: Frame) -> FrameColumn:
    return _RowNumbers(_ROW, "bigint", frame.columns[0].series, write_integer, False)


class _RowNumbers(FrameColumn):
    """The numbers of the rows, from 0."""

    def texts(self, start: int, stop: int) -> list[str]:
        return [str(row) for row in range(start, stop)]


def _numbers(data: Any) -> npt.NDArray[np.float32]:
    try:
        rows = np.asarray(data, np.float32)
    except (ValueError, TypeError):
        raise bad_input("the rows must be arrays of numbers, all of one shape") from None
    if rows.ndim < 2 or not rows.size:
        raise bad_input(f"the rows must be an array of shape (n_rows, ...). Received: shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise bad_input("the rows have values that are NaN or infinite")
    return rows


def _first(function: str, value: Any) -> Any:
    """Return the number of a regression, which the functions of arrays return as an array of one element."""
    is_one = function == "predict_number" and isinstance(value, list) and len(value) == 1
    return value[0] if is_one else value
