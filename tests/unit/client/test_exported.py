"""Loading exported models without a database: no code of a file is run, and each fault is one clear error."""

import hashlib
import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from madlib_mop.client import load_exported
from madlib_mop.client.exported.model import ExportedModel
from madlib_mop.client.frames.columns import read_frame
from madlib_mop.client.frames.raw import raw_columns
from madlib_mop.errors import InvalidParameter, MopError, UnreadableText, Unsupported
from madlib_mop.exports.formats import archive
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature
from tests.helpers.inference import weights_of

SIGNATURE = Signature(
    "m", "1.1.0", "00", None, (ModelInput("x", "x", "float32", (None, 3), None),),
    (ModelOutput("y", "y", "y", "text", ("a", "b")),),
)  # fmt: skip


def keras_file(path, layers):
    """Write a .keras file with these layers and weights of none of them."""
    config = {"module": "keras", "class_name": "Sequential", "registered_name": None,
              "config": {"name": "s", "trainable": True, "layers": layers}}  # fmt: skip
    members = {"metadata.json": b'{"keras_version": "3.15.1", "date_saved": ""}', "model.weights.h5": b""}
    members["config.json"] = json.dumps(config).encode()
    path.write_bytes(archive(members, {"signature.json": SIGNATURE.to_json()}))


def test_a_file_with_code_is_refused_before_keras_sees_it(tmp_path):
    path = tmp_path / "model.keras"
    config = {"name": "evil", "function": {"class_name": "__lambda__", "config": {"code": "4w=="}}}
    lambda_layer = {"module": "keras.layers", "class_name": "Lambda", "registered_name": None, "config": config}
    keras_file(path, [lambda_layer])
    with pytest.raises(Unsupported, match="Lambda") as caught:
        load_exported(path)
    assert "Python code" in str(caught.value)


def exported(keras, path, change=lambda config: config):
    """Write a .keras file of a model in a model, as an export does, with another config.json; return the model."""
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu")], name="inner")
    model = keras.Sequential([keras.Input((3,), name="x"), inner, keras.layers.Dense(2, "softmax", name="y")])
    model.save(path)
    members = members_of(path)
    members["config.json"] = json.dumps(change(json.loads(members["config.json"]))).encode()
    path.write_bytes(archive(members, {"signature.json": signature_of(model).to_json()}))
    return model


def signature_of(model) -> Signature:
    """Return the signature with the digest of a model's weights."""
    return replace(SIGNATURE, weights_digest=hashlib.sha256(weights_of(model)).hexdigest())


def members_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if not name.startswith("madlib_mop/")}


def test_what_the_check_leaves_out_of_a_file_never_reaches_keras(tmp_path, monkeypatch, keras):
    """Keras would make any of its objects of the compile_config of a model in a model."""
    def change(config):
        function = {"module": "keras.ops", "class_name": "function", "config": "exp", "registered_name": "exp"}
        loss = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "evil", "function": function},
                "registered_name": None}  # fmt: skip
        (inner,) = [one for one in config["config"]["layers"] if one["config"]["name"] == "inner"]
        inner["compile_config"] = {"loss": loss}
        return config

    made = []
    monkeypatch.setattr(keras.layers.Lambda, "from_config", classmethod(lambda cls, *_, **__: made.append(cls)))
    model = exported(keras, tmp_path / "model.keras", change)
    rows = np.ones((2, 3), np.float32)
    found = load_exported(tmp_path / "model.keras").predict_proba(rows)
    np.testing.assert_allclose(found.to_numpy(), model.predict(rows, verbose=0), atol=1e-6)
    assert made == []


def test_a_damaged_file_of_keras_is_one_clear_error(tmp_path, keras):
    path = tmp_path / "model.keras"
    model = exported(keras, path)
    members, additions = members_of(path), {"signature.json": signature_of(model).to_json()}
    weights = members["model.weights.h5"]
    for damaged, text in (
        (b"", "model.weights.h5: the file is empty"),
        (weights[: len(weights) // 2], "the HDF5 file is damaged"),
        (b"no", "model.weights.h5: the file is neither"),
    ):
        path.write_bytes(archive({**members, "model.weights.h5": damaged}, additions))
        with pytest.raises(UnreadableText, match=f"model.keras: {text}") as caught:
            load_exported(path)
        assert "Export the model again" in caught.value.__notes__[0]
    for damaged, text in (
        ({"config.json": members["config.json"]}, "it has no model.weights.h5"),
        ({**members, "config.json": b"\xff"}, "config.json of the zip archive is not text in UTF-8"),
    ):
        path.write_bytes(archive(damaged, additions))
        with pytest.raises(UnreadableText, match=f"model.keras: .*{text}"):
            load_exported(path)


def test_a_file_that_expands_too_much_is_not_read(tmp_path, keras):
    path = tmp_path / "model.keras"
    exported(keras, path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data if name != "model.weights.h5" else bytes(2 << 20))
    with pytest.raises(Unsupported, match="model.weights.h5 expands from"):
        load_exported(path)


def test_damaged_additions_are_one_clear_error(tmp_path):
    path = tmp_path / "model.keras"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("madlib_mop/signature.json", SIGNATURE.to_json())
    cut, encrypted, unknown = (bytearray(file.getvalue()) for _ in range(3))
    start = cut.index(b"signature.json") + len("signature.json")
    cut[start : start + 8] = b"\xff" * 8
    directory = cut.index(b"PK\x01\x02")
    for at in (6, directory + 8):
        encrypted[at] |= 1
    for at in (8, directory + 10):
        unknown[at] = 99
    for damaged in (cut, encrypted, unknown):
        path.write_bytes(damaged)
        with pytest.raises((UnreadableText, Unsupported), match="model.keras is damaged"):
            load_exported(path)
    (tmp_path / "signature.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableText, match="are damaged"):
        load_exported(tmp_path)


def test_outputs_of_no_class_have_no_column():
    (one,) = SIGNATURE.outputs
    for classes, names in (((None, "a", None, None), [None, "a"]), (("a", "b", None, None), ["a", "b"])):
        model = ExportedModel.__new__(ExportedModel)
        model.path = "model.keras"
        model.signature = replace(SIGNATURE, outputs=(replace(one, classes=classes),))
        model.preprocessor, model._runner = None, Scores()
        found = model.predict_proba(np.ones((1, 3), np.float32))
        assert found.columns.tolist() == names
        assert found.to_numpy().tolist() == [[np.float32(0.4), np.float32(0.3)]]


def test_a_row_of_nan_has_no_class():
    model = ExportedModel.__new__(ExportedModel)
    model.signature, model.preprocessor = SIGNATURE, None
    model.run = lambda tensors: [np.array([[np.nan, np.nan], [np.nan, 0.1], [0.5, 0.5]], np.float32)]
    found = model.predict(np.ones((3, 3), np.float32))
    assert found.isna().tolist() == [True, False, False] and found.tolist()[1:] == ["b", "a"]


class Scores:
    """A runner with four outputs."""

    def run(self, xs):
        return [np.array([[0.4, 0.3, 0.2, 0.1]], np.float32)]


def test_faults_are_one_clear_error(tmp_path):
    with pytest.raises(InvalidParameter, match="is no exported model"):
        load_exported(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InvalidParameter, match="has no ending of an exported model"):
        load_exported(tmp_path / "model.bin")
    (tmp_path / "model.onnx").write_bytes(b"no")
    with pytest.raises(MopError, match="model.onnx is damaged"):
        load_exported(tmp_path / "model.onnx")
    (tmp_path / "signature.json").write_text(SIGNATURE.to_json())
    with pytest.raises(MopError, match="model.onnx: ONNX Runtime cannot load it"):
        load_exported(tmp_path)
    file = io.BytesIO()
    zipfile.ZipFile(file, "w").close()
    (tmp_path / "model.keras").write_bytes(file.getvalue())
    with pytest.raises(MopError, match="model.keras: the zip archive is no Keras model: it has no config.json"):
        load_exported(tmp_path, "keras")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes(b"")
    (tmp_path / "other" / "signature.json").write_text(SIGNATURE.to_json())
    with pytest.raises(Unsupported, match="models of format safetensors are not loaded here"):
        load_exported(tmp_path / "other")


def test_a_file_of_another_model_than_its_directory_s_is_refused(tmp_path):
    """Two formats in one directory share the other files, and one of them was exported again."""
    keras_file(tmp_path / "model.keras", [])
    (tmp_path / "signature.json").write_text(replace(SIGNATURE, weights_digest="0" * 64).to_json())
    with pytest.raises(InvalidParameter, match="model.keras is not of the model that signature.json beside it"):
        load_exported(tmp_path)


def test_values_of_a_frame_are_those_of_a_table():
    frame = pd.DataFrame({
        "number": [1.5, None], "flag": pd.array([True, None], "boolean"), "text": ["Ulm", None],
        "day": [pd.Timestamp("2000-01-02 00:00:01.5"), pd.NaT], "length": [pd.Timedelta(days=1, seconds=2), pd.NaT],
        "vector": [np.array([1, 2.5]), None], "empty": pd.Series([None, None], dtype=object),
    })  # fmt: skip
    types = dict.fromkeys(frame.columns, "text") | {"empty": "real"}
    raw = raw_columns(read_frame(frame), types)
    assert raw["number"].values.tolist() == [1.5, 0] and raw["number"].missing.tolist() == [False, True]
    assert raw["flag"].values.tolist() == [1, 0] and raw["flag"].family == "boolean"
    assert raw["text"].texts() == ["Ulm", None]
    assert raw["day"].values.tolist() == [86_401_500_000, 0] and raw["length"].values.tolist() == [86_402_000_000, 0]
    assert raw["vector"].values.tolist() == [[1, 2.5], [0, 0]] and raw["vector"].values.dtype == np.float32
    assert raw["empty"].missing.all() and raw["empty"].family == "number"


def test_what_a_driver_returns_for_real_and_char_n_is_what_the_table_has():
    frame = read_frame(pd.DataFrame({"share": [0.1, None], "code": ["ab  ", None], "text": ["ab  ", None]}))
    types = {"share": "real", "code": "character(4)", "text": "character varying(4)"}
    raw = raw_columns(frame, types)
    assert raw["share"].values[0] == float(np.float32(0.1)) != 0.1
    assert raw["code"].texts() == ["ab", None] and raw["text"].texts() == ["ab  ", None]
    sent = [column.as_trained(types[column.name]) for column in frame.columns]
    assert [column.sql_type for column in sent] == ["real", "bpchar", "text"]
    assert np.float32(sent[0].texts(0, 1)[0]) == np.float32(0.1)


def test_moments_with_time_zone_are_in_utc():
    at = pd.to_datetime(["2000-01-01 02:00:00"]).tz_localize("Europe/Berlin")
    (column,) = raw_columns(read_frame(pd.DataFrame({"at": at})), {}).values()
    assert column.values.tolist() == [3_600_000_000]


def test_images_and_infinite_numbers_are_refused():
    with pytest.raises(Unsupported, match="column 'picture' has images"):
        raw_columns(read_frame(pd.DataFrame({"picture": [b"\x89PNG"]})), {})
    with pytest.raises(InvalidParameter, match="column 'v' has a NULL element in row 2"):
        raw_columns(read_frame(pd.DataFrame({"v": [[1.0, 2.0], [None, 1.0]]})), {})
    with pytest.raises(InvalidParameter, match="the value is inf"):
        raw_columns(read_frame(pd.DataFrame({"x": [np.inf]})), {})
