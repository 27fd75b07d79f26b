"""Proposed networks fit any preprocessor, pass the library's checks, load in Keras and train; configurations parse."""

import json
import os
import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from madlib_mop.certainty.balance import log_shares  # noqa: E402
from madlib_mop.columns import raw  # noqa: E402
from madlib_mop.columns.encoding.encoder import Encoder  # noqa: E402
from madlib_mop.columns.preprocessors.preprocessor import Preprocessor  # noqa: E402
from madlib_mop.driver.networks.architectures import LINEAR, RECIPES, architecture, hidden_width  # noqa: E402
from madlib_mop.driver.networks.graph import Graph  # noqa: E402
from madlib_mop.driver.networks.inputs import MAX_EMBEDDED  # noqa: E402
from madlib_mop.driver.networks.training import (  # noqa: E402
    TrainingSize,
    batch_size,
    configurations,
    epochs,
    metric_name,
    search_grids,
)
from madlib_mop.driver.planning.early_stopping import reported_names  # noqa: E402
from madlib_mop.models.architecture import check_architecture  # noqa: E402
from madlib_mop.models.described import describe_architecture  # noqa: E402
from madlib_mop.models.parameters.parser import parse_compile_params, parse_fit_params  # noqa: E402
from madlib_mop.models.running import is_rowwise  # noqa: E402
from madlib_mop.models.shapes import describe  # noqa: E402
from tests.helpers.unit.columns import fitted, numbers, spec, target, texts, vectors  # noqa: E402
from tests.helpers.unit.plain import build_model  # noqa: E402
from tests.helpers.unit.searches import draw_random  # noqa: E402

INPUTS = {
    "numbers": [(spec("x"), numbers([1.0, 2.0, None, 4.0])), (spec("on", "boolean"), numbers([0, 1, 1, 1], "boolean"))],
    "index": [(spec("city", "category"), texts(["a", "b", "c", None]))],
    "hashed": [(spec("h", "category", encode="hashed"), texts(["s", "m", "l", "m"]))],
    "text": [(spec("words", "text", encode="hashed_ngrams"), texts(["one", "two", None, "four"]))],
    "terms": [(spec("terms", "text"), texts(["one", "two", None, "four"]))],
    "vector": [(spec("v", "vector"), vectors([[1.0, 2.0], None, [0.0, 0.0], [3.0, 4.0]], 2))],
    "image": [(spec("p", "image", impute="zero"), raw.Blobs([None, b"1", b"2", b"3"]))],
    "names": [(spec("a/b", "category"), texts(["a", "b", "c", None])), (spec("hidden"), numbers([1, 2, 3, 4])),
              (spec("input_2", "category"), texts(["a", "b", "c", None]))],
}  # fmt: skip
INPUTS["all"] = [column for name, columns in INPUTS.items() if name != "names" for column in columns]
TARGETS = {
    "two classes": [(target("y"), texts(["b", "a", "b", "a"]))],
    "indices": [(target("y", encode="index"), texts(["b", "a", "c", "a"]))],
    "a number": [(target("z", "number"), numbers([1, 2, 3, 4]))],
    "two targets": [(target("y/n"), texts(["b", "a", "c", "a"])), (target("z", "number"), numbers([1, 2, 3, 4]))],
}
PLAN = TrainingSize((500, 480), 10)


def preprocessor(inputs: str, targets: str) -> Preprocessor:
    return fitted([*INPUTS[inputs], *TARGETS[targets]])


def answers(model, x) -> list[np.ndarray]:
    """Return a model's outputs without a graph, which takes longer to trace than these few rows to compute."""
    found = model(x)
    return [np.asarray(one) for one in (found if isinstance(found, list) else [found])]


def rows_for(fitted_columns: Preprocessor, n: int):
    """Return inputs and labels at random, of the shapes and types of packed rows."""
    rng = np.random.default_rng(1)
    x = [
        rng.integers(0, t.n_codes or 200, (n, *t.shape)).astype(t.dtype)
        if t.dtype != "float32"
        else rng.normal(size=(n, *t.shape)).astype("float32")
        for t in fitted_columns.tensors
    ]
    y = []
    for column in fitted_columns.targets:
        classes = getattr(column.fit, "classes", None)
        if classes is None:
            y.append(rng.normal(size=(n, 1)).astype("float32"))
        elif column.fit.encode == "index":
            y.append(rng.integers(0, len(classes), (n, 1)).astype("int16"))
        else:
            y.append(np.eye(len(classes), dtype="int16")[rng.integers(0, len(classes), n)])
    return x, y


#: All inputs with each architecture, and each input alone with the first of them.
CASES = [*(("all", recipe) for recipe in RECIPES), *((name, RECIPES[0]) for name in INPUTS if name != "all")]


@pytest.mark.parametrize(("inputs", "recipe"), CASES, ids=lambda case: getattr(case, "name", case))
def test_every_architecture_loads_in_keras_and_has_the_inputs_and_outputs_of_the_table(inputs, recipe):
    fitted_columns = preprocessor(inputs, "two targets")
    document = architecture(fitted_columns, 1000, recipe)
    shape = describe(check_architecture(document))
    assert shape.input_shapes == tuple(tensor.shape for tensor in fitted_columns.tensors)
    assert shape.output_units == (3, 1) and shape.output_activations[0] == "softmax"
    described = describe_architecture(document)
    assert describe(check_architecture(json.loads(described.text))).input_shapes == shape.input_shapes


#: Two targets with each architecture, and each kind of target with the first of them.
TRAINED = [
    *(pytest.param("two targets", place, marks=() if place in (1, 3) else pytest.mark.slow)
      for place in range(1, len(RECIPES))),
    *((name, 0) for name in TARGETS),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("targets", "recipe"), TRAINED)
def test_every_architecture_trains_with_its_parameters(targets, recipe):
    fitted_columns = preprocessor("all", targets)
    configuration = configurations(fitted_columns, PLAN, len(RECIPES), 1)[recipe]
    assert configuration.recipe == recipe
    document = architecture(fitted_columns, PLAN.n_rows, RECIPES[recipe])
    model = build_model(document, parse_compile_params(configuration.compile_params), 1)
    x, y = rows_for(fitted_columns, 32)
    losses = model.fit(x, y, batch_size=8, epochs=12, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_the_second_configuration_is_the_only_linear_one():
    fitted_columns = preprocessor("all", "two targets")
    many = configurations(fitted_columns, PLAN, 40, 1)
    assert [place for place, one in enumerate(many) if RECIPES[one.recipe].body == LINEAR] == [1]
    assert RECIPES[1].name == LINEAR and "no hidden layer" in RECIPES[1].description


def test_a_linear_model_adds_a_weight_for_each_number_and_each_level_which_all_begin_with_0():
    fitted_columns = preprocessor("all", "two targets")
    document = architecture(fitted_columns, 1000, RECIPES[1])
    layers = document["config"]["layers"]
    dense = [layer["config"] for layer in layers if layer["class_name"] == "Dense"]
    assert [(one["units"], one.get("activation")) for one in dense] == [(3, None), (1, None)]
    others = {layer["class_name"] for layer in layers} - {"Dense"}
    assert others == {
        "InputLayer", "Embedding", "Reshape", "Flatten", "Rescaling", "Concatenate", "Add", "Activation", "Dot",
    }  # fmt: skip
    widths = {layer["config"]["output_dim"] for layer in layers if layer["class_name"] == "Embedding"}
    assert widths == {3, 1}, "the units of an output"
    model = build_model(document, parse_compile_params("loss=['mse', 'mse'], optimizer='SGD(learning_rate=0.1)'"), 1)
    assert not any(np.any(weight) for weight in model.get_weights())
    x, _ = rows_for(fitted_columns, 5)
    shares, numbers = answers(model, x)
    assert np.allclose(shares, 1 / 3) and np.allclose(numbers, 0)


UNBALANCED = {"y/n": (20, 970, 10)}


@pytest.mark.parametrize("recipe", [RECIPES[place] for place in (1, 0, 3)], ids=lambda recipe: recipe.name)
def test_networks_of_unbalanced_classes_begin_with_their_shares(recipe):
    """Their last layers are the same as others': an output of the target's name that went through softmax."""
    fitted_columns = preprocessor("all", "two targets")
    document = architecture(fitted_columns, 1000, recipe, UNBALANCED)
    described = describe_architecture(document)
    shape = describe(check_architecture(json.loads(described.text)))
    assert shape.output_units == (3, 1) and shape.output_activations == ("softmax", shape.output_activations[1])
    assert shape.output_names == describe(check_architecture(architecture(fitted_columns, 1000, recipe))).output_names
    (layer,) = [one for one in json.loads(described.text)["config"]["layers"] if one["name"] == "class_shares"]
    assert layer["config"]["offset"] == list(log_shares(UNBALANCED["y/n"]))
    params = parse_compile_params("loss=['categorical_crossentropy', 'mse'], optimizer='SGD'")
    model, plain = (build_model(one, params, 1) for one in (document, architecture(fitted_columns, 1000, recipe)))
    for layer in plain.layers:  # by name, because the shares change the order of layers
        found = model.get_layer(layer.name).get_weights()
        layer.set_weights(found if len(found) == len(layer.weights) else model.get_layer("scores").get_weights())
    x, _ = rows_for(fitted_columns, 50)
    expected = answers(plain, x)[0] * [0.02, 0.97, 0.01]
    found = answers(model, x)[0]
    assert found == pytest.approx(expected / expected.sum(axis=1, keepdims=True), rel=1e-3)
    if recipe.body == LINEAR:
        assert found == pytest.approx(np.tile([0.02, 0.97, 0.01], (50, 1)), rel=1e-3)


def test_the_shares_leave_a_dense_network_one_whose_rows_have_the_same_bits_alone():
    document = architecture(preprocessor("numbers", "two targets"), 1000, RECIPES[0], UNBALANCED)
    params = parse_compile_params("loss=['categorical_crossentropy', 'mse'], optimizer='SGD'")
    assert is_rowwise(build_model(document, params, 1))


@pytest.mark.parametrize(
    "counts", [None, {}, {"y/n": (300, 500, 200)}, {"y/n": (990, 10)}, {"y/n": ()}, {"another": (1, 9, 90)}]
)
def test_networks_of_balanced_classes_or_of_unknown_counts_are_the_same(counts):
    fitted_columns = preprocessor("all", "two targets")
    for recipe in RECIPES[:2]:
        assert architecture(fitted_columns, 1000, recipe, counts) == architecture(fitted_columns, 1000, recipe)


@pytest.mark.slow
def test_weight_decay_draws_the_linear_model_to_the_shares_of_the_classes():
    """And not to equal shares: of 350 rows with 2 % positives, and inputs without meaning, 2 % are predicted."""
    rng = np.random.default_rng(4)
    y, x = np.arange(350) % 50 == 0, rng.normal(size=(350, 4)).astype("float32")
    columns = [(spec(f"x{place}"), numbers(x[:, place].tolist())) for place in range(4)]
    fitted_columns = fitted([*columns, (target("y"), texts(["ab"[int(one)] for one in y]))])
    plan = TrainingSize((350,), 24)
    configuration = configurations(fitted_columns, plan, 2, 1)[1]
    fit = parse_fit_params(configuration.fit_params)
    means = {}
    for counts in (None, {"y": (343, 7)}):
        document = architecture(fitted_columns, plan.n_rows, RECIPES[1], counts)
        model = build_model(document, parse_compile_params(configuration.compile_params), 1)
        model.fit(x, np.eye(2)[y.astype(int)], batch_size=fit.batch_size, epochs=24 * fit.epochs, verbose=0)
        means[counts is None] = float(model.predict(x, verbose=0)[:, 1].mean())
    assert means[False] == pytest.approx(0.02, abs=0.005) and means[True] > means[False] + 0.005


def test_a_table_of_categories_alone_has_a_linear_model_with_a_bias():
    """It is trained to the share of a class that no level changes."""
    fitted_columns = preprocessor("index", "two classes")
    document = architecture(fitted_columns, 1000, RECIPES[1])
    model = build_model(document, parse_compile_params("loss='categorical_crossentropy', optimizer='SGD(0.5)'"), 1)
    x = [np.random.default_rng(1).integers(0, 5, (400, 1)).astype("int32")]
    y = np.eye(2)[(np.arange(400) % 5 > 0).astype(int)]
    model.fit(x, y, batch_size=40, epochs=20, verbose=0)
    assert answers(model, x)[0][:, 1].mean() == pytest.approx(0.8, abs=0.03)
    bias = next(layer for layer in model.layers if type(layer).__name__ == "Dense").get_weights()[1]
    assert bias[1] - bias[0] > 0.5


def test_the_linear_model_averages_large_images():
    picture = (spec("p", "image", impute="zero", width=40), raw.Blobs([None, b"1", b"2", b"3"]))
    document = architecture(fitted([picture, *TARGETS["a number"]]), 1000, RECIPES[1])
    assert describe(check_architecture(document)).output_units == (1,)
    kernel = describe_architecture(document).weights[0]
    assert tuple(kernel.shape) == (13 * 13 * 3, 1), "squares of 3 x 3 pixels"


@pytest.mark.slow
def test_rare_levels_without_meaning_change_little():
    """A level of few rows says little: of 200 levels without any meaning, the linear model makes nearly nothing."""
    rng = np.random.default_rng(4)
    codes, noise = rng.integers(0, 200, 4_000), rng.normal(size=4_000)
    y = (noise + rng.logistic(size=4_000) > 0).astype(int)
    columns = {"level": texts([f"l{code}" for code in codes]), "x": numbers(noise.tolist())}
    specs = (spec("level", "category"), spec("x"))
    fitted_columns = fitted(
        [*zip(specs, columns.values(), strict=True), (target("y"), texts(["ab"[one] for one in y]))]
    )
    x = list(Encoder(fitted_columns).encode(columns).arrays.values())
    plan = TrainingSize((2_000,), 24)
    configuration = configurations(fitted_columns, plan, 2, 1)[1]
    document = architecture(fitted_columns, plan.n_rows, RECIPES[1])
    model = build_model(document, parse_compile_params(configuration.compile_params), 1)
    fit = parse_fit_params(configuration.fit_params)
    trained = [one[:2_000] for one in x]
    model.fit(trained, np.eye(2)[y[:2_000]], batch_size=fit.batch_size, epochs=24 * fit.epochs, verbose=0)
    auc = roc_auc_score(y[2_000:], model.predict([one[2_000:] for one in x], verbose=0)[:, 1])
    assert auc > roc_auc_score(y[2_000:], noise[2_000:]) - 0.03


@pytest.mark.slow
def test_the_linear_model_is_logistic_regression():
    """Its loss is that of scikit-learn's, without a penalty, on rows of their own."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3_000, 4)).astype("float32")
    y = (x @ [2.0, -1.0, 0.5, 0.0] + rng.logistic(size=3_000) > 0).astype(int)
    columns = [(spec(f"x{place}"), numbers(x[:, place].tolist())) for place in range(4)]
    fitted_columns = fitted([*columns, (target("y"), texts(["ab"[one] for one in y]))])
    plan = TrainingSize((2_000,), 10)
    configuration = configurations(fitted_columns, plan, 2, 1)[1]
    document = architecture(fitted_columns, plan.n_rows, RECIPES[configuration.recipe])
    model = build_model(document, parse_compile_params(configuration.compile_params), 1)
    fit = parse_fit_params(configuration.fit_params)
    model.fit(x[:2_000], np.eye(2)[y[:2_000]], batch_size=fit.batch_size, epochs=10 * fit.epochs, verbose=0)
    loss = model.evaluate(x[2_000:], np.eye(2)[y[2_000:]], verbose=0)[0]
    expected = LogisticRegression(C=np.inf).fit(x[:2_000], y[:2_000]).predict_proba(x[2_000:])
    assert loss == pytest.approx(log_loss(y[2_000:], expected), abs=0.01)


def test_a_text_is_dropped_in_part_before_a_hidden_layer_that_is_narrow_in_tables_with_few_rows():
    for encode in ("hashed_ngrams", "tfidf"):
        wide = [(spec("words", "text", width=256, encode=encode), texts(["one", "two", None, "four"]))]
        for n_rows, units in ((100, 4), (6_000, 8), (10**7, 32)):
            document = architecture(fitted([*wide, *TARGETS["a number"]]), n_rows, RECIPES[0])
            layers = {layer["name"]: layer for layer in document["config"]["layers"]}

            def sources(name, layers=layers):
                ((found,),) = (call["args"] for call in layers[name]["inbound_nodes"])
                found = found if isinstance(found, list) else [found]
                return [layers[one["config"]["keras_history"][0]] for one in found]

            dropped, width = sources("text")[0], layers["text"]["config"].get("units")
            if encode == "tfidf":
                dropped, terms = sources("weighted_terms")
                width = terms["config"]["output_dim"]
            assert width == units
            assert dropped["class_name"] == "Dropout" and dropped["config"]["rate"] == 0.5


def test_each_target_has_its_own_loss_and_metric():
    found = {
        name: parse_compile_params(configurations(preprocessor("all", name), PLAN, 1, 1)[0].compile_params)
        for name in TARGETS
    }
    assert {name: (one.loss, one.metrics) for name, one in found.items()} == {
        "two classes": ("categorical_crossentropy", ["accuracy"]),
        "indices": ("sparse_categorical_crossentropy", ["accuracy"]),
        "a number": ("mse", ["mae"]),
        "two targets": (["categorical_crossentropy", "mse"], [["accuracy"], ["mae"]]),
    }


@pytest.mark.parametrize("targets", TARGETS)
def test_the_first_metric_has_the_name_under_which_keras_reports_it(targets):
    columns = preprocessor("numbers", targets)
    (configuration,) = configurations(columns, PLAN, 1, 1)
    arch = architecture(columns, 500, RECIPES[configuration.recipe])
    reported = reported_names(parse_compile_params(configuration.compile_params), check_architecture(json.dumps(arch)))
    assert metric_name(columns) == reported[1]


def test_configurations_are_distinct_and_those_of_the_seed_and_fewer_are_the_first_of_more():
    fitted_columns = preprocessor("all", "two classes")
    many = configurations(fitted_columns, PLAN, 40, 1)
    assert len(set(many)) == 40 and len({one.recipe for one in many}) == len(RECIPES)
    assert configurations(fitted_columns, PLAN, 16, 1) == many[:16]
    others = configurations(fitted_columns, PLAN, 40, 2)
    assert others[: len(RECIPES)] == many[: len(RECIPES)] and others != many
    keys = {(parse_compile_params(one.compile_params).key, parse_fit_params(one.fit_params).key) for one in many}
    assert len(keys) > 30


def test_learning_rates_fall_over_the_iterations_that_were_named():
    fitted_columns = preprocessor("numbers", "a number")
    for plan in (TrainingSize((100_000,), 10), TrainingSize((100_000,), 20), TrainingSize((70, 50), 10)):
        for one in configurations(fitted_columns, plan, 20, 1):
            rate = parse_compile_params(one.compile_params).optimizer.kwargs["learning_rate"]
            fit = parse_fit_params(one.fit_params)
            steps = sum(-(-rows // fit.batch_size) for rows in plan.shard_rows) * fit.epochs * plan.num_iterations
            assert rate.name == "CosineDecay" and rate.kwargs["decay_steps"] == steps
            assert 1e-4 < rate.kwargs["initial_learning_rate"] < 0.1


def test_batches_are_powers_of_two_and_grow_with_the_rows():
    sizes = [batch_size(n_rows) for n_rows in (1, 100, 1_000, 10_000, 100_000, 10_000_000)]
    assert sizes == sorted(sizes) and sizes[0] == 16 and sizes[-1] == 1024
    assert all(size & (size - 1) == 0 for size in sizes)
    assert epochs(TrainingSize((100_000,), 10), batch_size(100_000)) == 1 and epochs(TrainingSize((100,), 10), 16) == 2


def test_parameters_grow_with_rows_and_inputs_and_stay_few():
    n_weights = []
    for n_rows in (100, 5_000, 50_000, 10_000_000):
        described = describe_architecture(architecture(preprocessor("numbers", "a number"), n_rows, RECIPES[0]))
        n_weights.append(sum(int(np.prod(weight.shape)) for weight in described.weights))
    assert n_weights == sorted(n_weights) and n_weights[0] < 15_000 and n_weights[-1] < 1_000_000
    assert [hidden_width(n) for n in (1, 10**9)] == [64, 512]


def test_many_numbers_get_no_embeddings():
    n = MAX_EMBEDDED + 1
    wide = fitted([*((spec(f"x{i}"), numbers([1.0, 2.0, 3.0, 4.0])) for i in range(n)), *TARGETS["a number"]])
    names = {layer["class_name"] for layer in architecture(wide, 1000, RECIPES[0])["config"]["layers"]}
    assert "EinsumDense" not in names


def test_layers_have_names_of_their_own():
    graph = Graph("g")
    x = graph.input("hidden_2", (3,), "float32")
    layers = [x.layer, *(graph.dense(x, 2, "hidden").layer for _ in range(3))]
    assert len(set(layers)) == 4 and all(re.fullmatch(r"\w+", name) for name in layers)


@pytest.mark.parametrize("targets", TARGETS)
def test_a_search_can_draw_from_the_grids(targets):
    grids = search_grids(preprocessor("all", targets), TrainingSize((300,), 1))
    drawn = draw_random(*grids, 20, 1)
    rates = {parse_compile_params(compile_text).learning_rate for compile_text, _ in drawn}
    assert len(rates) == 20 and {parse_fit_params(fit).batch_size for _, fit in drawn} == {8, 16, 32}
