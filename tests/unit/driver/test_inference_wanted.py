"""The meaning of pred_type: its parsing, and the selection of scores, compared with a simple sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from madlib_mop.driver.inference.wanted import NO_CLASS, Form, PredType, all_of, choose, read_pred_type
from madlib_mop.errors import InvalidParameter

SCORES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 4), st.integers(1, 5)),
    elements=st.sampled_from([np.nan, -np.inf, -1, 0, 0.1, 0.25, 0.5, 0.99, np.inf]),
)


def by_hand(row):
    """Return a row's classes, best first; ties in the order of the classes, NaN last."""
    return sorted(range(len(row)), key=lambda unit: (np.isnan(row[unit]), -row[unit], unit))


def tuples(choice):
    return [
        (int(row), int(unit), float(score), int(rank))
        for row, unit, score, rank in zip(choice.rows, choice.units, choice.scores, choice.ranks, strict=True)
    ]


@given(SCORES, st.sampled_from([PredType(Form.PROB), PredType(Form.RESPONSE), PredType(Form.RANK, 2),
                                PredType(Form.RANK, 9), PredType(Form.THRESHOLD, 0.25)]))  # fmt: skip
def test_choice_is_that_of_a_sort(scores, wanted):
    expected = []
    for i, row in enumerate(scores):
        for rank, unit in enumerate(by_hand(row), 1):
            keep = {
                Form.PROB: True,
                Form.RESPONSE: rank == 1,
                Form.RANK: rank <= wanted.limit,
                Form.THRESHOLD: row[unit] > wanted.limit,
            }[wanted.form]
            if keep and wanted.form in (Form.RESPONSE, Form.RANK) and np.isnan(row).all():
                unit = NO_CLASS
            if keep:
                expected.append((i, unit, float(row[unit]), rank))
    assert np.array_equal(np.array(sorted(tuples(choose(scores, wanted)))), np.array(sorted(expected)), equal_nan=True)


@given(SCORES)
def test_all_classes_come_in_their_order(scores):
    choice = choose(scores, PredType(Form.PROB))
    places = [(row, unit) for row in range(scores.shape[0]) for unit in range(scores.shape[1])]
    assert [(int(row), int(unit)) for row, unit in zip(choice.rows, choice.units, strict=True)] == places


def test_the_best_come_by_rank():
    choice = choose(np.array([[0.1, 0.6, 0.3]], np.float32), PredType(Form.RANK, 2))
    assert tuples(choice) == [(0, 1, float(np.float32(0.6)), 1), (0, 2, float(np.float32(0.3)), 2)]


def test_a_row_of_nan_has_no_best_class():
    scores = np.array([[np.nan, np.nan], [np.nan, -np.inf]], np.float32)
    assert choose(scores, PredType(Form.RESPONSE)).units.tolist() == [NO_CLASS, 1]
    assert choose(scores, PredType(Form.RANK, 2)).units.tolist() == [NO_CLASS, NO_CLASS, 1, 0]
    assert choose(scores, PredType(Form.PROB)).units.tolist() == [0, 1, 0, 1]


def test_numbers_are_all_kept_with_rank_1():
    values = np.array([[3.5, -2], [0, np.nan]], np.float32)
    assert [t[:2] + t[3:] for t in tuples(all_of(values))] == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, "text", PredType(Form.PROB)),
        (None, "integer", PredType(Form.PROB)),
        ("prob", "text", PredType(Form.PROB)),
        (" Response ", "text", PredType(Form.RESPONSE)),
        ("3", "text", PredType(Form.RANK, 3)),
        ("0.5", "text", PredType(Form.THRESHOLD, 0.5)),
        (1, "integer", PredType(Form.RANK, 1)),
        (0, "float8", PredType(Form.THRESHOLD, 0.0)),
        (0.999, "float8", PredType(Form.THRESHOLD, 0.999)),
    ],
)
def test_pred_type_is_read(value, kind, expected):
    assert read_pred_type({"pred_type": value, "pred_kind": kind}) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((word, "text") for word in ("", "probability", "0", "-1", "1.0", "nan")),
        *((number, "integer") for number in (0, -3)),
        *((number, "float8") for number in (1, -0.1, "NaN", "Infinity")),
    ],
)
def test_pred_type_is_refused(value, kind):
    with pytest.raises(InvalidParameter) as refusal:
        read_pred_type({"pred_type": value, "pred_kind": kind})
    assert f"Received: {value!r}" in refusal.value.message
    assert "'prob'" in refusal.value.hint
