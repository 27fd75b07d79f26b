"""Helpers of the tests of the preprocessors: calls, packed tables as tensors, and errors as tuples."""

from dataclasses import dataclass

import numpy as np

from madlib_mop.packing.buffers import unpack
from tests.helpers.sessions import Session


@dataclass(frozen=True)
class Buffer:
    """One row of a packed table, unpacked."""

    segment: int
    buffer_id: int
    tensors: dict[str, np.ndarray]


class Caller(Session):
    """One session of a user who packs tables."""

    def segments(self, n: int | str) -> None:
        """Set the number of segments."""
        self.rows("SELECT set_config('madlib_mop.segments', %s, false)", str(n))

    def table(self, name: str, definition: str, rows: list[tuple]) -> str:
        """Create a table with an ``id`` and these columns, filled in the order of ``rows``."""
        self.rows(f"CREATE TABLE {name} (id serial, {definition})")
        with self.connection.cursor() as cursor:
            for row in rows:
                slots = ", ".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO {name} VALUES (DEFAULT, {slots})", row)
        return name

    def train(self, source: str, output: str, y: str | None = "y", x: str | None = "x", **arguments) -> str:
        """Call training_preprocessor_dl with named arguments; return the output's name."""
        names = ["source_table", "output_table", "dependent_varname", "independent_varname"]
        return self._call("training_preprocessor_dl", dict(zip(names, (source, output, y, x), strict=True)), arguments)

    def validate(self, source: str, output: str, training: str, y: str = "y", x: str = "x", **arguments) -> str:
        """Call validation_preprocessor_dl with named arguments; return the output's name."""
        names = ["source_table", "output_table", "dependent_varname", "independent_varname"]
        given = dict(zip(names, (source, output, y, x), strict=True)) | {"training_preprocessor_table": training}
        return self._call("validation_preprocessor_dl", given, arguments)

    def _call(self, function, given, arguments):
        casts = {"num_classes": "::integer[]", "image_shape": "::integer[]", "normalizing_const": "::real"}
        values = given | arguments
        slots = ", ".join(f"{name} => %s{casts.get(name, '')}" for name in values)
        self.rows(f"SELECT madlib.{function}({slots})", *values.values())
        return given["output_table"]

    def buffers(self, table: str, *columns: str) -> list[Buffer]:
        """Read a packed table in the order of its buffers."""
        items = ", ".join(f'"{column}", "{column}_shape"' for column in columns)
        found = []
        for segment, buffer_id, *values in self.rows(
            f"SELECT __dist_key__, buffer_id, {items} FROM {table} ORDER BY buffer_id"
        ):
            pairs = zip(columns, values[::2], values[1::2], strict=True)
            found.append(Buffer(segment, buffer_id, {name: unpack(data, shape) for name, data, shape in pairs}))
        return found

    def tensor(self, table: str, column: str) -> np.ndarray:
        """Read one column of a packed table, all rows in the order of its buffers."""
        return np.concatenate([buffer.tensors[column] for buffer in self.buffers(table, column)])

    def summary(self, table: str) -> dict:
        """Read the one row of a packed table's summary."""
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}_summary")
            (row,) = cursor.fetchall()
            return dict(zip([column.name for column in cursor.description], row, strict=True))
