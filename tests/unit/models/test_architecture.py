"""Architectures are copied by an allow-list; parts that could run code or open a file are rejected and do not run."""

import base64
import copy
import json
import marshal
import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.shapes import describe
from tests.helpers.unit.dangers import REFUSALS, Marker, dangerous
from tests.helpers.unit.documents import KERAS_2_1, KERAS_2_2_4_TF, KERAS_2_10, dense, keras_3, layer

DOCUMENTS = {"keras 3": keras_3(dense()), "2.1": KERAS_2_1, "2.2.4-tf": KERAS_2_2_4_TF, "2.10": KERAS_2_10}


@pytest.fixture
def marker(tmp_path):
    return Marker(tmp_path / "ran")


@pytest.mark.parametrize("name", REFUSALS)
def test_dangerous_constructs_are_refused_and_nothing_runs(name, marker, monkeypatch):
    document, opened = dangerous(marker)[name], []
    for module, function in ((marshal, "loads"), (pickle, "loads"), (pickle, "load")):
        monkeypatch.setattr(module, function, lambda *args, **kwargs: opened.append(args))
    with pytest.raises(MopError) as caught:
        check_architecture(json.dumps(document))
    assert isinstance(caught.value, Unsupported | UnreadableText)
    assert REFUSALS[name] in caught.value.message
    assert opened == [] and not marker.path.exists()


def test_each_danger_has_the_words_of_its_refusal(marker):
    assert REFUSALS.keys() == dangerous(marker).keys()


def test_what_is_refused_would_have_run(marker):
    """The payload of these tests works: unmarshalled and called, it creates the file."""
    code = marshal.loads(base64.b64decode(marker.code))
    type(lambda: None)(code, {"open": open})(1)
    assert marker.path.exists()


def test_augmix_is_refused_because_its_chance_is_not_in_the_state():
    with pytest.raises(Unsupported, match="AugMix is not allowed: it draws from Python's global generator"):
        check_architecture(keras_3(layer("AugMix"), layer("Flatten"), dense()))


def test_stateful_layers_are_refused_wherever_they_are():
    stateful = layer("LSTM", units=3, stateful=True)
    for document in (keras_3(stateful), keras_3(layer("Bidirectional", layer=stateful)), keras_3(keras_3(stateful))):
        with pytest.raises(Unsupported, match="stateful=True is not supported") as caught:
            check_architecture(document)
        assert caught.value.hint == "Set stateful=False."
    check_architecture(keras_3(layer("LSTM", units=3, stateful=False)))


def test_what_was_not_checked_is_not_handed_on(marker):
    document = keras_3({**dense(), "unknown": marker.lambda_config, "build_config": {"x": marker.lambda_config}})
    document["compile_config"] = {"loss": marker.lambda_config}
    document["more"] = marker.lambda_config
    checked = check_architecture(document)
    assert "__lambda__" not in json.dumps(checked)
    assert checked == check_architecture(keras_3(dense()))


@pytest.mark.parametrize(
    "text",
    ["null", "[]", "{}", "1", '"Sequential"', "[1, 2]", "{", "", "NaN", '{"class_name": null}',
     '{"class_name": "Sequential"}',
     '{"class_name": "Sequential", "config": {"name": "s", "layers": []}}', '{"config": [1, 2, 3]}',
     '{"class_name": "Sequential", "config": null}', '{"class_name": "Sequential", "config": [1]}',
     '{"class_name": "Functional", "config": {"layers": [1]}}'],
)  # fmt: skip
def test_what_is_no_model_is_unreadable(text):
    with pytest.raises(UnreadableText) as caught:
        check_architecture(text)
    assert caught.value.sqlstate == "22P02"
    assert "model_arch" in caught.value.message


def test_a_bare_layer_is_no_model():
    with pytest.raises(UnreadableText, match="single layer"):
        check_architecture(dense())


def test_a_model_without_input_shape_is_refused():
    document = keras_3(dense())
    del document["config"]["layers"][0]
    with pytest.raises(Unsupported, match="no input shape"):
        check_architecture(document)
    document["config"]["build_input_shape"] = [None, 4]
    assert check_architecture(document)["config"]["build_input_shape"] == [None, 4]


def test_unknown_names_get_a_close_match():
    for document, match in (
        (keras_3(layer("Dnese", units=3)), "Did you mean Dense?"),
        (keras_3(dense(activation="rleu")), "Did you mean relu?"),
        (keras_3(dense(kernel_initializer="glorot")), "glorot_"),
        (keras_3(dense(kernel_regularizer={"class_name": "L3", "config": {}})), "Allowed: L1"),
        (keras_3(dense(dtype="float31")), "Did you mean float"),
    ):
        with pytest.raises(Unsupported) as caught:
            check_architecture(document)
        assert match in caught.value.hint


def test_depth_length_and_number_of_layers_are_limited(monkeypatch):
    with pytest.raises(UnreadableText, match="nested too deeply"):
        check_architecture('{"class_name":' * 100_000)
    deep = keras_3(dense())
    for level in range(120):
        deep = keras_3(deep, name=f"m{level}")
    with pytest.raises(Unsupported, match="nested more than"):
        check_architecture(deep)
    for depth in (150, 700):
        value = "[" * depth + "]" * depth
        for document in (keras_3(dense(units="?")), {**KERAS_2_1, "config": "?"}, {**KERAS_2_10, "config": "?"}):
            with pytest.raises((Unsupported, UnreadableText)):
                check_architecture(json.dumps(document).replace('"?"', value))
    monkeypatch.setattr("madlib_mop.models.architecture.MAX_LAYERS", 50)
    with pytest.raises(Unsupported, match="more than 50 layers"):
        check_architecture(keras_3(*[dense()] * 60))
    monkeypatch.setattr("madlib_mop.models.architecture.MAX_JSON_LENGTH", 100)
    with pytest.raises(Unsupported, match="longer than 100"):
        check_architecture(keras_3(dense()))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_checked_architecture_checks_again_to_the_same(name):
    checked = check_architecture(json.dumps(DOCUMENTS[name]))
    assert check_architecture(checked) == checked
    assert check_architecture(json.dumps(checked)) == checked


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_that_was_given_is_left_as_it_was(name):
    document = copy.deepcopy(DOCUMENTS[name])
    check_architecture(document)
    assert document == DOCUMENTS[name]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["relu", "Dense", "Sequential", "keras", "function"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["class_name", "config", "module", "layers", "name", "activation"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(_JSON, _JSON)
def test_any_json_is_checked_or_refused_in_one_way(document, inner):
    for candidate in (document, keras_3(dense(x=inner)), {**keras_3(), "config": document}):
        try:
            check_architecture(json.dumps(candidate))
        except (UnreadableText, Unsupported):
            pass


def test_inputs_and_outputs_are_described():
    found = describe(check_architecture(KERAS_2_10))
    assert (found.n_inputs, found.n_outputs) == (2, 2)
    assert found.input_names == ("words", "numbers")
    assert found.input_shapes == ((6,), (4,))
    assert found.output_names == ("kind", "amount")
    assert found.output_units == (3, 1)
    found = describe(check_architecture(KERAS_2_2_4_TF))
    assert (found.input_names, found.input_shapes, found.output_units) == (("conv2d_input",), ((8, 8, 1),), (3,))


def test_units_are_found_behind_layers_that_keep_them():
    found = describe(
        check_architecture(keras_3(dense(5), layer("Dropout", rate=0.5), layer("Activation", activation="softmax")))
    )
    assert found.output_units == (5,)
    assert describe(check_architecture(keras_3(layer("Flatten"), name="x"))).output_units == (None,)
    moved = keras_3(dense(2), layer("Rescaling", scale=1.0, offset=[0.5, -0.5]), layer("Softmax"))
    assert describe(check_architecture(moved)).output_units == (2,)
    nested = keras_3(keras_3(dense(7), name="inner"), layer("Softmax"))
    assert describe(check_architecture(nested)).output_units == (7,)


def test_each_model_within_a_model_is_looked_at_once():
    """Otherwise each level doubles the time, and this test does not end."""
    deep = keras_3(dense(7, activation="relu"))
    for level in range(45):
        deep = keras_3(deep, name=f"m{level}")
    found = describe(check_architecture(deep))
    assert (found.output_units, found.output_activations) == ((7,), ("relu",))
    both = _of_two_outputs({"class_name": "Dense", "config": {"name": "inner", "units": 3}}, outputs=(0, 0))
    for _ in range(40):
        both = _of_two_outputs(both, outputs=(0, 1))
    assert describe(check_architecture(both)).output_units == (3, 3)


def _of_two_outputs(inner, outputs):
    """Return a functional model, in Keras 2's form, with two means of two outputs of an inner layer or model."""
    start = {"class_name": "InputLayer", "name": "in", "config": {"batch_input_shape": [None, 3], "name": "in"}}
    means = [["inner", 0, number, {}] for number in outputs]
    averages = [
        {"class_name": "Average", "name": name, "config": {"name": name}, "inbound_nodes": [means]}
        for name in ("left", "right")
    ]
    layers = [start, {**inner, "name": "inner", "inbound_nodes": [[["in", 0, 0, {}]]]}, *averages]
    config = {
        "name": "inner",
        "layers": [{"inbound_nodes": [], **one} for one in layers],
        "input_layers": [["in", 0, 0]],
        "output_layers": [["left", 0, 0], ["right", 0, 0]],
    }
    return {"class_name": "Functional", "config": config}


def _with_inner(model_trainable, layers_trainable):
    inner = keras_3(*(dense(name=f"d{n}", trainable=value) for n, value in enumerate(layers_trainable)))
    inner["config"]["name"] = "inner"
    inner["config"]["trainable"] = model_trainable
    return keras_3(inner, dense(name="head"))


@pytest.mark.parametrize(
    ("model_trainable", "given", "wanted"),
    [
        (False, (True, True), (False, False)),
        (True, (True, True), (True, True)),
        (False, (False, True), (False, True)),
    ],
)
def test_a_nested_model_that_is_frozen_freezes_its_layers(model_trainable, given, wanted):
    """Unless some layers have `trainable` themselves: then Keras wrote the JSON, and trains the others."""
    checked = check_architecture(_with_inner(model_trainable, given))
    inner = next(one for one in checked["config"]["layers"] if one["config"]["name"] == "inner")
    layers = [one["config"]["trainable"] for one in inner["config"]["layers"] if one["class_name"] == "Dense"]
    assert tuple(layers) == wanted and check_architecture(checked) == checked


@pytest.mark.parametrize("odd", [{}, [], {"class_name": "x"}, None, 7])
def test_names_that_are_no_texts_are_one_clear_error(odd):
    function = {"class_name": "function", "module": "builtins", "config": odd}
    array = {"class_name": "__numpy__", "config": {"value": [1], "dtype": odd}}
    tensor = {"class_name": "__keras_tensor__", "config": {"shape": [None, 2], "dtype": odd, "keras_history": []}}
    nodes = {**dense(), "inbound_nodes": [{"args": [tensor], "kwargs": {}}]}
    for one in (layer("Activation", activation=function), layer("Normalization", mean=array), nodes):
        with pytest.raises(MopError):
            check_architecture(json.dumps(keras_3(one)))


@pytest.mark.parametrize("odd", [{}, [], ["Dense"], None, 7])
def test_a_class_that_is_no_text_is_named_with_its_place(odd):
    with pytest.raises(UnreadableText, match="model_arch: layer 2 is not a layer or object of Keras"):
        check_architecture(json.dumps(keras_3({**dense(), "class_name": odd})))


def test_very_many_empty_objects_are_refused_before_they_are_read():
    """Each needs 64 bytes of memory for its two characters."""
    text = json.dumps(keras_3(dense())).replace('"layers": [', '"layers": [' + "{}, " * 1_100_000)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableText, match="1,100,0.. lists and objects, and may have 1,000,000"):
            check_architecture(text)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_has_not_is_named_with_its_layer(word):
    """Keras writes Masking(nan) so."""
    inner = keras_3(layer("Masking", mask_value=0.25, name="mask"))
    for document, place in ((keras_3(layer("Masking", mask_value=0.25, name="mask"), dense()), "layer 'mask'"),
                            (keras_3(inner, dense()), "layer 'mask'"),
                            (keras_3(layer("Rescaling", scale=[1, 0.25], name="s")), "layer 's'")):
        text = json.dumps(document).replace("0.25", word)
        with pytest.raises(UnreadableText, match=f"model_arch: {place}: (mask_value|scale) is {word}, which is no"):
            check_architecture(text)
    with pytest.raises(UnreadableText, match="model_arch: a value is NaN"):
        check_architecture("NaN")
