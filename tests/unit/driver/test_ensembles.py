"""Greedy selection of an ensemble, on made-up predictions; and the losses it goes by, against Keras' own."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
from madlib_mop.driver.ensembles import selection  # noqa: E402
from madlib_mop.driver.ensembles.candidates import Candidate  # noqa: E402
from madlib_mop.driver.ensembles.criterion import (  # noqa: E402
    EnsembleTarget,
    OutputForm,
    OutputKind,
    apply,
    problem_of,
    read_forms,
    without_logits,
)
from madlib_mop.driver.ensembles.predictions import Library  # noqa: E402
from madlib_mop.driver.ensembles.selection import PairedLosses, cross_losses, row_losses, select  # noqa: E402
from madlib_mop.driver.learning.choice import compare, reason_of  # noqa: E402
from madlib_mop.errors import InvalidParameter, Unsupported  # noqa: E402
from madlib_mop.models.parameters.parser import parse_compile_params  # noqa: E402


def naive(models, target, n_members):
    """Try every model at each step, and compute each average anew; return the order of the best ensemble, its loss."""

    def loss(chosen):
        mean = sum(models[i].astype(np.float64) for i in chosen) / len(chosen)
        return target.loss(0, len(mean), mean) / len(mean)

    chosen, best = [], None
    for _ in range(n_members):
        losses = [loss([*chosen, i]) for i in range(len(models))]
        chosen.append(losses.index(min(losses)))
        if best is None or min(losses) < best[1]:
            best = (tuple(chosen), min(losses))
    return best


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 7), st.integers(1, 3))
def test_it_chooses_what_a_naive_search_chooses(seed, n_models, n_members, n_units):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-3, 4, (9, n_units)).astype(np.float64)
    models = [(labels + rng.integers(-2, 3, labels.shape)).astype(np.float32) for _ in range(n_models)]
    target = EnsembleTarget.of(OutputKind.SQUARED, labels, n_units, "y")
    found = select([[m] for m in models], lambda a, b, means: target.loss(a, b, means[0]), n_members)
    assert (found.order, found.loss) == naive(models, target, n_members)
    assert found.loss <= min(found.losses) and found.losses[found.order[0]] == min(found.losses)


def test_equal_models_are_chosen_by_their_order_and_an_ensemble_is_as_small_as_possible():
    values = np.ones((5, 1), np.float32)
    target = EnsembleTarget.of(OutputKind.SQUARED, np.zeros((5, 1)), 1, "y")
    found = select([[values], [values]], lambda a, b, means: target.loss(a, b, means[0]), 6)
    assert (found.order, found.counts, found.losses) == ((0,), {0: 1}, (1.0, 1.0))


def test_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(3)
    models = [[rng.random((50, 3), np.float32)] for _ in range(4)]
    target = EnsembleTarget.of(OutputKind.CLASSES, rng.integers(0, 3, (50, 1)).astype(np.float32), 3, "y")
    found = select(models, lambda a, b, means: target.loss(a, b, means[0]), 8)
    monkeypatch.setattr(selection, "_BLOCK_VALUES", 12)
    again = select(models, lambda a, b, means: target.loss(a, b, means[0]), 8)
    assert again.order == found.order and np.isclose(again.loss, found.loss, rtol=1e-13)


@pytest.mark.parametrize(
    ("loss", "kind", "labels"),
    [
        ("categorical_crossentropy", OutputKind.CLASSES, np.eye(4)),
        ("sparse_categorical_crossentropy", OutputKind.CLASSES, np.arange(4.0)[:, None]),
        ("binary_crossentropy", OutputKind.UNITS, np.eye(4)),
        ("mse", OutputKind.SQUARED, np.eye(4)),
        ("mae", OutputKind.ABSOLUTE, np.eye(4)),
    ],
)
def test_the_losses_are_those_of_keras(loss, kind, labels):
    import keras

    rng = np.random.default_rng(1)
    predicted = rng.random((4, 4))
    predicted[0, 0] = 0.0
    if kind is OutputKind.CLASSES:
        predicted /= predicted.sum(axis=1, keepdims=True)
    target = EnsembleTarget.of(kind, labels, 4, "y")
    expected = np.asarray(keras.losses.get(loss)(labels, predicted.astype(np.float32))).mean()
    assert np.isclose(target.loss(0, 2, predicted[:2]) + target.loss(2, 4, predicted[2:]), 4 * expected, rtol=1e-5)
    of_rows = np.asarray(keras.losses.get(loss)(labels, predicted.astype(np.float32)))
    assert target.row_losses(1, 4, predicted[1:]) == pytest.approx(of_rows[1:], rel=1e-4)


def test_another_model_is_clearly_better_by_more_than_one_standard_error_of_the_difference():
    simple = np.linspace(0.1, 2.0, 66)
    differences = np.tile([1.0, -1.0], 33)  # with the mean 0; of 66, the standard error is 0.124
    for gain, is_clear in ((-0.1, False), (0.0, False), (0.12, False), (0.13, True)):
        found = PairedLosses.of(simple, simple - differences - gain)
        assert (found.is_clear, found.n_rows) == (is_clear, 66)
        assert found.standard_error == pytest.approx(differences.std(ddof=1) / 66**0.5)
        assert found.simple - found.other == pytest.approx(gain)


def test_the_rows_are_paired():
    """A small gain on each row is clear, however much the losses of rows differ."""
    simple = np.linspace(0.0, 100.0, 66)
    assert PairedLosses.of(simple, simple - 0.01 - simple * 1e-5).is_clear
    assert not PairedLosses.of(simple, simple).is_clear


def library_of(seed: int, gain: float) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """Return the predictions of a linear model and of 15 noisy networks, and 3,000 labels.

    Networks know a part of the labels that the linear model does not, with the standard deviation ``gain``.
    """
    rng = np.random.default_rng(seed)
    linear, rest = rng.normal(size=(3_000, 1)), gain * rng.normal(size=(3_000, 1))
    labels, common = linear + rest + rng.normal(size=linear.shape), rng.normal(size=linear.shape)
    networks = [linear + rest + 0.35 * (common + rng.normal(size=linear.shape)) for _ in range(15)]
    return [[one.astype(np.float32)] for one in (linear, *networks)], labels


def compared(models: list[list[np.ndarray]], labels: np.ndarray, n_rows: int) -> PairedLosses:
    form = OutputForm(OutputKind.SQUARED)
    candidates = [Candidate(key, None, (form,)) for key in range(1, len(models) + 1)]
    predictions = [[values[:n_rows] for values in model] for model in models]
    return compare(Library(candidates, predictions, [labels[:n_rows]]), ["y"], 1, 8)


def test_where_networks_only_add_noise_the_simpler_model_is_kept():
    """66 rows; the average looks better on them because it was chosen by them, and is worse on fresh rows."""
    clear, seen, fresh = 0, 0, 0.0
    for seed in range(40):
        models, labels = library_of(seed, 0.0)
        target = EnsembleTarget.of(OutputKind.SQUARED, labels[:66], 1, "y")
        choose = [[one[:66] for one in model] for model in models]
        found = select(choose, lambda a, b, means, t=target: t.loss(a, b, means[0]), 8)
        every = [EnsembleTarget.of(OutputKind.SQUARED, labels, 1, "y")]
        simple, other = (row_losses(one, every) for one in ([models[0]], [models[number] for number in found.order]))
        seen += PairedLosses.of(simple[:66], other[:66]).is_clear
        fresh += (other - simple)[66:].mean()
        clear += compared(models, labels, 66).is_clear
    assert fresh > 0 and seen > 10 and clear <= 2


@pytest.mark.parametrize(("gain", "n_rows", "least"), [(1.0, 66, 38), (0.6, 400, 40), (0.4, 400, 30)])
def test_where_networks_know_more_the_average_is_clearly_better(gain, n_rows, least):
    assert sum(compared(*library_of(seed, gain), n_rows).is_clear for seed in range(40)) >= least


def test_a_row_is_measured_with_the_average_that_the_other_half_chooses():
    """The first model is right for even rows, the second for odd ones: each half chooses the wrong one of the other."""
    labels, is_odd = np.ones((10, 1)), np.arange(10)[:, None] % 2 == 1
    models = [[np.where(is_odd, 0.0, 1.0).astype(np.float32)], [np.where(is_odd, 1.0, 0.0).astype(np.float32)]]
    targets = [EnsembleTarget.of(OutputKind.SQUARED, labels, 1, "y")]
    found = cross_losses(models, lambda rows: [EnsembleTarget.of(OutputKind.SQUARED, labels[rows], 1, "y")], 1)
    assert found.tolist() == [1.0] * 10
    assert row_losses(models, targets) == pytest.approx([0.25] * 10)
    assert row_losses(models[:1], targets).tolist() == is_odd.ravel().astype(float).tolist()


@pytest.mark.parametrize("n_rows", [0, 1])
def test_one_row_cannot_be_halved_so_the_simpler_model_is_kept(n_rows):
    found = compared(*library_of(1, 1.0), n_rows)
    assert not found.is_clear and "too few validation rows" in reason_of(found, True, True)


def test_a_linear_model_that_predicts_no_numbers_is_the_worst():
    models, labels = library_of(1, 0.0)
    form = (OutputForm(OutputKind.SQUARED),)
    library = Library([Candidate(2, None, form), Candidate(3, None, form)], models[1:3], [labels])
    found = compare(library, ["y"], 1, 8)
    assert found.is_clear and found.simple == np.inf


def test_a_loss_that_is_no_number_is_the_worst():
    one, no = np.ones(5), np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    assert PairedLosses.of(no, one).is_clear and not PairedLosses.of(one, no).is_clear
    assert not PairedLosses.of(no, no).is_clear and not PairedLosses.of(np.full(5, np.inf), np.full(5, np.inf)).is_clear
    assert PairedLosses.of(np.full(5, np.inf), one).is_clear
    assert not PairedLosses.of(np.array([2.0]), np.array([1.0])).is_clear, "one row has no standard error"


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [
        (0.3, 0.01, "the difference is more than one standard error, 0.01"),
        (0.395, 0.01, "the difference is less than one standard error, 0.01, so the simpler one is registered"),
        (0.4, 0.01, "the simpler one is not worse"),
    ],
)
def test_the_summary_says_why(other, error, said):
    text = reason_of(PairedLosses(66, 0.4, other, error), True, True)
    how = "(each half of the rows measures what the other half chooses)"
    assert text == f"mean loss of 66 validation rows: linear model 0.4, average {other:.4g} {how}; {said}"
    assert "linear model 0.4, single model 0.3 (" in reason_of(PairedLosses(66, 0.4, 0.3, error), True, False)


def test_errors_are_counted_by_class():
    predicted = np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]])
    assert EnsembleTarget.of(OutputKind.CLASSES, np.array([[1], [1], [0]]), 2, "y").errors(0, 3, predicted) == 1
    assert EnsembleTarget.of(OutputKind.CLASSES, np.eye(2)[[0, 1, 0]], 2, "y").errors(0, 3, predicted) == 2
    assert EnsembleTarget.of(OutputKind.UNITS, np.array([[1], [0], [1]]), 1, "y").errors(1, 3, predicted[1:, :1]) == 1


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(InvalidParameter, match="class number 7, the models have 3"):
        EnsembleTarget.of(OutputKind.CLASSES, np.array([[0.0], [7.0]]), 3, "y")
    with pytest.raises(InvalidParameter, match="2 values a row, the models have 3"):
        EnsembleTarget.of(OutputKind.CLASSES, np.zeros((5, 2)), 3, "y")


def forms(text, names=("y",), last=(None,)):
    return read_forms(parse_compile_params(f"optimizer='sgd', {text}"), names, last, "mst_key 1")


def test_the_form_of_each_output_is_that_of_its_loss():
    both = ("a", "b")
    assert forms("loss='mse'") == (OutputForm(OutputKind.SQUARED),)
    assert forms("loss=['bce', 'mae']", both, (None, None)) == (
        OutputForm(OutputKind.UNITS),
        OutputForm(OutputKind.ABSOLUTE),
    )
    by_name = forms("loss={'b': 'mse', 'a': 'kl_divergence'}", both, (None, None))
    assert by_name == (OutputForm(OutputKind.CLASSES), OutputForm(OutputKind.SQUARED))
    logits = "loss='SparseCategoricalCrossentropy(from_logits=True)'"
    assert forms(logits, last=("linear",)) == (OutputForm(OutputKind.CLASSES, "softmax"),)
    assert forms(logits, last=("softmax",)) == (OutputForm(OutputKind.CLASSES),), "Keras ignores it too"
    assert forms("loss='BinaryCrossentropy(from_logits=True)'") == (OutputForm(OutputKind.UNITS, "sigmoid"),)
    with pytest.raises(Unsupported, match="mst_key 1 was trained with the loss 'hinge'"):
        forms("loss='hinge'")


def test_compile_parameters_for_probabilities_do_not_say_logits():
    loss = "BinaryCrossentropy(from_logits=True, label_smoothing=0.1)"
    text = f"optimizer='Adam(lr=0.1)', loss='{loss}', metrics=['AUC(from_logits=True)']"
    written = without_logits(parse_compile_params(text))
    again = parse_compile_params(written)
    assert "from_logits" not in written and again.loss.kwargs == {"label_smoothing": 0.1}
    assert again.optimizer == parse_compile_params(text).optimizer and again.metric_names == ("auc",)


def test_logits_become_probabilities():
    values = np.array([[1000.0, -1000.0], [0.0, 0.0]], np.float32)
    assert apply(values, OutputForm(OutputKind.CLASSES, "softmax")).tolist() == [[1, 0], [0.5, 0.5]]
    assert apply(values, OutputForm(OutputKind.UNITS, "sigmoid")).tolist() == [[1, 0], [0.5, 0.5]]


def test_what_cannot_be_averaged_is_said():
    assert "NaN" in problem_of(np.array([[np.nan]]), OutputForm(OutputKind.SQUARED))
    assert "logits" in problem_of(np.array([[3.0]]), OutputForm(OutputKind.CLASSES))
    assert problem_of(np.array([[3.0]]), OutputForm(OutputKind.SQUARED)) is None
