"""Groups of configurations of one shape: members, reasons for separate training, and work for all segments."""

import json

import pytest

from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.configuration import Configuration
from madlib_mop.models.fusion import ALONE, FEW, FULL, FusionCandidate, Group, form_groups
from tests.helpers.unit.documents import dense, keras_3, layer

ADAM = "loss='categorical_crossentropy', optimizer='Adam(lr={rate})', metrics=['accuracy']"


def architecture(*extra, l2=0.001, **config):
    penalty = {"module": "keras.regularizers", "class_name": "L2", "config": {"l2": l2}, "registered_name": None}
    return check_architecture(json.dumps(keras_3(dense(8, kernel_regularizer=penalty, **config), *extra, dense(3))))


def candidate(key, compile_params=None, fit="batch_size=32", start=None, functions=(), arch=None):
    texts = compile_params or ADAM.format(rate=0.1), fit
    return FusionCandidate(key, Configuration(1, *texts, arch or architecture(), frozenset(functions)), start)


def test_learning_rates_and_strengths_may_differ():
    members = [candidate(k, ADAM.format(rate=0.1 * k), arch=architecture(l2=0.1 * k)) for k in (1, 2, 3)]
    assert form_groups(members, 8, 1).groups == (Group((1, 2, 3), 3),)


def test_batch_sizes_optimizers_epochs_and_starts_may_not():
    others = (
        candidate(3, fit="batch_size=16"),
        candidate(4, ADAM.replace("Adam", "SGD").format(rate=0.1)),
        candidate(5, start="a state"),
        candidate(6, arch=architecture(dense(4))),
        candidate(7, fit="batch_size=32, shuffle=False"),
    )
    grouping = form_groups([candidate(1), candidate(2), *others], 8, 1)
    assert grouping.groups == (Group((1, 2), 2),)
    assert grouping.separate == dict.fromkeys((3, 4, 5, 6, 7), ALONE)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"arch": architecture(layer("GaussianNoise", stddev=0.1))}, "layer GaussianNoise"),
        ({"arch": architecture(trainable=False)}, "frozen layers"),
        ({"arch": architecture(dtype="float64")}, "a type other than float32"),
        ({"compile_params": "loss='mse', optimizer='Nadam'"}, "optimizer Nadam"),
        ({"compile_params": "loss='mse', optimizer='Adam(clipnorm=1.0)'"}, "clipnorm"),
        ({"compile_params": "loss='mse', optimizer='SGD(lr=0.1, decay=0.1)'"}, "a schedule of learning rates"),
        ({"compile_params": "loss='mine', optimizer='Adam'", "functions": ("mine",)}, "custom functions"),
        ({"compile_params": "loss='ctc', optimizer='Adam'"}, "its loss"),
        ({"compile_params": "loss='mse', optimizer='Adam', metrics=['AUC()']"}, "its metrics"),
        ({"fit": "batch_size=32, class_weight={0: 2.0}"}, "class_weight"),
        ({"fit": "batch_size=32, callbacks=[EarlyStopping(patience=2)]"}, "callbacks"),
    ],
)
def test_what_cannot_be_stacked_is_told(changes, reason):
    grouping = form_groups([candidate(1, **changes), candidate(2, **changes)], 8, 1)
    assert grouping.groups == () and grouping.separate == {1: reason, 2: reason}


@pytest.mark.parametrize(
    "n, most, n_segments, sizes",
    [
        (32, 8, 2, [8, 8, 8, 8]),
        (9, 8, 1, [5, 4]),
        (8, 8, 2, [4, 4]),
        (7, 8, 3, [3, 2, 2]),
        (7, 64, 1, [7]),
        (3, 8, 2, [2, 1]),
        (3, 8, 3, [1, 1, 1]),
        (3, 8, 9, [1, 1, 1]),
        (5, 2, 1, [2, 2, 1]),
    ],
)
def test_no_group_is_more_than_the_share_of_a_segment(n, most, n_segments, sizes):
    """Sizes differ by at most one. Their graphs have the same number of places, so one graph serves all."""
    grouping = form_groups([candidate(key) for key in range(n)], most, n_segments)
    assert [len(group.keys) for group in grouping.groups] == [size for size in sizes if size > 1]
    assert {group.n_places for group in grouping.groups} <= {max(sizes)}
    reason = FEW if max(sizes) == 1 else FULL
    assert list(grouping.separate.values()) == [reason] * sizes.count(1)
    assert sorted([key for group in grouping.groups for key in group.keys] + list(grouping.separate)) == list(range(n))


def test_those_apart_count_for_the_share():
    """Five of one shape and a separate one on two segments: with a group of five, one segment would be idle."""
    grouping = form_groups([*(candidate(key) for key in range(5)), candidate(9, fit="batch_size=7")], 8, 2)
    assert [group.keys for group in grouping.groups] == [(0, 1, 2), (3, 4)]
    assert grouping.separate == {9: ALONE}
