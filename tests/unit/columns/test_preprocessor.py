"""The preprocessor's document: canonical, unchanged after reading, also from jsonb; names of its inputs."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from madlib_mop.columns import raw
from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.errors import UnreadableText
from tests.helpers.unit.columns import fitted, moments, numbers, spec, target, texts, vectors

DAY = 86_400_000_000
SOME = fitted(
    [
        (spec("x", indicator=True), numbers([1.0, None, -0.0, 1e300])),
        (spec("q", scale="quantile"), numbers([1.0, 2.0, 3.0, 1e20])),
        (spec("on", "boolean"), numbers([0, 1, 1, 1], "boolean")),
        (spec("d", "datetime", indicator=True), moments([0, 40 * DAY, 90 * DAY + 3_600_000_000, 0])),
        (spec("c", "category"), texts(["grün", "red", "red", None])),
        (spec("o", "category", encode="one_hot"), texts(["a", "b", None, "a"])),
        (spec("s", "category", encode="ordinal", levels=("s", "m", "l"), indicator=True), texts(["s", "m", "l", "m"])),
        (spec("f", "category", encode="frequency"), texts(["s", "m", "l", "m"])),
        (spec("h", "category", encode="hashed"), texts(["s", "m", "l", "m"])),
        (spec("t", "text", encode="hashed_ngrams", indicator=True), texts(["one", "two", None, "four"])),
        (spec("v", "vector"), vectors([[1.0, 2.0], None, [0.0, 0.0], [3.0, 4.0]], 2)),
        (spec("p", "image", indicator=True, impute="zero"), raw.Blobs([None, b"1", b"2", b"3"])),
        (replace(spec("nothing"), role="ignored"), numbers([None] * 4)),
        (target("y"), texts(["b", "a", "b", "a"])),
        (target("z", "number"), numbers([1, 2, 3, 4])),
    ]
)


def test_the_document_is_read_back_as_it_was():
    text = SOME.to_json()
    assert Preprocessor.from_json(text) == SOME
    assert Preprocessor.from_json(text).to_json() == text
    assert Preprocessor.from_json(text).digest == SOME.digest


def test_documents_of_versions_without_dimensions_and_channels_have_the_same_text_and_digest():
    fits = {column["spec"]["name"]: column["fit"] for column in json.loads(SOME.to_json())["columns"]}
    assert sorted(fits["v"]) == ["accepts_null", "divisor", "indicator", "offset", "width"]
    assert sorted(fits["p"]) == ["accepts_null", "indicator", "side"]
    values = np.arange(12, dtype=np.float32).reshape(2, 6)
    new = fitted(
        [
            (spec("v", "array"), raw.Vectors(values, np.zeros(2, bool), "v", dimensions=(3, 2))),
            (spec("w", "array", encode="padded", width=6), raw.Vectors(values, np.zeros(2, bool), absent=values > 5)),
            (spec("p", "image", encode="grey_pixels", width=28), raw.Blobs([b"1", b"2"])),
            (target("y"), texts(["b", "a"])),
        ]
    )
    assert Preprocessor.from_json(new.to_json()) == new
    assert [tensor.shape for tensor in new.tensors] == [(3, 2), (6,), (28, 28, 1)]
    for place, changed in ((0, {"dimensions": [2, 2]}), (1, {"is_padded": False}), (2, {"channels": 3})):
        document = json.loads(new.to_json())
        document["columns"][place]["fit"] |= changed
        with pytest.raises(UnreadableText, match="damaged"):
            Preprocessor.from_json(json.dumps(document))


def test_the_document_is_canonical():
    text = SOME.to_json()
    assert text.isascii() and "\n" not in text and not re.search(r"-0\.0[],}]", text)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert len(SOME.digest) == 64


def test_negative_zero_is_zero_because_jsonb_has_no_other():
    column = SOME.columns[0]
    changed = [replace(column, fit=replace(column.fit, offset=zero)) for zero in (0.0, -0.0)]
    assert len({Preprocessor((one,)).digest for one in changed}) == 1


def test_jsonb_may_have_stored_the_document():
    def stored(value):
        if isinstance(value, dict):
            return {key: stored(value[key]) for key in sorted(value, key=lambda key: (len(key), key))}
        if isinstance(value, list):
            return [stored(item) for item in value]
        return int(value) if isinstance(value, float) and abs(value) > 1e15 else value  # 1e20 with all its digits

    text = json.dumps(stored(json.loads(SOME.to_json())), indent=1, ensure_ascii=False)
    assert text != SOME.to_json()
    assert Preprocessor.from_json(text).digest == SOME.digest


def test_examples_are_not_in_the_document_and_change_no_digest():
    def changed(**fields):
        return Preprocessor(tuple(replace(one, spec=replace(one.spec, **fields)) for one in SOME.columns))

    assert changed(examples=("Jane Doe",)).digest == SOME.digest
    assert changed(reason="other").digest != SOME.digest


def broken(change):
    document = json.loads(SOME.to_json())
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no columns"),
        (broken(lambda d: d.update(format=9)), "format 9"),
        (broken(lambda d: d["columns"].append(3)), "columns[14] is no column"),
        (broken(lambda d: d["columns"][0].update(type="pickle")), "unknown type"),
        (broken(lambda d: d["columns"][0]["fit"].pop("offset")), "'offset'"),
        (broken(lambda d: d["columns"][0]["fit"].update(extra=1)), "'extra'"),
        (broken(lambda d: d["columns"][0]["fit"].update(offset="1")), "columns[0].fit.offset is not a finite number"),
        (broken(lambda d: d["columns"][0]["fit"].update(offset=float("nan"))), "finite"),
        (broken(lambda d: d["columns"][0]["fit"].update(indicator=1)), "columns[0].fit.indicator is not bool"),
        (broken(lambda d: d["columns"][4]["fit"].update(levels="ab")), "columns[4].fit.levels is not a list"),
        (broken(lambda d: d["columns"][3]["fit"].update(age=None)), "columns[3].fit.age is not an object"),
        (broken(lambda d: d["columns"][0].update(family=3)), "columns[0] has no such family"),
        (broken(lambda d: d["columns"][4].update(family="text")), "columns[4] has no such family"),
        (broken(lambda d: d["columns"][0].update(family="span")), "no family of this name has kind 'number' and unit"),
        (broken(lambda d: d["columns"][0].update(family="light years")), "no family of this name has kind 'number'"),
        (broken(lambda d: d["columns"][0]["fit"].update(unit=7.0)), "no family has kind 'number' and unit 7"),
    ],
)
def test_a_damaged_document_is_one_clear_error(text, words):
    with pytest.raises(UnreadableText) as caught:
        Preprocessor.from_json(text)
    assert words in caught.value.message and caught.value.hint


def test_inputs_are_the_matrix_of_numbers_and_a_tensor_for_each_other_column():
    tensors = {tensor.name: tensor for tensor in SOME.tensors}
    assert list(tensors) == ["numbers", "c", "h", "t", "v", "p"]
    assert tensors["numbers"].columns == ("x", "q", "on", "d", "o", "s", "f", "t", "p")
    assert tensors["numbers"].units == (
        "x", "x is NULL", "q", "on",
        "d: age", "d: month (sine)", "d: month (cosine)", "d: weekday (sine)", "d: weekday (cosine)",
        "d: hour (sine)", "d: hour (cosine)", "d is NULL",
        "o is another", "o = a", "o = b", "o is NULL", "s", "s is NULL", "f", "t is NULL", "p is NULL",
    )  # fmt: skip
    index, hashed, text, vector, image = (tensors[name] for name in "chtvp")
    assert (index.kind, index.dtype, index.shape, index.n_codes, index.width) == ("index", "int32", (1,), 4, 8)
    assert (hashed.kind, hashed.n_codes) == ("index", 65)
    assert (text.kind, text.shape, text.units[-1]) == ("text", (8,), "t[8]")
    assert (vector.kind, vector.dtype, vector.units) == ("vector", "float32", ("v[1]", "v[2]"))
    assert (image.kind, image.dtype, image.shape) == ("image", "uint8", (8, 8, 3))


def test_names_of_units_and_inputs_are_never_twice():
    one = fitted(
        [
            (spec("a", indicator=True), numbers([1.0, None])),
            (spec("a is NULL"), numbers([1.0, 2.0])),
            (spec("numbers", "category"), texts(["a", "b"])),
            (target("y"), texts(["a", "b"])),
        ]
    )
    units = [unit for tensor in one.tensors for unit in tensor.units]
    assert units == ["a", "a is NULL", "a is NULL (2)", "numbers"]
    assert [tensor.name for tensor in one.tensors] == ["numbers_1", "numbers"]


def test_the_description_has_each_column_in_words():
    rows = {row.name: row for row in describe(SOME)}
    assert list(rows) == [column.name for column in SOME.columns]
    assert rows["x"].nulls.startswith("mean (") and "a unit that says so" in rows["x"].nulls
    assert rows["q"].encoding == "x, by 257 quantiles to a normal distribution"
    assert rows["d"].encoding.endswith("; sine and cosine of month, weekday, hour")
    assert rows["c"].encoding == "2 levels: red, grün: 2 to 3, others 1, for an embedding of 8 units"
    assert rows["h"].encoding == "hashed into buckets 1 to 64, for an embedding of 8 units"
    assert rows["y"].encoding == "2 classes: a, b, as one unit a class" and rows["y"].nulls == "error"
    assert rows["z"].encoding == "(x - 2.5) / 1.11803"
    assert rows["o"].units == ("o is another", "o = a", "o = b", "o is NULL")


#: By column, a path in its JSON, and the value that contradicts the rest.
CONTRADICTIONS = [
    ("x", ("fit", "divisor"), 0.0),
    ("x", ("fit", "unit"), -1.0),
    ("x", ("fit", "scale"), "robust"),
    ("q", ("fit", "knots"), [2.0, 1.0, 3.0]),
    ("q", ("fit", "outputs"), []),
    ("d", ("fit", "parts"), ["second"]),
    ("d", ("fit", "age", "divisor"), 0.0),
    ("c", ("fit", "n_codes"), 10**9),
    ("c", ("fit", "levels"), ["red", "red"]),
    ("c", ("fit", "width"), 10**6),
    ("c", ("fit", "accepts_null"), False),
    ("c", ("fit", "indicator"), True),
    ("o", ("fit", "encode"), "index"),
    ("o", ("fit", "width"), 10**6),
    ("o", ("fit", "fill"), "b"),
    ("o", ("fit", "indicator"), False),
    ("s", ("fit", "units"), [0.0]),
    ("s", ("fit", "units"), [1e308, 0.5, 0.0, 0.5, 1.0]),
    ("s", ("fit", "fill"), "xxl"),
    ("s", ("fit", "indicator"), False),
    ("s", ("fit", "width"), 0),
    ("f", ("fit", "width"), -1),
    ("h", ("fit", "n_codes"), 10**12),
    ("h", ("fit", "fill"), "nothing"),
    ("h", ("fit", "indicator"), True),
    ("t", ("fit", "width"), 10**12),
    ("v", ("fit", "width"), 10**12),
    ("v", ("fit", "divisor"), 0.0),
    ("p", ("fit", "side"), 10**6),
    ("y", ("fit", "classes"), ["a"]),
    ("y", ("spec", "role"), "input"),
    ("z", ("spec", "role"), "ignored"),
    ("x", ("spec", "name"), "q"),
    ("x", ("spec", "role"), "superuser"),
    ("x", ("type",), "date"),
]


@pytest.mark.parametrize(("name", "path", "value"), CONTRADICTIONS)
def test_a_document_that_contradicts_itself_is_refused(name, path, value):
    document = json.loads(SOME.to_json())
    place = next(column for column in document["columns"] if column["spec"]["name"] == name)
    for key in path[:-1]:
        place = place[key]
    assert place[path[-1]] != value
    place[path[-1]] = value
    with pytest.raises(UnreadableText, match="damaged"):
        Preprocessor.from_json(json.dumps(document))


def test_a_document_without_inputs_or_targets_is_refused():
    document = json.loads(SOME.to_json())
    for role in ("input", "target"):
        columns = [column for column in document["columns"] if column["spec"]["role"] != role]
        with pytest.raises(UnreadableText, match=f"no column has the role {role}"):
            Preprocessor.from_json(json.dumps({**document, "columns": columns}))


def test_a_document_of_many_levels_is_read_quickly():
    """Its checks take a time that grows with its length, not with the square of it."""
    levels = tuple(f"level {i}" for i in range(200_000))
    column = next(column for column in SOME.columns if column.name == "c")
    spec_of, fit = replace(column.spec, levels=levels), replace(column.fit, levels=levels, n_codes=len(levels) + 2)
    others = tuple(column for column in SOME.columns if column.name != "c")
    text = Preprocessor((replace(column, spec=spec_of, fit=fit), *others)).to_json()
    assert len(Preprocessor.from_json(text).columns) == len(SOME.columns)
