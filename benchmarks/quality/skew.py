"""No skew: the rows of a table have the same bits in packing, `transform`, exported models and single predictions."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from madlib_mop.client.exported.model import load_exported
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.driver.columns.transforming import output_columns
from madlib_mop.packing.buffers import unpack

N_ALONE = 500
_TRANSFORM = "SELECT madlib_mop.transform('packed', 'source', 'encoded', keep => 'row_id')"


def check_skew(cursor, models: str, mst_key: int, source) -> str:
    """Compare, and return a sentence about it.

    The table ``told`` has the predictions of the table ``test`` by this model. ``source`` is the table that was packed,
    as a DataFrame. Raises AssertionError if bits differ.
    """
    packed = _packed(cursor)
    n_rows = sum(packed.values())
    for where, rows in (("transform", _transformed(cursor)), ("an export", _exported(cursor, models, mst_key, source))):
        n_different = n_rows - sum((packed & rows).values())
        assert n_rows and not n_different, f"{n_different} of {n_rows} packed rows differ from those of {where}"
    n_alone = _check_alone(cursor, models, mst_key)
    return f"no skew: {n_rows} rows in packing, transform and an export, {n_alone} alone and in a table: the same bits"


def _packed(cursor) -> Counter:
    """Return how often each row is in the packed tables, as the bytes of its input tensors."""
    rows: Counter = Counter()
    tensors = _preprocessor(cursor).tensors
    columns = ", ".join(f'"{tensor.name}", "{tensor.name}_shape"' for tensor in tensors)
    for table in ("packed", "packed_validation"):
        cursor.execute(f"SELECT {columns} FROM {table}")
        for values in cursor.fetchall():
            arrays = [unpack(data, shape) for data, shape in zip(values[::2], values[1::2], strict=True)]
            rows.update(_bytes_of(arrays))
    return rows


def _exported(cursor, models: str, mst_key: int, source) -> Counter:
    """Return the same of a DataFrame that an exported model encodes."""
    cursor.execute(f"SELECT madlib_mop.export_model('{models}', {mst_key}, 'keras')")
    ((exported,),) = cursor.fetchall()
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        file.write_bytes(exported)
        return Counter(_bytes_of(load_exported(file).encode(source)))


def _bytes_of(arrays: Sequence[np.ndarray]) -> list[bytes]:
    """Return the bytes of each row of several tensors."""
    return [b"".join(row.tobytes() for row in of_row) for of_row in zip(*arrays, strict=True)]


def _transformed(cursor) -> Counter:
    """Return the same of the output of `transform`."""
    preprocessor = _preprocessor(cursor)
    cursor.execute(_TRANSFORM)
    columns = [column for column in output_columns(preprocessor, ["row_id"], True) if not column.is_target]
    names = ", ".join('"' + column.name.replace('"', '""') + '"' for column in columns)
    cursor.execute(f"SELECT {names} FROM encoded".replace("%", "%%"), ())
    rows: Counter = Counter()
    for values in cursor:
        tensors: dict[str, list] = {tensor.name: [] for tensor in preprocessor.tensors}
        for column, value in zip(columns, values, strict=True):
            tensors[column.tensor] += value if column.unit is None else [value]
        rows[b"".join(np.array(tensors[t.name], t.dtype).tobytes() for t in preprocessor.tensors)] += 1
    return rows


def _check_alone(cursor, models: str, mst_key: int) -> int:
    """Compare the predictions of some rows, each in a statement of its own, with those of all; return their number."""
    cursor.execute(f"SELECT row_id, array_agg(prob ORDER BY prob) FROM told GROUP BY row_id LIMIT {N_ALONE}")
    together = dict(cursor.fetchall())
    for row_id, expected in together.items():
        cursor.execute(
            f"SELECT madlib_mop.predict('{models}', {mst_key}, t), madlib_mop.predict_number('{models}', {mst_key}, t)"
            " FROM test AS t WHERE row_id = %s"
            if len(expected) == 1
            else f"SELECT madlib_mop.predict('{models}', {mst_key}, t) FROM test AS t WHERE row_id = %s",
            [row_id],
        )
        found = cursor.fetchone()
        alone = [found[1]] if len(expected) == 1 else sorted(found[0])
        # driver and server write the same float32 with different numbers of digits
        is_equal = np.array_equal(np.float32(alone), np.float32(expected))
        assert is_equal, f"row {row_id} alone: {alone}, in the table: {expected}"
    return len(together)


def _preprocessor(cursor) -> Preprocessor:
    cursor.execute("SELECT preprocessor FROM packed_summary")
    ((document,),) = cursor.fetchall()
    return Preprocessor.from_json(document)
