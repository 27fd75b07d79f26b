"""Names of metrics in trackers: those of Keras where they fit, one key for each name in any case."""

import re

import pytest

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.trackers.names import history_name, key_of, tag_of, text_of
from tests.helpers.trackers import HOSTILE


def point(data_set: str, name: str, is_sample: bool = False) -> MetricPoint:
    return MetricPoint(1, 0.0, data_set, name, 0.5, 3, 6, is_sample)


@pytest.mark.parametrize(
    ("data_set", "name", "is_sample", "in_history", "tag", "step"),
    [
        ("training", "loss", False, "loss", "epoch_loss", 3),
        ("validation", "accuracy", False, "val_accuracy", "epoch_accuracy", 3),
        ("validation", "loss", True, "sample_val_loss", "visit_loss", 6),
    ],
)
def test_names_are_those_of_keras(data_set, name, is_sample, in_history, tag, step):
    made = point(data_set, name, is_sample)
    assert (history_name(made), tag_of(made), made.step) == (in_history, tag, step)


@pytest.mark.parametrize("name", ["loss", "val_top_k_categorical_accuracy", "out-1_auc", "learning_rate"])
def test_an_ordinary_name_is_its_own_key(name):
    assert key_of(name) == name


def test_hostile_names_become_different_keys_without_paths():
    names = [*HOSTILE, "..", ".", "", " ", "a/b", "a\\b", "a_b", "a..b", "-", "ü", "ö"]
    keys = [key_of(name) for name in names]
    assert len(set(keys)) == len(names)
    for key in keys:
        assert re.fullmatch(r"[A-Za-z0-9_. -]{1,250}", key) and ".." not in key and key.strip(" .") == key


def test_a_tag_shows_control_characters():
    assert tag_of(point("training", "a\x1b[31m\u202eb")) == "epoch_a\\x1b[31m\\u202eb"


def test_a_long_text_is_cut():
    assert text_of("x" * 10, 10) == "x" * 10 and text_of("x" * 11, 10) == "x" * 9 + "…" and text_of(None, 9) == "None"
