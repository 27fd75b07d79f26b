"""The operation export_model, in the sandbox: networks in each format predict what the trainer predicts."""

import hashlib
import io
import json
import zipfile

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from madlib_mop.driver.networks.architectures import RECIPES, architecture
from madlib_mop.exports.formats import Format, read_additions
from madlib_mop.imports.keras_files import read_keras_file
from madlib_mop.imports.loading import digest_of, model_of
from madlib_mop.models.build import build_architecture
from madlib_mop.models.exported import KerasRunner
from tests.helpers.exports import LAST_BIT, N_ROWS, Network, draw, networks
from tests.helpers.inference import weights_of
from tests.helpers.training import one_thread
from tests.helpers.unit.columns import fitted, numbers, spec, target, texts
from tests.helpers.unit.documents import dense, keras_3, layer
from tests.helpers.unit.trainer import Trainer, TrainerError

one_thread()


def of_unbalanced_classes() -> Network:
    """Return a proposed network that begins with the shares of its classes."""
    rng = np.random.default_rng(3)
    columns = [(spec(name), numbers(rng.normal(size=9).tolist())) for name in "ab"]
    columns.append((spec("city", "category"), texts(list("uvwuvwuvw"))))
    found = fitted([*columns, (target("y"), texts(list("nnnnnnnyn")))])
    document = architecture(found, 1000, RECIPES[0], {"y": (980, 20)})
    model = build_architecture(document, 1)
    assert model.get_layer("class_shares").offset == [-0.0202, -3.912]
    draw(model, rng)
    xs = [rng.integers(0, tensor.n_codes, (N_ROWS, *tensor.shape)).astype(np.float32) if tensor.n_codes
          else rng.normal(size=(N_ROWS, *tensor.shape)).astype(np.float32) for tensor in found.tensors]  # fmt: skip
    return Network(model, xs)


NETWORKS = {**networks(keras), "unbalanced_classes": of_unbalanced_classes()}
ADDITIONS = {"signature.json": "{}", "README.md": "# Card"}
pytestmark = [pytest.mark.timeout(600), pytest.mark.tensorflow]


@pytest.fixture(scope="module")
def trainer():
    with Trainer(sandbox=True) as trainer:
        assert trainer.versions["seccomp"]
        yield trainer


def names_of(network):
    return [f"in_{i}" for i in range(len(network.xs))], [f"out_{i}" for i in range(network.n_outputs)]


def export(trainer, network, form):
    """Return the file of a network."""
    inputs, outputs = names_of(network)
    header = {"op": "export_model", "model": {"arch": json.loads(network.model.to_json())}, "format": form,
              "inputs": inputs, "outputs": outputs, "additions": ADDITIONS}  # fmt: skip
    return bytes(trainer.ask(header, [weights_of(network.model)])[1][0])


def predicted(trainer, network):
    """Return what the trainer predicts for the network's rows."""
    trainer.load_predictor({"arch": json.loads(network.model.to_json())}, weights=weights_of(network.model))
    xs = network.xs
    header = {"op": "predict", "shapes": [x.shape for x in xs], "index_inputs": []}
    answer, blobs = trainer.ask(header, [x.tobytes() for x in xs])
    return [np.frombuffer(b, np.float32).reshape(s) for s, b in zip(answer["shapes"], blobs, strict=True)]


def difference(found, expected):
    """Return the greatest difference, relative for numbers above 1."""
    return max(float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)))) for a, b in zip(found, expected, strict=True))


def as_inputs(network):
    return [x.astype(tensor.dtype) for x, tensor in zip(network.xs, network.model.inputs, strict=True)]


@pytest.mark.one_case
@pytest.mark.parametrize("name", NETWORKS)
def test_keras_predicts_the_same_bits(trainer, name, tmp_path):
    network, path = NETWORKS[name], tmp_path / "model.keras"
    path.write_bytes(export(trainer, network, Format.KERAS))
    expected = predicted(trainer, network)
    plain = keras.saving.load_model(path)
    batch = as_inputs(network)
    outputs = plain.predict_on_batch(batch[0] if len(batch) == 1 else batch)
    assert difference(keras.tree.flatten(outputs), expected) <= LAST_BIT.get(name, 0)
    loaded = model_of(read_keras_file(path.read_bytes()))
    assert digest_of(loaded) == hashlib.sha256(weights_of(network.model)).hexdigest()
    for found, wanted in zip(KerasRunner(loaded).run(as_inputs(network)), expected, strict=True):
        assert np.array_equal(found, wanted)
    again = tmp_path / "again.keras"
    plain.save(again)
    for one, other in zip(keras.saving.load_model(again).get_weights(), network.model.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert read_additions("model.keras", path.read_bytes()) == ADDITIONS


@pytest.mark.parametrize("name", LAST_BIT)
def test_without_arithmetic_optimization_keras_itself_predicts_the_same_bits(trainer, name):
    network = NETWORKS[name]
    plain = keras.models.clone_model(network.model)
    plain.set_weights(network.model.get_weights())
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    try:
        outputs = plain.predict_on_batch(as_inputs(network)[0])
    finally:
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
    assert np.array_equal(outputs, predicted(trainer, network)[0])


@pytest.mark.one_case
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_predicts_the_same_to_5_decimal_places(trainer, name, record_property):
    network = NETWORKS[name]
    data = export(trainer, network, Format.ONNX)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    inputs, outputs = names_of(network)
    assert [one.name for one in session.get_inputs()] == inputs
    assert {one.name for one in session.get_outputs()} == set(outputs)
    found = session.run(outputs, dict(zip(inputs, as_inputs(network), strict=True)))
    record_property("difference", difference(found, predicted(trainer, network)))
    assert difference(found, predicted(trainer, network)) <= 1e-5
    (three,) = session.run(outputs[:1], {k: x[:3] for k, x in zip(inputs, as_inputs(network), strict=True)})
    assert len(three) == 3  # batches of any size
    assert session.get_modelmeta().custom_metadata_map["madlib_mop/README.md"] == "# Card"


@pytest.mark.one_case
@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_model_predicts_the_same(trainer, name, tmp_path, record_property):
    network = NETWORKS[name]
    data = export(trainer, network, Format.SAVED_MODEL)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        file.extractall(tmp_path)
    serve = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    inputs, outputs = names_of(network)
    found = serve(**{k: tf.constant(x) for k, x in zip(inputs, as_inputs(network), strict=True)})
    values = [found[name].numpy() for name in outputs]
    record_property("difference", difference(values, predicted(trainer, network)))
    assert difference(values, predicted(trainer, network)) <= 1e-6
    assert read_additions("model.zip", data) == ADDITIONS


@pytest.mark.parametrize("name", NETWORKS)
def test_safetensors_has_each_weight_by_name_in_order(trainer, name):
    from safetensors.numpy import load

    network = NETWORKS[name]
    data = export(trainer, network, Format.SAFETENSORS)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors, order = load(data), json.loads(metadata["weights"])
    assert sorted(tensors) == sorted(order)
    for tensor, weight in zip(order, network.model.get_weights(), strict=True):
        assert np.array_equal(tensors[tensor], weight)
    assert keras.models.model_from_json(metadata["architecture"]).count_params() == network.model.count_params()
    assert read_additions("model.safetensors", data) == ADDITIONS


def test_the_same_model_gives_the_same_bytes(trainer):
    for form in (Format.KERAS, Format.SAFETENSORS):
        assert export(trainer, NETWORKS["dense"], form) == export(trainer, NETWORKS["dense"], form)


def ask(trainer, arch, form, n_floats):
    header = {"op": "export_model", "model": {"arch": arch}, "format": form, "inputs": ["x"], "outputs": ["y"]}
    return trainer.ask({**header, "additions": ADDITIONS}, [np.zeros(n_floats, np.float32).tobytes()])


def test_what_a_format_cannot_express_is_one_clear_error(trainer):
    arch = keras_3(layer("Hashing", num_bins=3), input_shape=(2,))
    with pytest.raises(TrainerError, match="onnx cannot express this model: ") as caught:
        ask(trainer, arch, "onnx", 0)
    assert (caught.value.sqlstate, caught.value.kind) == ("0A000", "input")
    assert "'keras' and 'safetensors' hold every model" in caught.value.hint


def test_keras_2_s_hard_sigmoid_is_refused_where_keras_3_could_not_load_it(trainer):
    arch = keras_3(dense(2, activation="keras2_hard_sigmoid"), input_shape=(2,))
    with pytest.raises(TrainerError, match="Keras 2's hard_sigmoid, which Keras 3 cannot load"):
        ask(trainer, arch, "keras", 6)
    assert ask(trainer, arch, "onnx", 6)[1]


def test_weights_of_another_model_are_refused(trainer):
    with pytest.raises(TrainerError, match="stored model_weights have 4 bytes"):
        ask(trainer, keras_3(dense(2), input_shape=(2,)), "keras", 1)


def test_rows_are_enough_for_kernels_without_a_rest():
    assert {len(x) for network in NETWORKS.values() for x in network.xs} == {N_ROWS}
