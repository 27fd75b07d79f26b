"""A row of a dense network has the same bits alone and in a table, with TensorFlow's own kernels and with oneDNN's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.tensorflow
#: Prints how many rows differ, for the client's runner and for the trainers' predictor.
PROGRAM = """
import json
import numpy as np
from tests.helpers.training import one_thread, quiet_keras

one_thread()
keras = quiet_keras()
from keras import layers
from madlib_mop.models.exported import KerasRunner
from madlib_mop.trainer.graphs.predict import Predictor

def embedded(n):
    # the periodic embeddings of driver/networks/inputs.py
    random = keras.initializers.RandomNormal(stddev=2.0, seed=1)
    x = keras.Input((n,))
    waves = layers.EinsumDense("bf,fk->bfk", [n, 16], bias_axes="fk", kernel_initializer=random)(x)
    found = layers.EinsumDense("bfk,fkd->bfd", [n, 4], bias_axes="fd")(keras.ops.cos(waves))
    joined = layers.Concatenate()([x, layers.Flatten()(found)])
    return keras.Model(x, layers.Dense(3, "softmax")(layers.Dense(64, "relu")(joined)))

def dotted():
    one, other = keras.Input((5, 7)), keras.Input((5, 7))
    return keras.Model([one, other], layers.Flatten()(layers.Dot(axes=(2, 2))([one, other])))

def plain():
    x = keras.Input((9,))
    return keras.Model(x, layers.Dense(3)(layers.LayerNormalization()(layers.Dense(100, "gelu")(x))))

def differing(predict, xs):
    whole, n_rows = predict(xs), len(xs[0])
    sizes = [(start, 1) for start in range(0, n_rows, 31)] + [(start, 77) for start in range(0, n_rows - 77, 101)]
    return sum(
        not all(np.array_equal(a, b[start:start + n]) for a, b in zip(predict([x[start:start + n] for x in xs]), whole))
        for start, n in sizes
    )

found = {}
for name, model in {"embedded": embedded(3), "many": embedded(20), "dotted": dotted(), "plain": plain()}.items():
    xs = [np.random.default_rng(3).normal(size=(1500, *one.shape[1:])).astype(np.float32) for one in model.inputs]
    predictor = Predictor(model, 1.0)
    found[name] = [differing(KerasRunner(model).run, xs), differing(lambda xs: predictor.predict(tuple(xs)), xs)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("onednn", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_row_has_the_same_bits_alone_and_in_a_table(onednn):
    """Processors without VNNI and AMX use TensorFlow's own kernels; the variable chooses them on every processor."""
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": onednn, "PYTHONPATH": f"{ROOT}:{ROOT / 'plpython'}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {name: [0, 0] for name in ("embedded", "many", "dotted", "plain")}
