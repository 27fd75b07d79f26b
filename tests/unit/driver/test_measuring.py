"""The confusion matrix: each pair of classes of a few, and of many only those that occur."""

import numpy as np

from madlib_mop.driver.commands import measuring
from madlib_mop.driver.inference.measured import ClassOutput


def matrix(monkeypatch, n_classes: int, truth: list[int], predicted: list[int]) -> list[tuple]:
    labels: list[str | None] = [f"c{number}" for number in range(n_classes)]
    probabilities = np.zeros((len(truth), n_classes))
    probabilities[np.arange(len(truth)), predicted] = 1.0
    output = ClassOutput("y", labels, probabilities, np.array(truth))
    monkeypatch.setattr(measuring, "_outputs", lambda call: (None, [output]))
    names = ("actual", "predicted", "n_rows", "share_of_actual")
    return [tuple(row[name] for name in names) for row in measuring.confusion_matrix(None)]


def test_each_pair_of_the_classes_that_occur(monkeypatch):
    assert matrix(monkeypatch, 4, [0, 0, 0], [0, 0, 2]) == [
        ("c0", "c0", 2, 2 / 3), ("c0", "c2", 1, 1 / 3), ("c2", "c0", 0, None), ("c2", "c2", 0, None),
    ]  # fmt: skip


def test_of_many_classes_that_occur_the_pairs_that_do(monkeypatch):
    truth = list(range(102))
    found = matrix(monkeypatch, 102, truth, [*truth[:-1], 0])
    assert len(found) == 102 and found[0] == ("c0", "c0", 1, 1.0) and found[-1] == ("c101", "c0", 1, 1.0)


def test_few_rows_of_very_many_classes_need_little_memory(monkeypatch):
    """A count for each pair of 200,000 classes is 320 GB."""
    found = matrix(monkeypatch, 200_000, [0, 199_999], [199_999, 199_999])
    assert [row[2] for row in found] == [0, 1, 0, 1]
