"""An ensemble is one Keras model, whose outputs are the weighted averages of its members' outputs."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
from keras import layers  # noqa: E402

from madlib_mop.errors import Unsupported  # noqa: E402
from madlib_mop.models.architecture import check_architecture  # noqa: E402
from madlib_mop.models.build import build_architecture  # noqa: E402
from madlib_mop.models.described import describe_architecture  # noqa: E402
from madlib_mop.models.ensemble import EnsembleMember, ensemble_architecture  # noqa: E402
from madlib_mop.models.shapes import describe  # noqa: E402
from tests.helpers.unit.documents import KERAS_2_10  # noqa: E402
from tests.helpers.unit.plain import convolutional, data_for, functional, nested, perceptron, recurrent  # noqa: E402


def logits():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(3)])


def one_unit():
    return keras.Sequential([keras.Input((4,)), layers.Dense(1)])


def perturbed(model, seed):
    """Set every weight, those of batch normalization too, to a random positive number."""
    rng = np.random.default_rng(seed)
    model.set_weights([rng.random(weight.shape, np.float32) for weight in model.get_weights()])
    return model


def build(models, counts, activations=None):
    """Return the ensemble's Keras model with its members' weights, as the call writes them."""
    activations = activations or [(None,) * len(model.outputs) for model in models]
    members = [
        EnsembleMember(f"model {i}", check_architecture(model.to_json()), count, functions)
        for i, (model, count, functions) in enumerate(zip(models, counts, activations, strict=True))
    ]
    found = ensemble_architecture(members)
    described = describe_architecture(check_architecture(found.arch))
    order = list(dict.fromkeys(weight.layer.split("/")[0] for weight in described.weights))
    ensemble = build_architecture(described.text)
    ensemble.set_weights([w for name in order for w in models[found.names.index(name)].get_weights()])
    return ensemble


def outputs(model, x):
    found = model.predict(x, verbose=0)
    return found if isinstance(found, list) else [found]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("make", "counts"),
    [
        pytest.param(make, counts, id=f"{make.__name__}-{counts}", marks=pytest.mark.slow if i and j else ())
        for i, make in enumerate([perceptron, convolutional, functional, recurrent, nested])
        for j, counts in enumerate([(3, 1, 2), (1,), (4, 4)])
    ],
)
def test_it_predicts_the_weighted_average_of_members_of_one_architecture(make, counts):
    models = [perturbed(make(), seed) for seed in range(len(counts))]
    x, _ = data_for(models[0])
    expected = [
        sum(count * values.astype(float) for count, values in zip(counts, each, strict=True)) / sum(counts)
        for each in zip(*(outputs(model, x) for model in models), strict=True)
    ]
    ensemble = build(models, counts)
    assert all(np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(outputs(ensemble, x), expected, strict=True))
    assert ensemble.losses == [], "without the members' regularizers"
    keras.models.model_from_json(ensemble.to_json())


def test_logits_become_probabilities_before_they_are_averaged():
    models = [perturbed(logits(), 1), perturbed(perceptron(), 2)]
    x, _ = data_for(models[0])
    e = np.exp(outputs(models[0], x)[0].astype(float))
    expected = (2 * e / e.sum(1, keepdims=True) + outputs(models[1], x)[0]) / 3
    ensemble = build(models, (2, 1), [("softmax",), (None,)])
    assert np.abs(outputs(ensemble, x)[0] - expected).max() < 1e-6


def test_members_whose_inputs_differ_by_a_dimension_of_one_take_the_same_rows():
    line = keras.Sequential([keras.Input((4, 1)), layers.Conv1D(2, 2), layers.Flatten(), layers.Dense(3, "softmax")])
    models = [perturbed(perceptron(), 1), perturbed(line, 2)]
    x, _ = data_for(models[0])
    expected = (outputs(models[0], x)[0] + outputs(models[1], x[..., np.newaxis])[0]) / 2
    assert np.abs(outputs(build(models, (1, 1)), x)[0] - expected).max() < 1e-6


def test_an_architecture_of_keras_2_is_a_member():
    arch = check_architecture(KERAS_2_10)
    members = [EnsembleMember("old", arch, 1, (None, None)), EnsembleMember("old too", arch, 1, (None, None))]
    build_architecture(check_architecture(ensemble_architecture(members).arch))


def test_names_and_units_of_the_outputs_are_the_first_members():
    arch = check_architecture(functional().to_json())
    ensemble = ensemble_architecture(
        [EnsembleMember("a", arch, 1, (None, None)), EnsembleMember("b", arch, 2, (None, None))]
    ).arch
    shape, own = describe(check_architecture(ensemble)), describe(arch)
    assert (shape.input_names, shape.input_shapes) == (own.input_names, own.input_shapes)
    assert (shape.output_names, shape.output_units) == (("kind", "amount"), (3, 1))
    assert shape.output_activations == ("softmax", "linear")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (functional, "b has 2 inputs, a has 1"),
        (convolutional, r"input 1 of b has the shape \[8, 8, 1\], that of a \[4\]"),
        (one_unit, "output 1 of b has 1 units, that of a 3"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_that_do_not_fit_each_other_are_refused(other, message):
    members = [
        EnsembleMember(n, check_architecture(f().to_json()), 1, (None,)) for n, f in (("a", perceptron), ("b", other))
    ]
    with pytest.raises(Unsupported, match=message):
        ensemble_architecture(members)


def test_a_chain_of_averages_is_described_at_once():
    x = keras.Input((4,))
    y = layers.Dense(3, activation="softmax")(x)
    for _ in range(60):
        y = layers.Average()([layers.Identity()(y), y])
    shape = describe(check_architecture(keras.Model(x, y).to_json()))
    assert (shape.output_units, shape.output_activations) == ((3,), ("softmax",))


def test_a_sum_has_the_units_of_its_parts_and_no_activation_of_theirs():
    x = keras.Input((4,))
    level = keras.Input((1,), dtype="int32")
    dense = layers.Dense(3, activation="softmax")(x)
    levels = layers.Reshape((3,))(layers.Embedding(5, 3)(level))
    for parts, units in ((layers.Add()([dense, levels]), 3), (layers.Add()([dense, layers.Dense(1)(x)]), None)):
        shape = describe(check_architecture(keras.Model([x, level], parts).to_json()))
        assert (shape.output_units, shape.output_activations) == ((units,), (None,))
    activated = layers.Activation("softmax")(layers.Add()([dense, levels]))
    shape = describe(check_architecture(keras.Model([x, level], activated).to_json()))
    assert (shape.output_units, shape.output_activations) == ((3,), ("softmax",))


def test_a_chain_of_a_thousand_layers_is_no_error():
    document = check_architecture(keras.Sequential([keras.Input((4,)), layers.Dense(3)]).to_json())
    dense = document["config"]["layers"][1]
    tensor = {"class_name": "__keras_tensor__", "config": {"shape": [None], "dtype": "float32"}}

    def after(name, source, node):
        args = [{**tensor, "config": {**tensor["config"], "keras_history": [source, 0, 0]}}]
        config = {**node["config"], "name": name}
        return {**node, "config": config, "name": name, "inbound_nodes": [{"args": args, "kwargs": {}}]}

    dropout = {"module": "keras.layers", "class_name": "Dropout", "config": {"rate": 0.1}}
    source = {"module": "keras.layers", "class_name": "InputLayer", "name": "d0", "inbound_nodes": []}
    chain = [{**source, "config": {"name": "d0", "batch_shape": [None, 4]}}, after("d1", "d0", dense)]
    chain += [after(f"d{i}", f"d{i - 1}", dropout) for i in range(2, 2000)]
    config = {"name": "deep", "layers": chain, "input_layers": ["d0", 0, 0], "output_layers": [f"d{1999}", 0, 0]}
    found = describe(check_architecture({"module": "keras", "class_name": "Functional", "config": config}))
    assert found.n_outputs == 1 and found.output_units == (None,)
