"""The operation import_file, in the sandbox: Keras' own files come in with the same bits, and hostile ones do not."""

import json

import keras
import numpy as np
import pytest

from madlib_mop.models.architecture import check_architecture
from tests.helpers.archives import HDF5, Entry, keras_archive
from tests.helpers.imports import (
    file_of_keras_3,
    imported_networks,
    legacy_weights,
    safetensors_of,
    saved,
    saved_weights,
)
from tests.helpers.inference import weights_of
from tests.helpers.security.hostile_files import HOSTILE
from tests.helpers.training import one_thread
from tests.helpers.unit.documents import dense, keras_3, layer
from tests.helpers.unit.trainer import Trainer, TrainerError

one_thread()
NETWORKS = imported_networks(keras)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def trainer():
    with Trainer(sandbox=True) as trainer:
        assert trainer.versions["seccomp"]
        yield trainer


def bring(trainer, file, arch=None, weights=None, by_name=False, skip_mismatch=False):
    """Import a file; return the answer and the weights."""
    header = {"op": "import_file", "arch": arch, "by_name": by_name, "skip_mismatch": skip_mismatch}
    answer, (imported,) = trainer.ask(header, [file] if weights is None else [file, weights])
    return answer, bytes(imported)


def refused(trainer, *args, **kwargs) -> TrainerError:
    """Import a file that must be refused; the trainer must live on."""
    with pytest.raises(TrainerError) as caught:
        bring(trainer, *args, **kwargs)
    assert caught.value.kind == "input"
    assert trainer.ask({"op": "stats"})
    return caught.value


def arch_of(model):
    return check_architecture(model.to_json())


def outputs(model, network):
    xs = [x.astype(tensor.dtype) for x, tensor in zip(network.xs, model.inputs, strict=True)]
    return keras.tree.flatten(model.predict_on_batch(xs[0] if len(xs) == 1 else xs))


@pytest.mark.one_case
@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_keras_come_in_with_the_predictions_of_keras_own_loading(trainer, name, tmp_path):
    network, path = NETWORKS[name], tmp_path / "model.keras"
    path.write_bytes(saved(network.model))
    answer, weights = bring(trainer, path.read_bytes())
    assert not answer["kept"] and not answer["unused"] and answer["additions"] == {}
    loaded = keras.saving.load_model(path)
    built = keras.models.model_from_json(answer["arch"])
    shapes = [tuple(shape) for _, shape in answer["weights"]]
    assert shapes == [weight.shape for weight in built.get_weights()]
    if name != "adapted_normalization":  # its statistics are in the architecture
        assert weights == weights_of(network.model)
    flat, arrays, at = np.frombuffer(weights, np.float32), [], 0
    for old in built.get_weights():
        arrays.append(flat[at : at + old.size].reshape(old.shape))
        at += old.size
    assert at == flat.size
    built.set_weights(arrays)
    for found, expected in zip(outputs(built, network), outputs(loaded, network), strict=True):
        assert np.array_equal(found, expected)


def test_a_compiled_model_with_its_optimizer_comes_in(trainer):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse", metrics=["mae"])
    model.fit(np.ones((8, 4)), np.ones((8, 3)), verbose=0)
    assert bring(trainer, saved(model))[1] == weights_of(model)
    assert bring(trainer, saved_weights(model), arch_of(model))[1] == weights_of(model)


def test_other_types_of_weights_become_float32(trainer):
    for dtype in ("float16", "bfloat16", "float64", "mixed_float16"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype=dtype)])
        assert bring(trainer, saved(model))[1] == weights_of(model), dtype


def test_layers_with_adapters_come_in(trainer):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, lora_rank=2)])
    kernel = keras.ops.convert_to_numpy(model.layers[0].kernel)
    answer, weights = bring(trainer, saved(model))
    assert np.allclose(np.frombuffer(weights, np.float32)[:12].reshape(4, 3), kernel) and answer["taken"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("write", [saved, saved_weights, legacy_weights, safetensors_of], ids=lambda w: w.__name__)
def test_weights_come_onto_an_architecture_by_order(trainer, name, write):
    model = NETWORKS[name].model
    if name == "adapted_normalization":
        pytest.skip("an architecture needs the statistics of its Normalization layers")
    if write is legacy_weights and name == "stacked_cells":
        pytest.skip("Keras gives two weights of it the same name, which a legacy file cannot hold")
    if write is safetensors_of and len({weight.path for weight in model.weights}) < len(model.weights):
        pytest.skip("several of its weights have the same path")
    answer, weights = bring(trainer, write(model), arch_of(model))
    assert weights == weights_of(model) and not answer["kept"] and not answer["unused"]


def two(first="a", second="b", units=3):
    """Return a model of two dense layers with random weights."""
    model = keras.Sequential([
        keras.Input((4,)), keras.layers.Dense(5, name=first), keras.layers.Dense(units, name=second),
    ])  # fmt: skip
    model.set_weights([np.random.default_rng(3).normal(size=w.shape).astype(np.float32) for w in model.get_weights()])
    return model


WRITERS = [saved, saved_weights, legacy_weights, safetensors_of]


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_layers_are_matched_by_name(trainer, write):
    source, target = two("a", "head"), two("new", "a", 5)
    target = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a"), keras.layers.Dense(2, name="new")])
    answer, weights = bring(trainer, write(source), arch_of(target), weights_of(target), by_name=True)
    first, kept = source.get_weights()[:2], target.get_weights()[2:]
    assert weights == b"".join(array.tobytes() for array in (*first, *kept))
    assert (answer["taken"], answer["kept"]) == (["a"], ["new"]) and "head" in " ".join(answer["unused"])
    drawn = bring(trainer, write(source), arch_of(target), by_name=True)[1]
    assert drawn[:100] == weights[:100] and drawn != weights
    assert drawn == bring(trainer, write(source), arch_of(target), by_name=True)[1]  # the same seed


def test_layers_of_nested_models_are_matched_with_the_names_of_their_models(trainer):
    model = NETWORKS["nested_models"].model
    answer, weights = bring(trainer, saved(model), arch_of(model), by_name=True)
    assert weights == weights_of(model)
    assert answer["taken"][:2] == ["middle/entry", "middle/innermost/deep"] and "deep" in answer["taken"]


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
@pytest.mark.parametrize("by_name", [False, True])
def test_other_shapes_are_one_clear_error_or_skipped(trainer, write, by_name):
    source, target = two(units=3), two(units=2)
    error = refused(trainer, write(source), arch_of(target), by_name=by_name)
    assert error.message == (
        "layer 'b' has weights of the shapes [5, 2] and [2], and the file has [5, 3] and [3]"
    )
    assert (error.sqlstate, "skip_mismatch => true" in error.hint) == ("22023", True)
    answer, weights = bring(
        trainer, write(source), arch_of(target), weights_of(target), by_name=by_name, skip_mismatch=True
    )
    assert (answer["taken"], answer["kept"]) == (["a"], ["b"])
    assert weights == b"".join(w.tobytes() for w in (*source.get_weights()[:2], *target.get_weights()[2:]))


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_missing_and_extra_layers_are_one_clear_error(trainer, write):
    one = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a")])
    missing = refused(trainer, write(one), arch_of(two()))
    extra = refused(trainer, write(two()), arch_of(one))
    for error in (missing, extra):
        assert "by_name => true" in error.hint and error.sqlstate == "22023"
    if write is legacy_weights:
        assert "the file has weights of 1 layers (a), and the model has 2 layers with weights (a, b)" in missing.message
    elif write is safetensors_of:
        assert "does not say the order of its weights" in missing.message
    else:
        assert missing.message == "the file has no weights for layer 'b' at layers/dense_1"
        assert extra.message == (
            "the file has weights of layers that the model does not have: layers/dense_1 (b)"
        )
    nothing = refused(trainer, write(two("x", "y")), arch_of(two()), by_name=True)
    assert nothing.message == "no layer of the file fits a layer of the model" and "the model has a, b" in nothing.hint


def test_a_legacy_file_of_fewer_layers_leaves_the_others(trainer):
    one = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a")])
    one.set_weights(two().get_weights()[:2])
    answer, weights = bring(trainer, legacy_weights(one), arch_of(two()), weights_of(two()), skip_mismatch=True)
    assert (answer["taken"], answer["kept"]) == (["a"], ["b"]) and weights == weights_of(two())
    answer, weights = bring(trainer, legacy_weights(two()), arch_of(one), skip_mismatch=True)
    assert (answer["taken"], answer["unused"]) == (["a"], ["b"]) and weights == weights_of(one)


def test_whole_models_of_keras_2_give_their_weights(trainer):
    assert bring(trainer, legacy_weights(two(), whole=True), arch_of(two()))[1] == weights_of(two())


def test_an_export_in_safetensors_has_its_order(trainer):
    model = NETWORKS["nested_models"].model
    header = {"op": "export_model", "model": {"arch": arch_of(model)}, "format": "safetensors", "inputs": ["x"],
              "outputs": ["y"], "additions": {}}  # fmt: skip
    file = bytes(trainer.ask(header, [weights_of(model)])[1][0])
    assert bring(trainer, file, arch_of(model))[1] == weights_of(model)
    renamed = keras.models.clone_model(model, clone_function=_renamed)
    assert bring(trainer, file, arch_of(renamed))[1] == weights_of(model)


def _renamed(one):
    return one if isinstance(one, keras.Model) else type(one).from_config(one.get_config() | {"name": f"{one.name}_2"})


def test_safetensors_without_an_order_need_names(trainer):
    error = refused(trainer, safetensors_of(two("x", "y")), arch_of(two()))
    assert "does not say the order of its weights" in error.message and "a/kernel" in error.hint


def test_an_older_file_without_names_says_so(trainer):
    arrays = {"layers/dense/vars/0": np.ones((4, 5), "f4"), "layers/dense/vars/1": np.ones(5, "f4")}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a")])
    assert bring(trainer, file_of_keras_3(arrays), arch_of(model))[1] == np.ones(25, "f4").tobytes()
    error = refused(trainer, file_of_keras_3(arrays | {"layers/dense_1/vars/0": np.ones(1, "f4")}), arch_of(model))
    assert "layers that the model does not have: layers/dense_1" in error.message
    with_group = file_of_keras_3(arrays, layers__input_layer="x")  # and none for the layer
    assert "does not have the names of its layers" in refused(trainer, with_group, arch_of(model), by_name=True).message


def test_files_of_keras_2_13_have_another_name_for_layers(trainer):
    place = "_layer_checkpoint_dependencies/dense/vars"
    arrays = {f"{place}/0": np.ones((4, 5), "f4"), f"{place}/1": np.ones(5, "f4")}
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a")])
    assert bring(trainer, file_of_keras_3(arrays), arch_of(model))[1] == np.ones(25, "f4").tobytes()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_before_a_number_is_read(trainer, name):
    file, text = HOSTILE[name]
    arch = keras_3(dense(3))
    error = refused(trainer, file, arch)
    assert error.sqlstate == "0A000" and text in error.message, error.message
    assert text in refused(trainer, keras_archive(arch, weights=file)).message
    assert text in refused(trainer, file, arch, by_name=True, skip_mismatch=True).message


@pytest.mark.slow
def test_damaged_files_are_one_clear_error(trainer):
    model = two()
    whole = saved_weights(model)
    for file in (HDF5, whole[:600], whole[:-40], whole[:64] + b"\xff" * 400 + whole[464:]):
        error = refused(trainer, file, arch_of(model))
        assert error.sqlstate in ("22P02", "0A000", "22023"), error.message
    rng = np.random.default_rng(1)
    for _ in range(150):
        place, value = int(rng.integers(8, len(whole))), int(rng.integers(256))
        changed = bytearray(whole)
        changed[place] = value
        try:
            weights = bring(trainer, bytes(changed), arch_of(model))[1]
        except TrainerError as error:
            assert error.kind == "input", error.message
        else:
            assert len(weights) == len(weights_of(model))


def test_a_file_that_is_no_model_is_refused(trainer):
    arch = keras_3(dense(3))
    for file in (saved_weights(two()), legacy_weights(two()), safetensors_of(two())):
        error = refused(trainer, file)
        assert "which is imported onto an architecture" in error.message and "import_weights" in error.hint
    assert "is a pickle" in refused(trainer, b"\x80\x04]\x94.", arch).message
    assert "Lambda is not allowed" in refused(trainer, keras_archive(keras_3(layer("Lambda")))).message
    assert "leaves the archive" in refused(trainer, keras_archive(arch, Entry("../x", b""))).message


def test_weights_that_no_value_holds_are_refused_without_memory_for_them(trainer):
    arch, text = keras_3(dense(300_000), input_shape=(300_000,)), "the model's weights have 360,001,200,000 bytes"
    onto = check_architecture(json.dumps(arch))  # whose layers may keep their own weights, if they go by name
    for error in (refused(trainer, keras_archive(arch)), refused(trainer, saved_weights(two()), onto, by_name=True)):
        assert text in error.message and "a value of PostgreSQL" in error.message


def test_an_architecture_that_does_not_build_is_one_clear_error(trainer):
    assert "units" in refused(trainer, keras_archive(keras_3(dense(-1)))).message


def test_what_an_export_added_comes_along(trainer):
    file = keras_archive(json.loads(two().to_json()), Entry("madlib_mop/signature.json", b"{}"))
    with pytest.raises(TrainerError, match="is damaged"):  # its weights are no file
        bring(trainer, file)
    weights = saved_weights(two())
    more = Entry("madlib_mop/signature.json", b"{}")
    assert bring(trainer, keras_archive(json.loads(two().to_json()), more, weights=weights))[0]["additions"] == {
        "signature.json": "{}"
    }
