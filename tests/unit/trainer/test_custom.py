"""Custom functions in a trainer: equal to plain Keras bit for bit; an invalid one fails its model with a reason.

The trainer is in its sandbox, as in a server.
"""

import hashlib
import importlib.util
import os
import pickle

import keras
import numpy as np
import pytest

from madlib_mop.models.parameters.custom import CustomFunctions, top_k_source
from tests.helpers.unit.cases import CASES, Case, weights_of
from tests.helpers.unit.trainer import BACKEND, Trainer, TrainerError

IMAGES = next(case for case in CASES if case.name.startswith("cnn"))
LOSS = """
import keras
from keras import ops

def MyLoss(y_true, y_pred):
    errors = ops.square(y_true - y_pred) * ops.convert_to_tensor([1.0] * 5 + [2.0] * 5)
    return ops.sum(errors, axis=-1)

def spread(y_true, y_pred):
    return ops.max(y_pred, axis=-1) - ops.min(y_pred, axis=-1)
"""
SOURCES = {"MyLoss": LOSS.encode(), "spread": LOSS.encode(), "top_3_accuracy": top_k_source(3)}
COMPILE = "loss='MyLoss', optimizer='Adam(lr=0.01)', metrics=['accuracy', 'top_3_accuracy', 'spread']"


def my_loss(y_true, y_pred):
    """Do what the source does, in plain Keras."""
    weights = keras.ops.convert_to_tensor([1.0] * 5 + [2.0] * 5)
    return keras.ops.sum(keras.ops.square(y_true - y_pred) * weights, axis=-1)


def spread(y_true, y_pred):
    """Do what the source does, in plain Keras."""
    return keras.ops.max(y_pred, axis=-1) - keras.ops.min(y_pred, axis=-1)


def compiled():
    """Return the arguments of Keras' own compile."""
    top_3 = keras.metrics.TopKCategoricalAccuracy(3, name="top_3_accuracy")
    return {"loss": my_loss, "optimizer": keras.optimizers.Adam(0.01), "metrics": ["accuracy", top_3, spread]}


CASE = Case("custom", IMAGES.build, COMPILE, compiled, IMAGES.data, batch_size=16)
PLAIN = {**CASE.request(), "compile_params": IMAGES.compile_params}


@pytest.fixture(scope="module")
def trainer():
    with Trainer(sandbox=True) as trainer:
        trainer.send_shard("s", *CASE.data(53))
        yield trainer


def request(functions: dict, compile_params: str = COMPILE, pickles: bool = False) -> dict:
    """Return ``model`` of a request with custom functions."""
    custom = CustomFunctions(functions, pickles).as_request()
    return {**PLAIN, "compile_params": compile_params, "custom": custom}


def failing(source: bytes, use: str = "loss") -> dict:
    """Return a request whose loss or metric is the function ``f`` of a source."""
    text = {"loss": "loss='f', optimizer='sgd'", "metrics": "loss='mse', optimizer='sgd', metrics=['f']"}[use]
    return request({"f": source}, text)


def test_weights_and_metrics_are_those_of_plain_keras(trainer):
    xs, ys = CASE.data(53)
    model, parts = CASE.model(), None
    for epoch in (1, 2):
        CASE.fit(model, epoch, 0, xs, ys)
        answer, parts = trainer.train(request(SOURCES), "s", epoch=epoch, state=parts)
    assert answer["weights_digest"] == hashlib.sha256(weights_of(model)).hexdigest()
    found = trainer.evaluate(request(SOURCES), "s", state=parts)
    # The trainer evaluates all 53 rows in one batch and sums in float64.
    loss, accuracy, top_3, spread_ = model.evaluate(xs[0], ys[0].astype(np.float32), batch_size=53, verbose=0)
    assert list(found["metrics"]) == ["accuracy", "top_3_accuracy", "spread"]
    assert found["metrics"]["top_3_accuracy"] == pytest.approx(top_3, rel=1e-6)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["metrics"]["spread"] == pytest.approx(spread_, rel=1e-6)
    scores = model.predict(xs[0], verbose=0)
    ranked = np.argsort(-scores, axis=1)[:, :3]
    exact = np.mean([np.argmax(y) in row for y, row in zip(ys[0], ranked, strict=True)])
    assert found["metrics"]["top_3_accuracy"] == pytest.approx(exact, abs=1e-12)


@pytest.mark.slow
def test_many_outputs_name_them_by_output_or_in_a_list(trainer):
    case = next(case for case in CASES if case.name.startswith("two inputs"))
    xs, ys = case.data(41)
    trainer.send_shard("two", xs, ys)
    by_name = "loss={'kind': 'MyLoss', 'size': 'mse'}, metrics={'kind': ['top_3_accuracy', 'spread'], 'size': 'mae'}"
    in_list = "loss=['MyLoss', 'mse'], metrics=[['top_3_accuracy', 'spread'], ['mae']]"
    source = LOSS.replace("[1.0] * 5 + [2.0] * 5", "[1.0, 1.0, 2.0]").encode()
    sources = {**SOURCES, "MyLoss": source, "spread": source}
    request = {**case.request(), "custom": CustomFunctions(sources).as_request()}
    results = []
    for text in (by_name, in_list):
        request["compile_params"] = f"{text}, optimizer='sgd'"
        answer, parts = trainer.train(request, "two")
        results.append((answer["weights_digest"], trainer.evaluate(request, "two", state=parts)["metrics"]))
    assert results[0] == results[1]
    assert list(results[0][1]) == ["kind_top_3_accuracy", "kind_spread", "size_mae"]
    assert results[0][1]["kind_top_3_accuracy"] == 1.0  # all three classes are in the top three

    def weighted(y_true, y_pred):
        errors = keras.ops.square(y_true - y_pred) * keras.ops.convert_to_tensor([1.0, 1.0, 2.0])
        return keras.ops.sum(errors, axis=-1)

    model = case.model()
    model.compile(loss={"kind": weighted, "size": "mse"}, optimizer="sgd")
    case.fit(model, 1, 0, xs, ys)
    assert results[0][0] == hashlib.sha256(weights_of(model)).hexdigest()


def test_two_functions_of_one_name_never_share_a_graph_and_equal_ones_do(trainer):
    sources = [b"def f(y_true, y_pred): return (y_true - y_pred) ** 2", b"def f(y_true, y_pred): return y_pred ** 2"]
    answers = [trainer.train(failing(source), "s")[0] for source in (*sources, sources[0])]
    digests = [answer["weights_digest"] for answer in answers]
    assert digests[0] == digests[2] != digests[1]
    assert answers[2]["timing"]["trace_s"] < answers[0]["timing"]["trace_s"] / 5


# TensorFlow has tensors of texts.
_TEXT = "returned values of type string" if BACKEND == "tensorflow" else "returned a value of type str"
BAD = {
    "raises when made": (
        b"x = 1\nraise KeyError('no')\ndef f(a, b): ...",
        "cannot be created in line 2: KeyError: 'no'",
    ),
    "exits when made": (b"import sys\nsys.exit(3)\ndef f(a, b): ...", "cannot be created in line 2: SystemExit: 3"),
    "imports what is not there": (b"import nowhere\ndef f(a, b): ...", "in line 1: ModuleNotFoundError: No module"),
    "does not parse": (b"def f(a, b) return", "cannot be created in line 1: SyntaxError"),
    "is no function": (b"f = 3", "is not a function but a value of type int"),
    "is a class": (b"class f:\n  def __init__(self, a, b): ...", "is not a function but a value of type type"),
    "takes one": (b"def g(a): ...\nf = g", "must take two positional arguments, y_true and y_pred; it takes (a)"),
    "raises": (b"def f(a, b):\n    c = a\n    return c.nothing(b)", "failed in line 3: AttributeError: "),
    "gives None": (b"def f(a, b): pass", "returned None, not a tensor"),
    "gives text": (b"def f(a, b): return 'good'", _TEXT),
    "gives one value a class": (
        b"import keras\ndef f(a, b): return keras.ops.mean((a - b) ** 2, axis=0)",
        "returned the shape (10) for predictions of the shape",
    ),
}

TRACED = ("raises", "gives None", "gives one value a class")  # what Keras calls elsewhere for a metric


@pytest.mark.parametrize("what, use", [*((what, "loss") for what in BAD), *((what, "metrics") for what in TRACED)])
def test_a_bad_function_fails_its_model_and_says_function_and_line(trainer, what, use):
    source, message = BAD[what]
    with pytest.raises(TrainerError) as caught:
        trainer.train(failing(source, use), "s")
    assert (caught.value.kind, caught.value.sqlstate) == ("model", "38000")
    assert caught.value.message.startswith("custom function 'f' ") and message in caught.value.message
    assert "Traceback" not in caught.value.message and 'File "' not in caught.value.message


def test_the_others_go_on(trainer):
    before = trainer.train(PLAIN, "s")[0]["weights_digest"]
    with pytest.raises(TrainerError):
        trainer.train(failing(BAD["raises"][0]), "s")
    assert trainer.train(PLAIN, "s")[0]["weights_digest"] == before


def test_code_runs_in_the_sandbox_only(trainer, tmp_path):
    marker = tmp_path / "marker"
    for line in (f"open({str(marker)!r}, 'w')", "import os; os.system('true') and 1 / 0", "open('/etc/shadow')"):
        with pytest.raises(TrainerError, match="custom function 'f' cannot be created in line 1"):
            trainer.train(failing(f"{line}\ndef f(a, b): return a".encode()), "s")
    assert not marker.exists()


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_is_not_opened_unless_a_superuser_said_so(tmp_path):
    marker = tmp_path / "marker"
    value = pickle.dumps(Bomb(str(marker)))
    with Trainer(sandbox=False) as trainer:  # without the sandbox, so that code that ran would leave a trace
        trainer.send_shard("s", *CASE.data(53))
        with pytest.raises(TrainerError, match="custom function 'f' is a pickle, which trainers do not load"):
            trainer.train(failing(value), "s")
    assert not marker.exists()


@pytest.mark.skipif(importlib.util.find_spec("dill") is None, reason="dill is an optional dependency")
def test_a_pickle_that_may_be_opened_does_what_the_function_does(trainer):
    import dill

    namespace = {}
    exec("import keras\ndef f(y_true, y_pred): return keras.ops.sum((y_true - y_pred) ** 2, axis=-1)", namespace)
    value = dill.dumps(namespace["f"], recurse=True)
    source = b"import keras\ndef f(y_true, y_pred): return keras.ops.sum((y_true - y_pred) ** 2, axis=-1)"
    text = "loss='f', optimizer='sgd'"
    opened = trainer.train(request({"f": value}, text, pickles=True), "s")[0]
    assert opened["weights_digest"] == trainer.train(request({"f": source}, text), "s")[0]["weights_digest"]
