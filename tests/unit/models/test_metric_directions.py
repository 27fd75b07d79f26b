"""Whether higher values of a metric are better, by its name: as Keras says, and as SQL does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402

from madlib_mop.models.parameters.keras_names import METRICS, REQUIRED  # noqa: E402
from madlib_mop.models.parameters.parser import HIGHER, PATTERN, higher_is_better  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
GIVEN = {"num_classes": 2, "target_class_ids": [0]}
COUNTS = {"TruePositives": "up", "TrueNegatives": "up", "FalsePositives": "down", "FalseNegatives": "down"}


@pytest.mark.parametrize("name", METRICS)
def test_it_is_what_keras_says_of_each_of_its_metrics(name):
    metric = getattr(keras.metrics, name)(**{k: GIVEN.get(k, 0.5) for k in REQUIRED.get(name, ())})
    is_up = (getattr(metric, "_direction", None) or COUNTS[name]) == "up"
    for known in (metric.name, name, f"kind_{metric.name}", f"{metric.name}_1", f"kind_{metric.name}_12"):
        assert higher_is_better(known) is is_up, known


def test_words_within_a_name_decide_nothing():
    lower = (
        "inaccuracy accumulated_error loss accuracy_loss kind_loss precision_error recalled f1_error similarity_gap"
        " hiatus_io_us r2d2 accuracy_ _accuracyx vacuum aucs accuracy_1_error mse my_metric acc1"
    )
    assert [name for name in lower.split() if higher_is_better(name)] == []
    higher = "Accuracy ROC_AUC out_1_accuracy top_4_accuracy my_f1 _accuracy a\nb_accuracy macro_F1_score_2"
    assert [name for name in higher.split(" ") if not higher_is_better(name)] == []
    assert not higher_is_better("accuracy\n") and not higher_is_better("")


def test_sql_has_the_same_words(tmp_path):
    build = [ROOT / "make" / "build_extension.py", "--library", "/library", "--output", tmp_path]
    subprocess.run([sys.executable, *build], check=True)
    built = "".join(file.read_text() for file in tmp_path.glob("madlib_mop--*.sql"))
    assert f"~ '{PATTERN}'" in built
    assert len(set(HIGHER)) == len(HIGHER) and all(word == word.lower() for word in HIGHER)
