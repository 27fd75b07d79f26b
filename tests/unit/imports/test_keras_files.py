"""A .keras file: its architecture is checked as every other one, whatever the rest of the file says."""

import json

import pytest

from madlib_mop.errors import MopError, UnreadableText, Unsupported
from madlib_mop.imports.keras_files import read_keras_file, read_weights
from madlib_mop.models.architecture import check_architecture
from tests.helpers.archives import HDF5, METADATA, Entry, keras_archive, zip_of
from tests.helpers.unit.dangers import Marker, dangerous
from tests.helpers.unit.documents import KERAS_2_10, dense, keras_3, layer


def test_a_file_is_read():
    additions = {"madlib_mop/signature.json": b"{}", "madlib_mop/README.md": "# Kärtchen".encode()}
    file = read_keras_file(keras_archive(None, *(Entry(name, data) for name, data in additions.items())))
    assert file.arch == check_architecture(keras_3(dense(3))) and bytes(file.weights) == HDF5
    assert file.additions == {"signature.json": "{}", "README.md": "# Kärtchen"}


@pytest.mark.parametrize("name, version", [("Lambda", "3.15.1"), ("bare lambda", ""), ("Lambda of Keras 2", "2.13.1")])
def test_dangerous_architectures_are_refused_and_nothing_runs(name, version, tmp_path):
    marker = Marker(tmp_path / "ran")
    metadata = json.dumps({"keras_version": version}).encode()
    with pytest.raises(Unsupported, match=r"^config\.json: .*ambda\S* is not allowed: it contains Python code"):
        read_keras_file(keras_archive(dangerous(marker)[name], metadata=metadata))
    assert not marker.path.exists()


def test_a_lambda_three_models_deep_is_refused(tmp_path):
    marker = Marker(tmp_path / "ran")
    document = keras_3(layer("Lambda", name="evil", function=marker.lambda_config), name="third")
    for name in ("second", "first"):
        document = keras_3(document, name=name)
    place = r"config.json: layer 2 \(second\): layer 2 \(third\): layer 2: Lambda is not allowed"
    with pytest.raises(Unsupported, match=place):
        read_keras_file(keras_archive(document))
    assert not marker.path.exists()


def test_compile_parameters_are_left_out(tmp_path):
    marker = Marker(tmp_path / "ran")
    document = keras_3(dense(3)) | {"compile_config": {"loss": marker.lambda_config}}
    assert "__lambda__" not in json.dumps(read_keras_file(keras_archive(document)).arch)


def test_a_registered_class_is_refused():
    with pytest.raises(Unsupported, match="registered classes cannot be used. Received: 'mine>Dense'"):
        read_keras_file(keras_archive(keras_3(dense(3) | {"registered_name": "mine>Dense"})))


def test_files_of_keras_2_are_translated():
    old = {key: value for key, value in KERAS_2_10.items() if key != "keras_version"}
    metadata = json.dumps({"keras_version": "2.13.1"}).encode()
    assert read_keras_file(keras_archive(old, metadata=metadata)).arch["module"].startswith("keras")


@pytest.mark.parametrize("data, text", [
    (zip_of(Entry("config.json", b"{}")), "it has no model.weights.h5"),
    (zip_of(Entry("model.weights.h5", HDF5)), "it has no config.json"),
    (keras_archive(b"{"), "config.json is not JSON"),
    (keras_archive(b"null"), "config.json is not a Keras model"),
    (keras_archive(b"\xff\xfe"), "config.json of the zip archive is not text in UTF-8"),
    (keras_archive(b"[" * 100_000), "config.json is not JSON"),
    (keras_archive(metadata=b"[]"), "metadata.json of the zip archive is not a JSON object"),
    (keras_archive(metadata=b"["), "metadata.json of the zip archive is not a JSON object"),
    (keras_archive(b"{", metadata=b'{"keras_version": "2.13"}'), "config.json of the zip archive is not JSON"),
    (keras_archive(weights=b"\x80\x04]\x94."), "model.weights.h5: the file is a pickle"),
    (keras_archive(weights=b"PK\x03\x04" + bytes(30)), "model.weights.h5 is not an HDF5 file"),
    (keras_archive(weights=b""), "model.weights.h5: the file is empty"),
    (keras_archive(None, Entry("assets/vocabulary.txt", b"a")), "it has a member 'assets/vocabulary.txt'"),
    (keras_archive(None, Entry("code/data.py", b"a")), "it has a member 'code/data.py'"),
    (keras_archive(None, Entry("model.weights.npz", b"a")), "it has a member 'model.weights.npz'"),
])  # fmt: skip
def test_what_is_no_keras_file_is_one_clear_error(data, text):
    with pytest.raises(MopError, match=text):
        read_keras_file(data)


@pytest.mark.parametrize("names", [
    ["archive/data.pkl", "archive/byteorder", "archive/data/0"],
    ["m/models/model.json", "m/archive_format", "m/data/weights/weight_0"],
    ["m/version", "m/.data/serialization_id"],
    ["archive/data.pkl", *(f"archive/data/{number}" for number in range(100))],
])  # fmt: skip
def test_files_of_pytorch_are_refused_by_name(names):
    for read in (read_keras_file, read_weights):
        with pytest.raises(Unsupported, match="the file is PyTorch's"):
            read(zip_of(*(Entry(name, b"a") for name in names)))


def test_weights_are_read_without_their_architecture():
    assert bytes(read_weights(keras_archive(keras_3(layer("Lambda"))))) == HDF5
    with pytest.raises(UnreadableText, match="it has no model.weights.h5"):
        read_weights(zip_of(Entry("metadata.json", METADATA)))
