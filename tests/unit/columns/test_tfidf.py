"""Weights of terms are those of scikit-learn, with the same bits everywhere; vocabularies are stored and checked."""

import base64
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from madlib_mop.columns.preprocessors import input_fits
from madlib_mop.columns.preprocessors.description import describe
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
from madlib_mop.columns.transforms.tfidf import TermCounts, Vocabulary, term_hashes
from madlib_mop.errors import UnreadableText
from tests.helpers.unit.columns import fitted, spec, target, texts

TEXTS = st.one_of(
    st.lists(st.sampled_from(["The", "red", "fox", "fox!", "grün", "a", "42", "-", "\n"]), max_size=12).map(" ".join),
    st.text(max_size=20),
)
#: Of characters whose capitals the fixed table and Python fold alike.
PLAIN = st.text(st.sampled_from("abcAB12 äÖ.,-\n"), max_size=30)


def terms_of(text):
    """Return the terms of a text, by Python's own means."""
    words = "".join(one if one.isalnum() else " " for one in text.lower()).split()
    found = [f"word {word}" for word in words] + [f"pair {a} {b}" for a, b in zip(words, words[1:], strict=False)]
    for token in text.lower().split():
        padded = f" {token} "
        found += [f"run {padded[i : i + n]}" for n in range(2, 6) for i in range(len(padded) - n + 1)]
    return found


def counted(rows):
    counts = TermCounts()
    counts.add(rows, np.ones(len(rows), np.int64))
    return counts


def dense(vocabulary, rows, width):
    """Return the weights as a matrix (n_rows, n_terms)."""
    indices, weights = vocabulary.weights(rows, width)
    matrix = np.zeros((len(rows), vocabulary.n_terms + 1))
    matrix[np.arange(len(rows))[:, None], indices] = weights
    return matrix[:, 1:]


@given(st.lists(PLAIN, min_size=1, max_size=6))
def test_terms_are_words_pairs_and_runs_of_characters(rows):
    hashes, owners = term_hashes(rows)
    assert hashes.dtype == np.uint64 and (hashes < 1 << 48).all()
    known = {}
    for number, text in enumerate(rows):
        expected = terms_of(text)
        found = hashes[owners == number].tolist()
        alone, _ = term_hashes([text])
        assert sorted(found) == sorted(alone.tolist())
        # each term has one hash: as many of each hash as of its term
        counts = {term: expected.count(term) for term in expected}
        assert sorted(counts.values()) == sorted({one: found.count(one) for one in found}.values())
        for term in counts:
            known.setdefault(term, set()).add(number)
    both = {one: set(owners[hashes == one].tolist()) for one in set(hashes.tolist())}
    assert sorted(map(sorted, known.values())) == sorted(map(sorted, both.values()))


@settings(deadline=None)
@given(st.lists(PLAIN, min_size=2, max_size=12), st.lists(PLAIN, min_size=1, max_size=4))
def test_weights_are_those_of_scikit_learn(rows, others):
    terms = [terms_of(text) for text in rows]
    seen = [term for found in terms for term in set(found)]
    n_least = 2 if any(seen.count(term) > 1 for term in seen) else 1
    if not seen:
        assert counted(rows).most_frequent(100).n_terms == 0
        return
    theirs = TfidfVectorizer(analyzer=terms_of, sublinear_tf=True, min_df=n_least)
    training = theirs.fit_transform(rows).toarray()
    vocabulary = counted(rows).most_frequent(10_000)
    assert vocabulary.n_terms == training.shape[1]
    width = max(1, vocabulary.most_terms([*rows, *others]))
    for batch, expected in ((rows, training), (others, theirs.transform(others).toarray())):
        ours = dense(vocabulary, batch, width)
        assert np.allclose(ours @ ours.T, expected @ expected.T, atol=1e-5)
        assert np.allclose(np.sort(ours, axis=1), np.sort(expected, axis=1), atol=1e-6)


@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([3, 40]), st.data())
def test_the_weights_of_a_text_depend_on_no_other_text(rows, width, data):
    vocabulary = counted([*rows, "the red fox", "the fox"]).most_frequent(200)
    indices, weights = vocabulary.weights(rows, width)
    assert indices.shape == weights.shape == (len(rows), width)
    assert (indices.dtype, weights.dtype) == (np.int32, np.float32)
    assert ((indices == 0) == (weights == 0)).all() and indices.max() <= vocabulary.n_terms
    for row, text in enumerate(rows):
        alone = vocabulary.weights([text], width)
        assert (alone[0].tobytes(), alone[1].tobytes()) == (indices[row].tobytes(), weights[row].tobytes())
        used = indices[row][indices[row] > 0]
        assert (np.diff(used) > 0).all() and (indices[row][: len(used)] > 0).all(), "ascending, then zeros"
    again = Vocabulary.from_texts(*vocabulary.texts(), vocabulary.n_rows).weights(rows, width)
    assert (again[0].tobytes(), again[1].tobytes()) == (indices.tobytes(), weights.tobytes())


def test_a_text_with_more_terms_keeps_those_with_the_greatest_weights():
    vocabulary = counted(["common rare", "common rare", "common", "common thing", "common thing"]).most_frequent(500)
    whole, few = (dense(vocabulary, ["common rare thing"], width)[0] for width in (500, 4))
    assert np.count_nonzero(few) == 4 and (few[few > 0] == whole[few > 0]).all()
    assert few[few > 0].min() >= whole[few == 0].max()


@given(st.lists(TEXTS, min_size=1, max_size=12, unique=True), st.data())
def test_a_vocabulary_does_not_depend_on_the_order_of_the_rows_nor_on_parts(rows, data):
    counts = data.draw(st.lists(st.integers(1, 5), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    together, parts = TermCounts(), TermCounts()
    together.add(rows, np.array(counts))
    for place in order:
        parts.add([rows[place]], np.array([counts[place]]))
    every = counted([text for text, n in zip(rows, counts, strict=True) for _ in range(n)])
    for n_terms in (5, 10_000):
        found = {one.most_frequent(n_terms).texts() for one in (together, parts, every)}
        assert len(found) == 1
    assert together.n_rows == parts.n_rows == every.n_rows == sum(counts)


def test_the_terms_of_most_rows_are_kept_and_those_of_one_row_only_if_all_are():
    rows = ["aa bb", "aa bb", "aa cc"]
    assert counted(rows).most_frequent(1).n_terms == 1
    assert dense(counted(rows).most_frequent(1), ["bb", "aa"], 8).sum(axis=1).tolist() == [0, 1], "a term of aa"
    kept = counted(rows).most_frequent(1_000)
    assert not dense(kept, ["cc"], 30).any() and dense(kept, ["bb"], 30).any()
    assert dense(counted(["aa", "bb"]).most_frequent(1_000), ["bb"], 30).any()


def test_many_waiting_counts_are_added_up(monkeypatch):
    rows = [f"word{i % 7} and {i % 11}" for i in range(60)]
    expected = counted(rows).most_frequent(1_000).texts()
    monkeypatch.setattr("madlib_mop.columns.transforms.tfidf._MOST_WAITING", 10)
    counts = TermCounts()
    for text in rows:
        counts.add([text], np.ones(1, np.int64))
    assert counts.most_frequent(1_000).texts() == expected


def test_long_and_many_texts_have_the_bits_of_single_ones():
    rows = [f"row {i} " * (i % 50) for i in range(2_000)] + ["x" * 200_000, "y z " * 30_000, ""]
    vocabulary = counted(rows).most_frequent(3_000)
    indices, weights = vocabulary.weights(rows, 64)
    for place in (0, 1, 1499, 1999, 2000, 2001, 2002):
        alone = vocabulary.weights([rows[place]], 64)
        assert (alone[0][0].tobytes(), alone[1][0].tobytes()) == (indices[place].tobytes(), weights[place].tobytes())


def fitted_text(rows, **fields):
    one = spec("t", "text", **{"width": 512, **fields})
    made = fitted([(one, texts(rows)), (target("y"), texts(["a", "b"] * len(rows)))])
    return made, made.inputs[0].fit


def test_the_width_is_that_of_the_longest_training_row_up_to_its_limit():
    rows = ["one two three", "one two three", "one", None]
    _, fit = fitted_text(rows)
    assert fit.width == fit.n_terms == len(set(terms_of(rows[0]))) and fit.n_rows == 3
    assert fitted_text(rows, width=8)[1].width == 8
    assert fitted_text(rows, max_levels=9)[1].n_terms == 9
    assert fitted_text(["?", "!"])[1].width == 3, "a mark and the blanks around it"
    of_nothing = fitted_text([" ", "\n"])[1]
    assert (of_nothing.width, of_nothing.n_terms) == (1, 0)


def test_the_fit_of_many_texts_is_that_of_some_which_do_not_depend_on_their_order(monkeypatch):
    rows = [f"text {i} of some length" for i in range(80)]
    whole = fitted_text(rows)[1]
    monkeypatch.setattr(input_fits, "_MOST_TEXTS", 20)
    few = fitted_text(rows)[1]
    assert few.n_rows == 20 and few.terms != whole.terms
    assert fitted_text(rows[::-1])[1] == few
    monkeypatch.setattr(input_fits, "_MOST_CHARACTERS", 200)
    assert fitted_text(rows)[1].n_rows < 12


SOME, FIT = fitted_text(["one two three", "one two three", "one", None], indicator=True)


def test_a_document_has_no_text_of_a_row_and_is_read_with_the_same_digest():
    text = SOME.to_json()
    again = Preprocessor.from_json(json.dumps(json.loads(text), indent=1))
    assert again == SOME and again.digest == SOME.digest
    assert "three" not in text


def test_a_column_is_two_inputs_indices_and_weights():
    indicators, terms, weights = SOME.tensors
    assert indicators.units == ("t is NULL",)
    assert (terms.name, terms.kind, terms.dtype, terms.n_codes) == ("t", "terms", "int32", FIT.n_terms + 1)
    assert (weights.name, weights.kind, weights.dtype) == ("t_weights", "weights", "float32")
    assert terms.shape == weights.shape == (FIT.width,) and terms.columns == weights.columns == ("t",)
    assert SOME.index_inputs == (1,)
    (row, _) = describe(SOME)
    assert row.encoding.startswith(f"TF-IDF of {FIT.n_terms} terms") and row.nulls == "zeros, and a unit that says so"


def test_names_of_weights_are_none_of_a_column_and_leave_room_for_the_column_of_shapes():
    column, long = texts(["a b", "a c"]), "ü" * 28
    named = [(spec(name, "text", width=64), column) for name in ("t", "t_weights", long)]
    made = fitted([*named, (target("y"), texts(["a", "b"]))])
    names = [tensor.name for tensor in made.tensors]
    assert names == ["t", "t_weights_1", "t_weights", "t_weights_weights", long, "ü" * 24 + "_weights"]
    assert max(len(f"{name}_shape".encode()) for name in names) <= 63


def packed(numbers, dtype, n_bytes):
    parts = np.array(numbers, dtype).view(np.uint8).reshape(len(numbers), -1)[:, :n_bytes]
    return base64.b64encode(parts.tobytes()).decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"terms": "!"}, "cannot be read"),
        ({"terms": "ü"}, "cannot be read"),
        ({"counts": ""}, "not as many"),
        ({"terms": FIT.terms + "AAAA"}, "not as many"),
        ({"n_terms": FIT.n_terms + 1}, "terms, not"),
        ({"n_terms": 10**9}, "too many"),
        ({"n_terms": -1}, "too many"),
        ({"n_rows": 1}, "count of its terms"),
        ({"width": 0}, "width"),
        ({"width": 513}, "width"),
        ({"terms": packed([5, 5], "<u8", 6), "counts": packed([1, 1], "<u4", 4), "n_terms": 2}, "do not increase"),
        ({"terms": packed([7, 5], "<u8", 6), "counts": packed([1, 1], "<u4", 4), "n_terms": 2}, "do not increase"),
        ({"terms": packed([5, 7], "<u8", 6), "counts": packed([0, 1], "<u4", 4), "n_terms": 2}, "count of its terms"),
    ],
)
def test_a_damaged_vocabulary_is_one_clear_error(changes, words):
    column = replace(SOME.inputs[0], fit=replace(FIT, **changes))
    with pytest.raises(UnreadableText, match="damaged: column 't'") as caught:
        Preprocessor.from_json(Preprocessor((column, *SOME.targets)).to_json())
    assert words in caught.value.message and caught.value.hint


def test_the_bits_of_a_vocabulary_and_of_weights_stay_as_they_are():
    """Packed tables and registered models of earlier versions rely on them."""
    counts = counted(["Hello, World", "hello world", "Łódź 東京", "world 東京", "Łódź"])
    assert counts.most_frequent(6).texts() == PINNED_VOCABULARY
    indices, weights = counts.most_frequent(1_000).weights(["hello hello world", "東京 hello 東京 Ł"], 30)
    assert hashlib.sha256(indices.tobytes()).hexdigest()[:16] == PINNED_INDICES
    assert hashlib.sha256(weights.tobytes()).hexdigest()[:16] == PINNED_WEIGHTS


PINNED_VOCABULARY = ("Haf3jAsGPXqDsAUaFugAVE8nvit6mGIyvtUXP4Q4DY8xDqM+", "AwAAAAMAAAADAAAAAwAAAAMAAAADAAAA")
PINNED_INDICES = "eb95150538b2df5e"
PINNED_WEIGHTS = "eeb73021087726d7"
