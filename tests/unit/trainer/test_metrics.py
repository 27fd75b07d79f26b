"""Every metric of Keras: added sums of unequal shards equal plain Keras' value for all rows at any batch size."""

import dataclasses
import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras  # noqa: E402
from mop_backend.messages import MetricTotals, from_json, to_json  # noqa: E402

from madlib_mop.driver.evaluation.evaluations import add  # noqa: E402
from madlib_mop.models import build  # noqa: E402
from madlib_mop.models.parameters import parser as params  # noqa: E402
from madlib_mop.models.parameters.keras_names import METRICS  # noqa: E402
from tests.helpers.unit.cases import weights_of  # noqa: E402
from tests.helpers.unit.trainer import Trainer  # noqa: E402

SHARDS = (130, 57, 1, 512)
BATCH_SIZES = (7, 32, 700)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Metrics for one kind of network: its last layer, loss and labels."""

    units: int
    activation: str | None
    loss: str
    metrics: tuple[str, ...]

    def model(self):
        keras.utils.set_random_seed(3)
        layer = keras.layers.Dense(self.units, self.activation, kernel_regularizer=keras.regularizers.L2(0.01))
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(9, "tanh"), layer])

    def data(self):
        rng = np.random.default_rng(7)
        x = rng.normal(size=(sum(SHARDS), 6)).astype(np.float32)
        if self.activation is None:
            # Each shard has values far from the others': the mean of the shards' metrics differs from the metric of all
            # rows.
            far = np.repeat(np.arange(len(SHARDS)), SHARDS)[:, None]
            return x, (x[:, : self.units] + far + rng.normal(size=(len(x), self.units))).astype(np.float32)
        classes = np.argmax(x[:, : max(2, self.units)] + rng.normal(size=(len(x), max(2, self.units))), 1)
        classes[: SHARDS[0]] = 0  # a shard of one class, for which an AUC is undefined
        return x, (np.eye(self.units)[classes] if self.units > 1 else classes[:, None]).astype(np.int16)


_EVERYWHERE = (
    "AUC()", "AUC(curve='PR')", "AUC(curve='PR', summation_method='minoring')", "AUC(summation_method='majoring')",
    "AUC(num_thresholds=31)", "AUC(thresholds=[0.2, 0.35, 0.9])", "BinaryAccuracy(threshold=0.4)",
    "Precision()", "Precision(thresholds=[0.3, 0.6])", "Recall(thresholds=0.4)", "Recall()",
    "TruePositives()", "TrueNegatives(thresholds=[0.3, 0.6])", "FalsePositives()", "FalseNegatives()",
    "SensitivityAtSpecificity(0.6)", "SpecificityAtSensitivity(0.6)", "PrecisionAtRecall(0.5)",
    "RecallAtPrecision(0.5)", "Poisson()", "KLDivergence()", "BinaryCrossentropy()",
    "F1Score(average='micro', threshold=0.4)", "FBetaScore(beta=2.0, average='weighted', threshold=0.5)",
)  # fmt: skip
KINDS = [
    Kind(1, "sigmoid", "binary_crossentropy", (
        *_EVERYWHERE, "'accuracy'", "BinaryIoU()", "BinaryIoU(target_class_ids=[1], threshold=0.4)",
        "Accuracy()", "Hinge()", "SquaredHinge()",
    )),
    Kind(4, "softmax", "categorical_crossentropy", (
        "'auc'", "'precision'", *_EVERYWHERE, "'accuracy'", "CategoricalAccuracy()", "CategoricalCrossentropy()",
        "TopKCategoricalAccuracy(k=2)", "Precision(class_id=2)", "Recall(class_id=1, top_k=2)", "Precision(top_k=2)",
        "F1Score()", "F1Score(average='macro')", "FBetaScore(beta=0.5, threshold=0.3)",
        "AUC(multi_label=True, num_labels=4)", "AUC(multi_label=True, num_labels=4, label_weights=[1, 2, 3, 4])",
        "AUC(multi_label=True, curve='PR')", "SensitivityAtSpecificity(0.6, class_id=3)", "CategoricalHinge()",
        "OneHotIoU(num_classes=4, target_class_ids=[0, 2])", "OneHotMeanIoU(num_classes=4)",
        "IoU(num_classes=4, target_class_ids=[1], sparse_y_true=False, sparse_y_pred=False)",
        "MeanIoU(num_classes=4, sparse_y_true=False, sparse_y_pred=False)",
    )),
    Kind(3, None, "mse", (
        "'mae'", "'mse'", "'root_mean_squared_error'", "RootMeanSquaredError()", "R2Score()",
        "R2Score(class_aggregation=None)", "R2Score(class_aggregation='variance_weighted_average')",
        "R2Score(num_regressors=6)", "CosineSimilarity()", "LogCoshError()", "MeanAbsoluteError()",
        "MeanAbsolutePercentageError()", "MeanSquaredError()", "MeanSquaredLogarithmicError()",
        "PearsonCorrelation()", "ConcordanceCorrelation()",
    )),
]  # fmt: skip
#: They take labels as class numbers, but labels are packed one-hot: `models/parameters/parser.py` rejects them.
SPARSE = {name for name in METRICS if name.startswith("Sparse")}


@pytest.fixture(scope="module")
def trainer():
    with Trainer() as started:
        yield started


def total_of(answers):
    """Return the added sums of evaluations, as JSON."""
    return to_json(add(from_json(MetricTotals, answer["sums"]) for answer in answers).as_request())


def sums_of(trainer, request, weights, x, y):
    """Evaluate each shard separately; return the answers, and the result of their sums."""
    start, answers = 0, []
    for n_rows in SHARDS:
        part = slice(start, start + n_rows)
        trainer.send_shard("s", [x[part]], [y[part]])
        answers.append(trainer.evaluate(request, "s", weights=weights))
        start += n_rows
    head = {"op": "metric_results", "model": request, "shard": "s"}
    (found,) = trainer.ask({**head, "sums": [total_of(answers)]})[0]["results"]
    return answers, found


def of_shards(answers, name):
    """Return the mean over rows of the shards' values, the former, wrong definition of the total."""
    return sum(a["n_rows"] * a["metrics"][name] for a in answers) / sum(SHARDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.loss, marks=pytest.mark.slow if "binary" in kind.loss else ()) for kind in KINDS],
)
def test_each_metric_is_that_of_all_rows(trainer, kind):
    x, y = kind.data()
    text = f"loss='{kind.loss}', optimizer='sgd', metrics=[{', '.join(kind.metrics)}]"
    plain = kind.model()
    request = {"arch": plain.to_json(), "compile_params": text, "fit_params": "batch_size=9", "seed": 1, "mst_key": 1}
    answers, found = sums_of(trainer, request, weights_of(plain), x, y)
    build.compile_model(plain, params.parse_compile_params(text), {})
    for batch_size in BATCH_SIZES:
        expected = plain.evaluate(x, y.astype(np.float32), batch_size=batch_size, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(expected.pop("loss"), rel=2e-5)
        expected = {name: float(np.mean(value)) for name, value in expected.items()}
        assert list(found["metrics"]) == [name for name in plain._compile_metrics.result()]
        assert found["metrics"] == pytest.approx(expected, rel=2e-5, abs=2e-6)
    averaged = [name for name in expected if of_shards(answers, name) == pytest.approx(expected[name], rel=1e-4)]
    assert len(averaged) < len(expected), "the shards are too alike to show anything"


def test_no_metric_of_the_allow_list_is_left_out():
    tried = {text.split("(")[0] for kind in KINDS for text in kind.metrics}
    assert tried >= set(METRICS) - SPARSE


@pytest.mark.slow
def test_outputs_weights_and_weighted_losses(trainer):
    """A model of two outputs: metrics of each, loss weights, weighted_metrics, regularisation."""
    inner = keras.Input((6,), name="x")
    both = keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(inner)
    outputs = [keras.layers.Dense(3, "softmax", name="kind")(both), keras.layers.Dense(1, name="size")(both)]
    plain = keras.Model(inner, outputs, name="two")
    text = (
        "loss={'kind': 'categorical_crossentropy', 'size': 'mse'}, loss_weights={'kind': 1.0, 'size': 0.3},"
        " optimizer='sgd', metrics={'kind': ['accuracy', AUC()], 'size': [RootMeanSquaredError(), R2Score()]},"
        " weighted_metrics={'kind': [F1Score()], 'size': ['mae']}"
    )
    rng = np.random.default_rng(2)
    x = rng.normal(size=(sum(SHARDS), 6)).astype(np.float32)
    ys = [np.eye(3, dtype=np.int16)[rng.integers(0, 3, len(x))], (x[:, :1] + 2 * x[:, 1:2]).astype(np.float32)]
    request = {"arch": plain.to_json(), "compile_params": text, "fit_params": "", "seed": 1, "mst_key": 1}
    start, answers = 0, []
    for n_rows in SHARDS:
        part = slice(start, start + n_rows)
        trainer.send_shard("s", [x[part]], [y[part] for y in ys])
        answers.append(trainer.evaluate(request, "s", weights=weights_of(plain)))
        start += n_rows
    head = {"op": "metric_results", "model": request, "shard": "s"}
    (found,) = trainer.ask({**head, "sums": [total_of(answers)]})[0]["results"]
    build.compile_model(plain, params.parse_compile_params(text), {})
    ys = [y.astype(np.float32) for y in ys]
    for batch_size in BATCH_SIZES:
        expected = plain.evaluate(x, ys, batch_size=batch_size, verbose=0, return_dict=True)
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-5)
        for name, value in found["metrics"].items():
            assert value == pytest.approx(float(np.mean(expected[name])), rel=2e-5), name
    assert len(found["metrics"]) == 6


def test_sums_do_not_lose_digits_as_a_shard_grows(trainer):
    """Of a million rows of 16 and a million of 2**-10, a float32 sum of squares would lose the latter."""
    x = np.concatenate([np.full((1_000_000, 1), 16), np.full((1_000_000, 1), 2.0**-10)]).astype(np.float32)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    request = {
        "arch": model.to_json(), "compile_params": "loss='mse', optimizer='sgd', metrics=[RootMeanSquaredError()]",
        "fit_params": "batch_size=1", "seed": 1, "mst_key": 1,
    }  # fmt: skip
    trainer.send_shard("s", [x], [np.zeros_like(x)], buffer_size=1_000_000)
    answer = trainer.evaluate(request, "s", weights=np.ones(1, np.float32).tobytes())
    expected = float(np.sqrt(np.float32((256 + 2.0**-20) / 2)))
    assert answer["metrics"]["root_mean_squared_error"] == expected
