"""Errors of rows that are predicted: a single row has no number in a batch."""

import pytest

from madlib_mop.errors import InvalidParameter
from madlib_mop.trainer.data.rows import RowEncoder
from tests.helpers.unit.columns import fitted, numbers, spec, target, texts
from tests.helpers.unit.records import batch, field


@pytest.mark.parametrize(("before", "place"), [((), ""), (([1.0],), ", in row 2 of its batch")])
def test_a_value_that_cannot_be_used_is_named_with_its_row_where_there_are_several(before, place):
    training = [(spec("x", impute="error"), numbers([1, 2])), (target("y"), texts(["a", "b"]))]
    encoder = RowEncoder(fitted(training).to_json(), 1, 1)
    data, lengths = batch([field("float8", "x")], [*before, [None]])
    with pytest.raises(InvalidParameter) as caught:
        encoder.tensors(bytes(data), [int(length) for length in lengths], [("x", "float8", 701, "float8")], "UTF8")
    assert caught.value.message == f"column 'x' is NULL, and its impute is error{place}"
    assert "another impute" in caught.value.hint
