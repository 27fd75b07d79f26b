"""Exported files that are damaged, or lie about their size: each is one of our errors, and takes little memory."""

import hashlib
import io
import json
import random
import re
import resource
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from madlib_mop.client import load_exported
from madlib_mop.client.exported import runners
from madlib_mop.client.exported.weights import read_safetensors
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText, Unsupported
from madlib_mop.exports.formats import archive, onnx_with
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature
from tests.helpers.damage import damaged_bytes, damaged_json
from tests.helpers.inference import weights_of
from tests.helpers.training import one_thread, quiet_keras

one_thread()
keras = quiet_keras()
from keras import layers  # noqa: E402

_MB = 1 << 20


def _models() -> Iterator[tuple[keras.Model, tuple[str, ...]]]:
    """Yield models with the names of their input layers."""
    numbers, words = keras.Input((3,), name="numbers"), keras.Input((2,), dtype="int32", name="words")
    joined = layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(5, 2)(words))])
    joined = layers.Dense(4, "gelu")(joined) + 1.0
    outputs = [layers.Dense(2, "softmax", name="a")(joined), layers.Dense(1, name="b")(joined)]
    yield keras.Model([numbers, words], outputs), ("numbers", "words")
    last = layers.Dense(2, "softmax", name="a")
    yield keras.Sequential([keras.Input((8, 8, 1), name="x"), layers.Conv2D(2, 3), layers.Flatten(), last]), ("x",)
    last = layers.Dense(2, name="a")
    yield keras.Sequential([keras.Input((5, 3), name="x"), layers.BatchNormalization(), layers.LSTM(4), last]), ("x",)


def _signature(model: keras.Model, names: tuple[str, ...]) -> Signature:
    inputs = zip(names, model.inputs, strict=True)
    return Signature(
        "m", "1.1.0", hashlib.sha256(weights_of(model)).hexdigest(), None,
        tuple(ModelInput(name, name, str(one.dtype), tuple(one.shape), None) for name, one in inputs),
        tuple(ModelOutput(name, name, name, "text", ("u", "v") if one.shape[-1] == 2 else None)
              for name, one in zip("ab", model.outputs, strict=False)),
    )  # fmt: skip


def _members(model: keras.Model, path: Path) -> dict[str, bytes]:
    model.save(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Return models, with the members of their files and their signatures."""
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    return [(model, _members(model, path), _signature(model, names)) for model, names in _models()]


def _use(path: Path, model: keras.Model) -> None:
    loaded = load_exported(path, "keras")
    rows = [np.ones((2, *one.shape[1:]), np.float32) for one in model.inputs]
    loaded.predict(rows if len(rows) > 1 else rows[0])


def _damaged(rng: random.Random, members: dict[str, bytes], signature: str) -> tuple[bytes, str]:
    """Return a file, and the signature beside it."""
    kind = rng.choice(("archive", "weights", "architecture", "text", "signature", "beside"))
    members, beside = dict(members), signature
    if kind == "weights":
        members["model.weights.h5"] = damaged_bytes(rng, members["model.weights.h5"])
    elif kind == "architecture":
        members["config.json"] = damaged_json(rng, members["config.json"]).encode()
    elif kind == "text":
        members["config.json"] = damaged_bytes(rng, members["config.json"])
    elif kind == "signature":
        signature = damaged_json(rng, signature)
    elif kind == "beside":
        beside = damaged_json(rng, signature)
    data = archive(members, {"signature.json": signature})
    return (damaged_bytes(rng, data) if kind == "archive" else data), beside


@pytest.mark.parametrize("n_files", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_checked", [True, False], ids=["digest", "own digest"])
def test_damaged_files_are_one_of_our_errors(exports, tmp_path, monkeypatch, n_files, is_checked):
    """Without the digest of the weights too: who writes a file writes its digest."""
    if not is_checked:
        check = runners.check_signature
        monkeypatch.setattr(runners, "check_signature", lambda sig, arch, _: check(sig, arch, sig.weights_digest))
    rng, n_refused = random.Random(n_files), 0
    for _ in range(n_files):
        model, members, signature = rng.choice(exports)
        data, beside = _damaged(rng, members, signature.to_json())
        (tmp_path / "model.keras").write_bytes(data)
        (tmp_path / "signature.json").write_text(beside)
        path = tmp_path if beside != signature.to_json() or rng.random() < 0.2 else tmp_path / "model.keras"
        try:
            _use(path, model)
        except MopError as error:
            n_refused += 1
            assert error.message and "Traceback" not in error.message
    assert n_refused > n_files // 2


def test_undamaged_files_are_used(exports, tmp_path):
    for model, members, signature in exports:
        (tmp_path / "model.keras").write_bytes(archive(members, {"signature.json": signature.to_json()}))
        _use(tmp_path / "model.keras", model)


def test_damaged_safetensors_are_one_of_our_errors():
    from safetensors.numpy import save

    metadata = {"architecture": "{}", "weights": json.dumps(["a", "b"])}
    data = save({"a": np.ones((3, 4), np.float32), "b": np.zeros(4, np.float16)}, metadata)
    assert len(read_safetensors(data)[1]) == 64
    rng, n_refused = random.Random(2), 0
    for _ in range(2000):
        try:
            read_safetensors(damaged_bytes(rng, data))
        except MopError:
            n_refused += 1
    assert n_refused > 500


def _memory_mb(path: Path, error: type[MopError], text: str) -> float:
    """Return by how much loading a file, which must be refused, grew the largest memory of this process, in MB."""
    before = _peak_mb()
    with pytest.raises(error, match=text):
        load_exported(path, "keras")
    return _peak_mb() - before


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_one_changed_number_of_an_architecture_takes_no_memory(exports, tmp_path):
    """A network of 29 GB and one of 600 MB, each with a file of 20 KB."""
    _, members, signature = exports[1]
    for units, text in ((100_000_000, "the model's weights have .* a value of PostgreSQL"),
                        (2_000_000, "the model's weights have [0-9,]+ bytes, and the file has [0-9,]+ bytes")):
        config = members["config.json"].replace(b'"units": 2,', f'"units": {units},'.encode())
        assert config != members["config.json"]
        path = tmp_path / "model.keras"
        path.write_bytes(archive({**members, "config.json": config}, {"signature.json": signature.to_json()}))
        assert _memory_mb(path, InvalidParameter, text) < 100


def test_compressed_weights_are_refused_before_they_are_read(exports, tmp_path):
    _, members, signature = exports[1]
    file = io.BytesIO()
    with h5py.File(file, "w") as weights:
        shape = (1 << 10, 1 << 16)
        one = weights.create_dataset("layers/dense/vars/0", shape, "f4", chunks=(64, 1 << 16), compression="gzip")
        one[:64] = 0
    path = tmp_path / "model.keras"
    members = {**members, "model.weights.h5": file.getvalue()}
    path.write_bytes(archive(members, {"signature.json": signature.to_json()}))
    assert _memory_mb(path, Unsupported, "has a filter, such as compression") < 100


def _sharing_one_text(data: bytes, n_bytes: int, n_short: int = 1) -> bytes:
    """Return an HDF5 file whose texts of ``n_short`` bytes are all the same text, the one that has so many bytes.

    The attributes have the length of each text, the address of the heap that has it, and its number there.
    """

    def in_a_heap(found: re.Match) -> bool:
        address = int.from_bytes(found[0][4:12], "little")
        return data[address : address + 4] == b"GCOL"

    place = rb".{4}\0{4}.{4}"
    found = re.finditer(struct.pack("<I", n_bytes) + place, data, re.DOTALL)
    (long,) = [one[0] for one in found if in_a_heap(one)]
    short = re.compile(struct.pack("<I", n_short) + place, re.DOTALL)
    return short.sub(lambda one: long if in_a_heap(one) else one[0], data)


@pytest.mark.parametrize("attribute", ["name of each layer", "type of an array"])
def test_texts_of_weights_that_are_all_the_same_bytes_are_not_copied(exports, tmp_path, attribute):
    """A file of 4 MB, of which a gigabyte or more could be read."""
    _, members, signature = exports[1]
    file, text = io.BytesIO(members["model.weights.h5"]), h5py.string_dtype()
    long, n_bytes = "x" * (4 * _MB), 4 * _MB
    with h5py.File(file, "r+") as weights:
        if attribute == "type of an array":
            weights.create_dataset("layers/more/vars/0", (1,), np.dtype("V2"))
            weights["layers/more/vars/0"].attrs.create("dtype", [long, *["a"] * 400], dtype=text)
        else:
            for number in range(400):
                place = f"layers/more_{number}/vars"
                weights[f"{place}/0"] = np.zeros(1, np.float32)
                weights[place].attrs["name"] = "a" if number else long
    path = tmp_path / "model.keras"
    members = {**members, "model.weights.h5": _sharing_one_text(file.getvalue(), n_bytes)}
    path.write_bytes(archive(members, {"signature.json": signature.to_json()}))
    assert _memory_mb(path, Unsupported, "is not a name|has more than 1,000 characters") < 200


def test_names_of_layers_are_not_read_at_the_client(exports, tmp_path):
    """Only files of the legacy form have them, and a .keras file is none: the list would take 1.6 GB here."""
    _, members, signature = exports[1]
    file, long = io.BytesIO(members["model.weights.h5"]), "x" * (4 * _MB)
    with h5py.File(file, "r+") as weights:
        weights.attrs.create("layer_names", [long, *["ab"] * 400], dtype=h5py.string_dtype())
    path = tmp_path / "model.keras"
    members = {**members, "model.weights.h5": _sharing_one_text(file.getvalue(), len(long), 2)}
    path.write_bytes(archive(members, {"signature.json": signature.to_json()}))
    before = _peak_mb()
    load_exported(path, "keras")
    assert _peak_mb() - before < 200


def test_a_class_of_very_many_digits_is_not_written_out(exports, tmp_path):
    _, members, signature = exports[1]
    output = replace(signature.outputs[0], sql_type="numeric", classes=("1e2000000", "2"))
    path = tmp_path / "model.keras"
    text = replace(signature, outputs=(output,)).to_json()
    path.write_bytes(archive(members, {"signature.json": text}))
    assert _memory_mb(path, InvalidParameter, "has classes of 'a' that are no 'numeric'") < 20


@pytest.mark.parametrize("name", ["config.json", "madlib_mop/signature.json"])
def test_members_that_expand_very_much_are_not_inflated(exports, tmp_path, name):
    _, members, signature = exports[1]
    members = {**members, "madlib_mop/signature.json": signature.to_json().encode(), name: bytes(60 * _MB)}
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for member, data in members.items():
            file.writestr(member, data)
    assert _memory_mb(path, Unsupported, f"{name} expands from") < 50


def test_texts_beside_a_model_have_a_largest_size(exports, tmp_path):
    _, members, signature = exports[1]
    (tmp_path / "model.keras").write_bytes(archive(members, {"signature.json": signature.to_json()}))
    with open(tmp_path / "signature.json", "wb") as file:
        file.truncate((64 << 20) + 1)  # takes no space on the disk
    assert _memory_mb(tmp_path, InvalidParameter, "signature.json has 67,108,865 bytes, and an exported file") < 50


def test_a_document_of_very_many_empty_lists_is_not_parsed(exports, tmp_path):
    _, members, signature = exports[1]
    text = json.dumps({"inputs": []}).replace("[]", "[" + "[]," * (20 * _MB) + "[]]")
    (tmp_path / "signature.json").write_text(text)
    (tmp_path / "model.keras").write_bytes(archive(members, {"signature.json": signature.to_json()}))
    assert _memory_mb(tmp_path, UnreadableText, "signature is damaged") < 500


def test_a_number_of_many_bytes_in_an_onnx_file_is_one_clear_error(tmp_path):
    """Protobuf has numbers of 64 bits. One of megabytes would take hours, because each byte makes it longer."""
    (tmp_path / "model.onnx").write_bytes(onnx_with(b"\x08" + b"\xff" * 30 + b"\x01", {"signature.json": "[]"}))
    with pytest.raises(UnreadableText, match="model.onnx is damaged, or no file of a model"):
        load_exported(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(onnx_with(b"", {"signature.json": "[]"}))
    with pytest.raises(UnreadableText, match="model.onnx: the signature is damaged"):
        load_exported(tmp_path / "model.onnx")
