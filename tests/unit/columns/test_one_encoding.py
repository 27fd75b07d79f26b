"""One encoding: a row has the same bits alone, with others, in any batches, and after storing the preprocessor."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlib_mop.columns import raw
from madlib_mop.columns.encoding.encoder import Encoder
from madlib_mop.columns.encoding.targets import Targets
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from tests.helpers.unit.columns import fitted, moments, numbers, spec, target, texts, vectors

SCALES = ("standard", "min_max", "robust", "quantile", "log1p", "none")
FINITE = st.one_of(
    st.floats(-1e6, 1e6), st.integers(-5, 5).map(float), st.sampled_from([0.0, -0.0, 1e300, -1e300, 1e-300, 5e-324])
)
MICROSECONDS = st.one_of(st.integers(-(10**17), 10**17), st.integers(-100, 400).map(lambda day: day * 86_400_000_000))
WORDS = st.one_of(st.sampled_from(["red", "grün", "blue", "", "two words"]), st.text(max_size=12))
SMALL = st.floats(-(2.0**100), 2.0**100, width=32)
KINDS = ("number", "span", "boolean", "category", "coded", "flag", "date", "time", "text", "vector")


def maybe(elements):
    return st.one_of(st.none(), elements)


@st.composite
def columns(draw, n_rows):
    """Return the specification of an input and its values, of any kind and encoding, with NULLs."""
    kind = draw(st.sampled_from(KINDS))
    indicator = draw(st.booleans())
    if kind in ("number", "span"):
        values = draw(st.lists(maybe(FINITE if kind == "number" else MICROSECONDS), min_size=n_rows, max_size=n_rows))
        column = numbers(values) if kind == "number" else moments(values, "span")
        impute = draw(st.sampled_from(["mean", "median", "minimum", "constant:3"]))
        one = spec("c", "number", scale=draw(st.sampled_from(SCALES)), impute=impute, indicator=indicator)
    elif kind == "boolean":
        values = draw(st.lists(maybe(st.integers(0, 1)), min_size=n_rows, max_size=n_rows))
        one, column = spec("c", "boolean", indicator=indicator), numbers(values, "boolean")
    elif kind in ("category", "coded", "flag"):
        elements = {"category": WORDS, "coded": st.integers(-3, 9), "flag": st.integers(0, 1)}[kind]
        values = draw(st.lists(maybe(elements), min_size=n_rows, max_size=n_rows))
        column = {
            "category": texts, "coded": numbers, "flag": lambda values: numbers(values, "boolean"),
        }[kind](values)  # fmt: skip
        one = spec("c", "category", encode=draw(st.sampled_from(["index", "one_hot", "hashed", "frequency"])))
    elif kind in ("date", "time"):
        elements = MICROSECONDS if kind == "date" else st.integers(0, 86_399_999_999)
        values = draw(st.lists(maybe(elements), min_size=n_rows, max_size=n_rows))
        scale = draw(st.sampled_from(["standard", "min_max", "robust", "quantile", "none"]))
        one = spec("c", "datetime", scale=scale, indicator=indicator)
        column = moments(values, "moment" if kind == "date" else "time")
    elif kind == "text":
        encode = draw(st.sampled_from(["tfidf", "hashed_ngrams"]))
        one = spec("c", "text", encode=encode, width=16, indicator=indicator)
        column = texts(draw(st.lists(maybe(WORDS), min_size=n_rows, max_size=n_rows)))
    else:
        rows = st.lists(SMALL, min_size=3, max_size=3)
        one = spec("c", "vector", scale=draw(st.sampled_from(["standard", "none"])), indicator=indicator)
        column = vectors(draw(st.lists(maybe(rows), min_size=n_rows, max_size=n_rows)), 3)
    return one, column


@st.composite
def tables(draw):
    """Return some inputs with values in all rows, and the number of training rows."""
    n_rows = draw(st.integers(3, 24))
    n_training = draw(st.integers(2, n_rows))
    inputs = draw(st.lists(columns(n_rows), min_size=1, max_size=6))
    return [(replace(one, name=f"c{place}"), column) for place, (one, column) in enumerate(inputs)], n_rows, n_training


def fit_table(inputs, n_training):
    """Return the preprocessor of the first rows, without columns that have no value there."""
    rows = np.arange(n_training)
    usable = [(one, column.take(rows)) for one, column in inputs if not column.take(rows).missing.all()]
    y = (target("y", "number"), numbers(range(n_training)))
    return fitted([*(usable or [(spec("c"), numbers(range(n_training)))]), y])


def alone(column, row):
    """Return one row of a column with its own dictionary, as in a call for one row."""
    one = column.take(np.array([row]))
    if isinstance(one, raw.Levels):
        return texts(one.texts(), one.family)
    return replace(one, values=one.values.copy(), missing=one.missing.copy())


def bits(arrays):
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(tables(), st.data())
def test_a_row_has_the_same_bits_alone_and_among_others(table, data):
    inputs, n_rows, n_training = table
    preprocessor = fit_table(inputs, n_training)
    every = dict((one.name, column) for one, column in inputs) | {"c": numbers(range(n_rows))}
    together = Encoder(preprocessor).encode(every)
    assert together.n_rows == n_rows
    for tensor in preprocessor.tensors:
        array = together.arrays[tensor.name]
        assert (array.dtype.name, array.shape) == (tensor.dtype, (n_rows, *tensor.shape))
        assert np.isfinite(array).all() and len(tensor.units) == tensor.shape[0]
        if tensor.n_codes is not None:
            assert array.min() >= 0 and array.max() < tensor.n_codes

    again = Encoder(Preprocessor.from_json(preprocessor.to_json()))
    for row in range(n_rows):
        single = again.encode({name: alone(column, row) for name, column in every.items()})
        assert bits(single.arrays) == bits({name: array[row : row + 1] for name, array in together.arrays.items()})

    order = np.array(data.draw(st.permutations(range(n_rows))))
    cut = data.draw(st.integers(0, n_rows))
    parts = [again.encode({name: column.take(part) for name, column in every.items()}).arrays
             for part in (order[:cut], order[cut:])]  # fmt: skip
    joined = {name: np.concatenate([part[name] for part in parts]) for name in together.arrays}
    assert bits(joined) == bits({name: array[order] for name, array in together.arrays.items()})


@settings(deadline=None)
@given(st.lists(FINITE, min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1),
       st.sampled_from(["standard", "log1p", "none"]))  # fmt: skip
def test_targets_have_the_same_bits_alone_and_among_others(values, scale):
    x, y = (spec("x"), numbers(range(len(values)))), (target("y", "number", scale=scale), numbers(values))
    targets = Targets(fitted([x, y]))
    together = targets.encode({"y": numbers(values)})["y"]
    back = targets.decode({"y": together})["y"].numbers
    for row, value in enumerate(values):
        single = targets.encode({"y": numbers([value])})["y"]
        assert single.tobytes() == together[row].tobytes()
        assert targets.decode({"y": single})["y"].numbers.tobytes() == back[row].tobytes()


def test_large_batches_have_the_bits_of_single_rows():
    generator = np.random.default_rng(8)
    n_rows = 3_000
    values = generator.lognormal(0, 6, n_rows) * generator.choice([-1, 1], n_rows)
    columns = [(spec(scale, scale=scale), numbers(values.tolist())) for scale in SCALES]
    columns.append((spec("c", "category"), numbers(generator.integers(0, 50, n_rows).tolist())))
    columns.append((spec("d", "datetime"), moments(generator.integers(-(10**16), 10**16, n_rows).tolist())))
    preprocessor = fitted([*columns, (target("y"), texts(["a", "b"] * (n_rows // 2)))])
    encoder = Encoder(preprocessor)
    raws = {one.name: column for one, column in columns}
    together = encoder.encode(raws).arrays
    for row in range(0, n_rows, 7):
        single = encoder.encode({name: column.take(np.array([row])) for name, column in raws.items()}).arrays
        assert bits(single) == bits({name: array[row : row + 1] for name, array in together.items()})


@pytest.mark.parametrize("kind", ["number", "text", "uuid"])
def test_unseen_categories_never_fail(kind):
    make = numbers if kind == "number" else (lambda values: texts(values, kind))
    seen, unseen = ([1, 2, 3], [99, 2.5, None]) if kind == "number" else (["a", "b"], ["new", "", None])
    for encode in ("index", "one_hot", "hashed", "frequency"):
        one = spec("c", "category", encode=encode)
        encoder = Encoder(fitted([(one, make(seen)), (target("y"), texts(["a", "b", "a"][: len(seen)]))]))
        assert encoder.encode({"c": make(unseen)}).n_rows == 3
