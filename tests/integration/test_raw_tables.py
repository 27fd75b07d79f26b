"""Tables as they are, not packed: evaluate, deploy and make_ensemble encode them by each model's own encoder."""

import numpy as np
import pytest

from tests.helpers.columns import load_churn_network
from tests.helpers.inference import Dependent, ModelTable, User
from tests.helpers.training import fit

pytestmark = pytest.mark.one_session

DEPLOY = "SELECT madlib_mop.deploy('churn', 'champion', %s, test_table => '{}', better_than_current => true)"


@pytest.fixture(scope="module")
def db(churn_db):
    return churn_db


@pytest.fixture(scope="module")
def user(db):
    """Two versions of churn: of one packing of the customers, and of a later one with other statistics."""
    db.rows("CREATE VIEW later AS SELECT * FROM customers WHERE id > 150")
    db.rows("CREATE VIEW sample AS SELECT * FROM customers WHERE id % 3 = 0")
    db.rows("SELECT madlib_mop.pack_columns('later', 'repacked', 'churned', validation => 0.2, seed => 2)")
    load_churn_network(db, "arch_2", "mst_2")
    fit(db, "churn_2", "mst_2", 4, source_table="repacked", validation_table="repacked_validation", seed=1)
    user = User(db.connect())
    user.rows("SET madlib_mop.segments = 1")
    for version, table in ((1, "packed"), (2, "repacked")):
        user.rows(f"SELECT madlib.validation_preprocessor_dl('sample', 'sample_{version}', '*', '*', '{table}')")
    user.rows("SELECT madlib_mop.register('churn', 'churn', 1), madlib_mop.register('churn', 'churn_2', 1)")
    user.rows("SELECT madlib_mop.set_alias('churn', 'champion', 1)")
    yield user
    user.connection.close()


def test_an_evaluation_of_a_table_as_it_is_equals_that_of_the_packed_one(user):
    for version, model in ((1, "'churn', {}, mst_key => 1"), (2, "'churn@2', {}")):
        for name, table in (("packed", f"sample_{version}"), ("raw", "sample")):
            call = model.format(f"'{table}', 'of_{name}_{version}'")
            user.rows(f"SELECT madlib.madlib_keras_evaluate({call})")
        found = user.rows(f"TABLE of_raw_{version}")
        assert found == user.rows(f"TABLE of_packed_{version}") and found[0][0] > 0


def test_versions_of_two_packings_are_compared_on_the_rows_of_a_table(user):
    accuracies = dict(user.rows(
        "SELECT v, avg((madlib_mop.predict_class('churn@' || v, NULL, c) = churned)::integer)::float8"
        " FROM sample c, unnest('{1, 2}'::integer[]) v GROUP BY v"
    ))  # fmt: skip
    for version in (2, 1):
        user.rows("SELECT madlib_mop.set_alias('churn', 'champion', %s)", 3 - version)
        found = user.value(DEPLOY.format("sample"), version)
        assert found == (accuracies[version] > accuracies[3 - version])
    evidence = user.rows(
        "SELECT (evidence ->> 'value')::float8, (evidence ->> 'current_value')::float8, evidence ->> 'test_table'"
        " FROM madlib_mop.alias_history WHERE change = 'deploy'"
    )
    better = max(accuracies, key=accuracies.get)
    assert evidence == [(pytest.approx(accuracies[better]), pytest.approx(accuracies[3 - better]), "public.sample")]


def test_a_packed_table_is_refused_for_a_model_of_another_packing(user):
    user.rows("SELECT madlib_mop.set_alias('churn', 'champion', 1)")
    refused = user.refused(user.value, DEPLOY.format("sample_2"), 2)
    assert refused.message == (
        "deploy: test_table: its columns were encoded by another preprocessor than those of churn@1."
        " Received: 'public.sample_2'"
    )
    assert refused.hint.startswith("Pass the table of the rows before they were packed")


def test_what_a_table_lacks_is_said(user):
    user.rows("CREATE VIEW unlabelled AS SELECT id, age, income, tier, city, active, joined, seen FROM customers")
    user.rows("CREATE VIEW unseen AS SELECT (c).*, 'maybe' AS churned FROM (SELECT u AS c FROM unlabelled u) u")
    evaluate = "SELECT madlib.madlib_keras_evaluate('churn@1', %s, 'x')"
    for table, message in (
        ("unlabelled", "test_table: public.unlabelled has no column 'churned', with which the table was packed"),
        ("unseen", "'maybe'"),
    ):
        assert message in user.refused(user.rows, evaluate, table).message


def test_members_of_an_ensemble_are_chosen_by_rows_of_a_table(user):
    rows = "SELECT * FROM madlib_mop.make_ensemble('churn', %s, %s)"
    assert user.rows(rows, "sample", "e_raw") == user.rows(rows, "sample_1", "e_packed")
    final = "SELECT validation_loss_final FROM {}_info"
    assert user.value(final.format("e_raw")) == user.value(final.format("e_packed")) > 0


def test_a_baseline_is_a_table_as_it_is(user):
    drifts = []
    for version, table in ((3, "sample"), (4, "sample_1")):
        user.rows(f"SELECT madlib_mop.register('churn', 'churn', 1, baseline => '{table}')")
        drifts.append(user.rows(
            "SELECT feature, psi, baseline_rows FROM madlib_mop.drift(%s, 'customers') WHERE kind = 'prediction'",
            f"churn@{version}",
        ))  # fmt: skip
    assert drifts[0] == drifts[1] and drifts[0][0][2] == 200


ARRAYS = ModelTable(
    compile_params="loss='categorical_crossentropy', optimizer='sgd', metrics=['accuracy']",
    dependent=[Dependent(values=["a", "b", "c"])], normalizing_const=2.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def arrays(user, keras):
    """A model of arrays and one of class indices, with rows for them."""
    user.rows(
        "CREATE TABLE points AS SELECT i AS id, ARRAY[i % 5, i % 7, i % 3] AS x,"
        " (ARRAY['a', 'b', 'c'])[1 + i * 7 % 3]::varchar AS y FROM generate_series(1, 100) i"
    )
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
    user.write_models("one_hot", {1: net}, ARRAYS)
    params = ARRAYS.compile_params.replace("'categ", "'sparse_categ")
    user.write_models("by_index", {1: net}, ModelTable(**{**vars(ARRAYS), "compile_params": params}))
    for labels in ("one_hot", "by_index"):
        form = labels.removeprefix("by_")
        user.rows(f"SELECT madlib.training_preprocessor_dl('points', 'of_{labels}', 'y', 'x', 30, 2.0, labels =>"
                  f" '{form}', seed => 1)")  # fmt: skip
    return user


@pytest.mark.parametrize("model", ["one_hot", "by_index"])
def test_models_of_arrays_take_their_columns_from_the_table(arrays, model):
    user = arrays
    user.rows("SELECT madlib_mop.register(%s, %s, 1)", model, model)
    found, version = [], f"{model}@1"
    for number, (name, table) in enumerate(((version, "points"), (model, "points"), (version, f"of_{model}"))):
        user.evaluate(name, table, f"of_{model}_{number}", mst_key=1 if name == model else None)
        found += user.rows(f"SELECT loss, metric FROM of_{model}_{number}")
    assert found[0] == found[1] and np.allclose(found[0], found[2], rtol=1e-6)


def test_classes_of_char_n_are_found_whatever_blanks_fill_them(arrays, keras):
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
    dependent = [Dependent(values=["a  ", "b  ", "c  "], vartype="character")]
    arrays.write_models("of_char", {1: net}, ModelTable(**{**vars(ARRAYS), "dependent": dependent}))
    arrays.rows("CREATE VIEW char_points AS SELECT x, y::char(3) AS y FROM points")
    arrays.write_models("of_text", {1: net}, ARRAYS)
    for model, table in (("of_char", "char_points"), ("of_text", "points")):
        arrays.evaluate(model, table, f"{model}_evaluated", mst_key=1)
    assert arrays.rows("SELECT loss, metric FROM of_char_evaluated") == arrays.rows(
        "SELECT loss, metric FROM of_text_evaluated"
    )


def test_versions_with_different_targets_are_each_compared_with_their_own(arrays, keras):
    """They differ in nothing else; the second version is right in each row, the first one is not."""
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
    for name in ("y", "z"):
        dependent = [Dependent(name=name, values=["a", "b", "c"])]
        arrays.write_models(f"of_{name}", {1: net}, ModelTable(**{**vars(ARRAYS), "dependent": dependent}))
        arrays.rows("SELECT madlib_mop.register('of_targets', %s, 1)", f"of_{name}")
    arrays.rows(
        "CREATE TABLE both_targets AS SELECT x, z, CASE WHEN id % 2 = 0 THEN z ELSE translate(z, 'abc', 'cab') END AS y"
        " FROM (SELECT p.id, p.x, madlib_mop.predict_class('of_targets@1', NULL, p.x) AS z FROM points p) q"
    )
    arrays.rows("SELECT madlib_mop.set_alias('of_targets', 'champion', 1)")
    deploy = DEPLOY.format("both_targets").replace("'churn'", "'of_targets'")
    assert arrays.value(deploy, 2) is True
    evidence = "SELECT evidence ->> %s FROM madlib_mop.alias_history WHERE name = 'of_targets' AND change = 'deploy'"
    assert [float(arrays.value(evidence, key)) for key in ("value", "current_value")] == [1, 0.5]


def test_classes_that_a_model_of_arrays_does_not_know_are_refused(arrays):
    arrays.rows("CREATE VIEW strange AS SELECT x, 'd' AS y FROM points")
    refused = arrays.refused(arrays.evaluate, "one_hot", "strange", "out", mst_key=1)
    assert refused.message == (
        "madlib_keras_evaluate: column 'y' has values that are not among the classes of mst_key 1 of"
        " public.one_hot: 'd'"
    )
    arrays.rows("CREATE VIEW nameless AS SELECT x AS z, y FROM points")
    refused = arrays.refused(arrays.evaluate, "one_hot", "nameless", "out", mst_key=1)
    assert refused.message == "madlib_keras_evaluate: test_table: table public.nameless has no column 'x'"


def test_an_empty_table_is_refused_by_the_name_of_its_argument(arrays):
    arrays.rows("CREATE VIEW no_points AS SELECT * FROM points WHERE false")
    refused = arrays.refused(arrays.evaluate, "one_hot", "no_points", "out", mst_key=1)
    assert refused.message == "madlib_keras_evaluate: test_table has no rows. Received: 'no_points'"
    register = "SELECT madlib_mop.register('of_no_rows', 'one_hot', 1, held_out => 'no_points')"
    assert arrays.refused(arrays.rows, register).message == "register: held_out has no rows. Received: 'no_points'"
