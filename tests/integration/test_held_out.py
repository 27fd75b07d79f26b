"""How sure: intervals, sets and calibrated probabilities by held-out rows, and measures of labelled rows."""

import json

import numpy as np
import psycopg2
import pytest

from madlib_mop.client import connect, load_exported
from madlib_mop.errors import InvalidParameter, Unsupported
from tests.helpers.columns import load_linear, pack_with
from tests.helpers.drift import rows_of
from tests.helpers.inference import User
from tests.helpers.pages_of_runs import Page
from tests.helpers.training import one_thread

pytestmark = pytest.mark.one_session

HOUSES = """
CREATE TABLE {name} AS
SELECT i AS id, i * 7 % 50 AS age, (i * 37 % 500)::float8 / 100 AS size, (ARRAY['a', 'b', 'c'])[1 + i % 3] AS kind,
       10 * (i * 37 % 500)::float8 / 100 + i % 3 + sin(i * 12.9898) AS price,
       CASE WHEN i * 7 % 50 + 12 * sin(i * 78.233) > 25 THEN 'yes' ELSE 'no' END AS sold
FROM generate_series({first}, {last}) AS i
"""
ROWS = "FROM later AS h"


def train(db, target: str, more: str = "") -> None:
    """Pack the houses for a target, with test rows, and train one network on them."""
    other = {"price": "sold", "sold": "price"}[target]
    pack_with(db, 1, f"pack_columns('houses', '{target}_packed', '{target}', validation => 0.1, test => 0.3, seed => 1,"
                     f" exclude => '{{id,{other}}}'{more})")  # fmt: skip
    load_linear(db, f"{target}_packed", {target: {"price": None, "sold": 2}[target]}, "batch_size=16, epochs=6")
    db.rows(f"SELECT madlib.madlib_keras_fit_multiple_model('{target}_packed', '{target}_models', '{target}_configs',"
            f" 1, validation_table => '{target}_packed_validation', seed => 1)")  # fmt: skip


@pytest.fixture(scope="module")
def user(db):
    one_thread()
    db.rows(HOUSES.format(name="houses", first=1, last=1500))
    db.rows(HOUSES.format(name="later", first=1501, last=2500))
    for target in ("price", "sold"):
        train(db, target)
    user = User(db.connect())
    for target in ("price", "sold"):
        user.rows(f"SELECT madlib_mop.register('{target}', '{target}_models', held_out => '{target}_packed_test')")
        user.rows(f"SELECT madlib_mop.set_alias('{target}', 'newest', 1)")
    yield user
    user.connection.close()


def refused(session, query: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as caught:
        session.rows(query)
    assert "internal error" not in str(caught.value) and "Traceback" not in str(caught.value)
    return caught.value


def test_intervals_cover_rows_that_the_model_has_not_seen(user):
    query = (
        f"SELECT avg((price BETWEEN lower AND upper)::int), min(upper - lower), max(prediction - p) {ROWS},"
        " madlib_mop.predict_interval('price', h, {}) AS i, madlib_mop.predict_number('price', h) AS p"
    )
    widths = []
    for coverage in (0.5, 0.9, 0.95):
        share, width, difference = user.rows(query.format(coverage))[0]
        assert float(share) == pytest.approx(coverage, abs=0.06) and difference == 0
        widths.append(width)
    assert widths == sorted(widths) and widths[0] > 0


def test_the_default_coverage_is_nine_tenths_and_a_null_row_has_no_interval(user):
    one = "SELECT i.* FROM later AS h, madlib_mop.predict_interval('price@1', h{}) AS i WHERE id = 1600"
    assert user.rows(one.format("")) == user.rows(one.format(", coverage => 0.9"))
    assert user.rows("SELECT * FROM madlib_mop.predict_interval('price', NULL::later)") == [(None, None, None)]
    assert user.value("SELECT madlib_mop.predict_set('sold', NULL::later)") is None
    anonymous = "SELECT (madlib_mop.predict_interval('price', a)).lower FROM (SELECT age, size, kind FROM later) AS a"
    assert user.value(f"{anonymous} LIMIT 1") is not None


def test_sets_cover_rows_that_the_model_has_not_seen(user):
    sets = f"{ROWS}, madlib_mop.predict_set('sold', h, {{}}) AS s"
    query = f"SELECT avg((sold = ANY (s))::int), avg(cardinality(s)) {sets}"
    sizes = []
    for coverage in (0.7, 0.9, 0.97):
        share, size = user.rows(query.format(coverage))[0]
        assert float(share) == pytest.approx(coverage, abs=0.05)
        sizes.append(size)
    assert sizes == sorted(sizes) and sizes[-1] > 1
    best = f"SELECT bool_and(s[1] = madlib_mop.predict_class('sold', h)) {sets}"
    assert user.value(best.format(0.97)) is True


def test_calibrated_probabilities_are_returned_only_where_they_are_asked_for(user):
    query = (f"SELECT madlib_mop.predict_json('sold', h) AS raw, madlib_mop.predict_json('sold', h, calibrated => {{}})"
             f" AS other {ROWS} ORDER BY id")  # fmt: skip
    assert all(raw == other for raw, other in user.rows(query.format("false")))
    pairs = user.rows(query.format("true"))
    assert any(raw != other for raw, other in pairs)
    for raw, other in pairs[:50]:
        assert sum(other.values()) == pytest.approx(1) and max(raw, key=raw.get) == max(other, key=other.get)


def test_too_few_rows_for_a_coverage_are_an_error_that_says_which_is_possible(user):
    n_rows = user.value("SELECT sum(price_shape[1]) FROM price_packed_test")
    error = refused(user, f"SELECT madlib_mop.predict_interval('price', h, 0.9999) {ROWS}")
    assert "at least 9,999 held-out rows" in error.diag.message_primary and f"{n_rows:,}" in error.diag.message_primary
    assert "highest coverage of these rows is 0.99" in error.diag.message_hint and error.pgcode == "22023"
    for coverage in ("0", "1", "-1", "NULL", "'NaN'"):
        error = refused(user, f"SELECT madlib_mop.predict_set('sold', h, {coverage}) {ROWS}")
        assert "predict_set: coverage must be above 0 and below 1" in error.diag.message_primary


def test_a_version_without_held_out_rows_says_how_it_gets_them(user):
    user.rows("SELECT madlib_mop.register('bare', 'sold_models')")
    for call in ("predict_set('bare@1', h)", "predict_json('bare@1', h, calibrated => true)"):
        error = refused(user, f"SELECT madlib_mop.{call} {ROWS} LIMIT 1")
        assert "was registered without held-out rows" in error.diag.message_primary and error.pgcode == "55000"
        assert "held_out => 'packed_test'" in error.diag.message_hint and "test => 0.2" in error.diag.message_hint


def test_the_wrong_kind_of_model_is_refused_with_the_right_function(user):
    error = refused(user, f"SELECT madlib_mop.predict_interval('sold', h) {ROWS} LIMIT 1")
    assert "predicts a class, 'sold'" in error.diag.message_primary and "predict_set" in error.diag.message_hint
    error = refused(user, f"SELECT madlib_mop.predict_set('price', h) {ROWS} LIMIT 1")
    assert "predicts a number, 'price'" in error.diag.message_primary and "predict_interval" in error.diag.message_hint
    error = refused(user, f"SELECT madlib_mop.predict_json('price', h, calibrated => true) {ROWS} LIMIT 1")
    assert "calibrated is for classes" in error.diag.message_primary
    assert "name of a registered model" in str(refused(user, f"""SELECT madlib_mop.predict_set('"sold"', h) {ROWS}"""))


@pytest.mark.parametrize("table, use", [
    ("sold_packed", "trained"), ("sold_packed_validation", "chosen"), ("houses", "trained"),
])  # fmt: skip
def test_rows_that_trained_or_chose_the_model_are_refused(user, table, use):
    error = refused(user, f"SELECT madlib_mop.register('no', 'sold_models', held_out => '{table}')")
    assert f"have {use} the model" in error.diag.message_primary and "test => 0.2" in error.diag.message_hint
    assert user.value("SELECT count(*) FROM madlib_mop.model_version WHERE name = 'no'") == 0


def test_rows_that_are_not_packed_are_held_out_rows_too(user):
    user.rows("SELECT madlib_mop.register('by_rows', 'sold_models', held_out => 'later', calibration => 'isotonic')")
    (found,) = user.value("SELECT lineage -> 'held_out' FROM madlib_mop.version_detail JOIN madlib_mop.model_version"
                          " USING (version_id) WHERE name = 'by_rows'")  # fmt: skip
    assert found == {"output": "sold", "table": "public.later", "n_rows": 1000, "calibration": "isotonic"}
    errors = "SELECT DISTINCT calibration_error FROM madlib_mop.reliability('by_rows@1', 'later', calibrated => {})"
    assert user.value(errors.format("true")) < 0.03
    user.rows("CREATE VIEW none AS SELECT * FROM later WHERE false")
    for argument in ("held_out", "baseline"):
        error = refused(user, f"SELECT madlib_mop.register('no', 'sold_models', {argument} => 'none')")
        assert f"{argument} has no rows. Received: 'none'" in error.diag.message_primary and error.pgcode == "22023"
    assert "source_table has no rows" in str(refused(user, "SELECT * FROM madlib_mop.metrics('sold', 'none')"))
    error = refused(user, "SELECT madlib_mop.register('no', 'sold_models', calibration => 'other')")
    assert "calibration must be one of temperature, isotonic" in str(error)


def test_what_is_recorded_is_small_and_holds_no_more_than_scores(user):
    document = json.loads(user.value("SELECT document FROM madlib_mop.version_content JOIN madlib_mop.model_version"
                                     " USING (version_id) WHERE name = 'price'"))  # fmt: skip
    (record,) = document["held_out"]
    assert set(record) == {
        "output", "table", "n_rows", "score", "ranks", "scores", "calibration", "temperature", "curves", "uniform",
    }  # fmt: skip
    assert len(record["scores"]) <= 1000 and record["scores"] == sorted(record["scores"])


def test_a_confusion_matrix_counts_what_predict_class_returns(user):
    found = {(row["actual"], row["predicted"]): row["n_rows"] for row in rows_of(
        user, "SELECT * FROM madlib_mop.confusion_matrix('sold', 'later')")}  # fmt: skip
    counted = user.rows(f"SELECT sold, madlib_mop.predict_class('sold', h) AS p, count(*) {ROWS} GROUP BY 1, 2")
    assert {pair: n for pair, n in found.items() if n} == {(actual, p): n for actual, p, n in counted}
    assert len(found) == 4 and sum(found.values()) == 1000


def test_curves_and_thresholds_agree_with_the_probabilities(user):
    probabilities = np.array(user.rows(f"SELECT (madlib_mop.predict('sold', h))[2], (sold = 'yes')::int {ROWS}"), float)
    metrics = pytest.importorskip("sklearn.metrics")
    roc = rows_of(user, "SELECT * FROM madlib_mop.roc_curve('sold', 'later')")
    assert {row["class"] for row in roc} == {"yes"} and len(roc) <= 100
    assert roc[0]["auc"] == pytest.approx(metrics.roc_auc_score(probabilities[:, 1], probabilities[:, 0]))
    curve = rows_of(user, "SELECT * FROM madlib_mop.precision_recall_curve('sold', 'later', 'yes', max_points => 7)")
    assert len(curve) == 7
    for row in curve:
        predicted = probabilities[:, 0] >= row["threshold"]
        assert row["n_predicted"] == predicted.sum()
        assert row["precision"] == pytest.approx(probabilities[predicted, 1].mean())
    costs = {}
    for false_negative in (1, 20):
        (row,) = rows_of(user, "SELECT * FROM madlib_mop.choose_threshold('sold', 'later', 'yes',"
                               f" cost_false_positive => 1, cost_false_negative => {false_negative})")  # fmt: skip
        predicted = probabilities[:, 0] >= row["threshold"]
        wrong = predicted & (probabilities[:, 1] == 0)
        missed = ~predicted & (probabilities[:, 1] == 1)
        assert row["cost"] == wrong.sum() + false_negative * missed.sum()
        costs[false_negative] = row["threshold"]
    assert costs[20] < costs[1]
    (row,) = rows_of(user, "SELECT * FROM madlib_mop.choose_threshold('sold', 'later', least_precision => 0.95)")
    assert row["precision"] >= 0.95 and row["recall"] > 0
    (row,) = rows_of(user, "SELECT * FROM madlib_mop.choose_threshold('sold', 'later', highest_f1 => true)")
    predicted = probabilities[:, 0] >= row["threshold"]
    assert (row["n_predicted"], row["cost"]) == (predicted.sum(), None)
    f1 = metrics.f1_score(probabilities[:, 1], predicted)
    others = (metrics.f1_score(probabilities[:, 1], probabilities[:, 0] >= limit) for limit in np.linspace(0, 1, 101))
    assert f1 >= max(others)
    for wrong in ("", ", cost_false_positive => 1", ", least_precision => 0.9, cost_false_positive => 1",
                  ", least_precision => 0.9, cost_false_positive => 1, cost_false_negative => 1",
                  ", highest_f1 => true, least_precision => 0.9", ", highest_f1 => true, cost_false_negative => 1",
                  ", highest_f1 => false", ", least_precision => 2"):  # fmt: skip
        error = refused(user, f"SELECT * FROM madlib_mop.choose_threshold('sold', 'later'{wrong})")
        assert error.pgcode == "22023"


def test_metrics_of_all_rows_and_by_slice(user):
    every = {row["metric"]: row for row in rows_of(user, "SELECT * FROM madlib_mop.metrics('sold', 'later')")}
    right = user.value(f"SELECT avg((sold = madlib_mop.predict_class('sold', h))::int)::float8 {ROWS}")
    assert every["accuracy"]["value"] == pytest.approx(right) and every["accuracy"]["n_rows"] == 1000
    by_kind = rows_of(user, "SELECT * FROM madlib_mop.metrics('sold', 'later', by => 'kind') WHERE metric = 'accuracy'")
    assert [row["slice"] for row in by_kind] == ["a", "b", "c"]
    for row in by_kind:
        expected = user.value(f"SELECT avg((sold = madlib_mop.predict_class('sold', h))::int)::float8 {ROWS}"
                              f" WHERE kind = '{row['slice']}'")  # fmt: skip
        assert row["value"] == pytest.approx(expected)
    by_price = rows_of(user, "SELECT * FROM madlib_mop.metrics('price', 'later', by => 'price') WHERE metric = 'MAE'")
    assert len(by_price) == 4 and sum(row["n_rows"] for row in by_price) == 1000
    error = refused(user, "SELECT * FROM madlib_mop.metrics('sold', 'later', by => 'missing')")
    assert "no such column" in str(error) and "kind" in str(error)
    assert user.value("SELECT count(*) FROM madlib_mop.metrics('sold', 'sold_packed_test')") > 0
    error = refused(user, "SELECT * FROM madlib_mop.metrics('sold', 'sold_packed_test', by => 'kind')")
    expected = "by: public.sold_packed_test is a packed table, which cannot be sliced. Received: 'kind'"
    assert expected in error.diag.message_primary and "leave by out" in error.diag.message_hint
    assert "predicts numbers" in str(refused(user, "SELECT * FROM madlib_mop.confusion_matrix('price', 'later')"))


def test_reliability_of_a_class_and_of_the_predicted_one(user):
    for of_class in ("NULL", "'yes'"):
        found = rows_of(user, f"SELECT * FROM madlib_mop.reliability('sold', 'later', {of_class}, n_bins => 5)")
        assert sum(row["n_rows"] for row in found) == 1000 and len({row["calibration_error"] for row in found}) == 1
        error = sum(row["n_rows"] * abs(row["probability"] - row["share"]) for row in found) / 1000
        assert found[0]["calibration_error"] == pytest.approx(error)
    query = "SELECT * FROM madlib_mop.reliability('sold_models', 'later', mst_key => 1, calibrated => true)"
    error = refused(user, query)
    assert "without held-out rows" in str(error)


def test_a_role_that_may_only_predict_gets_intervals(user, db):
    db.cluster.create_role("predicts_intervals")
    user.rows("SELECT madlib_mop.grant_model('price', 'predicts_intervals', 'predict')")
    user.rows("GRANT SELECT ON later TO predicts_intervals")
    session = User(db.connect("predicts_intervals"))
    query = f"SELECT i.* {ROWS}, madlib_mop.predict_interval('price', h) AS i WHERE id = 1600"
    assert session.rows(query) == user.rows(query)
    session.connection.close()


def test_the_client_and_exported_files_return_the_same(user, db, tmp_path):
    with connect(db.dsn) as client:
        rows = client.query("SELECT age, size, kind FROM later ORDER BY id LIMIT 300")
        price, sold = client.registered("price@1"), client.registered("sold@newest")
        bounds = price.predict_interval(rows, coverage=0.8)
        query = f"SELECT i.* {ROWS}, madlib_mop.predict_interval('price', h, 0.8) AS i ORDER BY id LIMIT 300"
        assert [tuple(row) for row in bounds.to_numpy().tolist()] == user.rows(query)
        assert list(bounds.columns) == ["prediction", "lower", "upper"]
        sets = sold.predict_set(rows, coverage=0.95)
        query = f"SELECT madlib_mop.predict_set('sold', h, 0.95) {ROWS} ORDER BY id LIMIT 300"
        assert [(one,) for one in sets.tolist()] == user.rows(query)
        assert sold.predict_set("later", key="id", coverage=0.95).loc[1501] == sets[0]
        assert price.predict_interval("later", key="id", coverage=0.8).loc[1501].tolist() == bounds.loc[0].tolist()
        calibrated = sold.predict_proba(rows, calibrated=True)
        query = f"SELECT madlib_mop.predict_json('sold', h, true) {ROWS} ORDER BY id LIMIT 300"
        assert [(one,) for one in calibrated.to_dict("records")] == user.rows(query)
        for handle in (price, sold):
            handle.export(tmp_path / handle.name, "onnx")
        local = {handle.name: load_exported(tmp_path / handle.name) for handle in (price, sold)}
        found = local["price@1"].predict_interval(rows, coverage=0.8)
        assert found.to_numpy() == pytest.approx(bounds.to_numpy(), rel=1e-4, abs=1e-3)
        assert np.mean([a == b for a, b in zip(local["sold@newest"].predict_set(rows, 0.95), sets, strict=True)]) > 0.98
        assert local["sold@newest"].predict_proba(rows, calibrated=True).to_numpy() == pytest.approx(
            calibrated.to_numpy(), abs=1e-4
        )
        with pytest.raises(InvalidParameter, match="at least 999,999 held-out rows"):
            local["price@1"].predict_interval(rows, coverage=0.999999)
        with pytest.raises(Unsupported, match="one output of classes"):
            local["price@1"].predict_set(rows)
        assert client.registered("sold@1").confusion_matrix(client.query("TABLE later"))["n_rows"].sum() == 1000
        assert "900 held-out rows" not in sold.card() and "held-out rows of public.sold" in sold.card()


def test_an_imported_version_has_what_the_file_has(user):
    user.rows("SELECT madlib_mop.import_version('again', madlib_mop.export_model('sold@1'))")
    same = f"SELECT bool_and(madlib_mop.predict_set('again@1', h) = madlib_mop.predict_set('sold@1', h)) {ROWS}"
    assert user.value(same) is True


FINDINGS = ("SELECT findings FROM madlib_mop.version_detail JOIN madlib_mop.model_version USING (version_id)"
            " WHERE name = %s AND version = 1")  # fmt: skip


def test_a_version_records_what_the_functions_return_for_the_held_out_rows(user):
    found = user.value(FINDINGS, "sold")
    (output,) = found["outputs"]
    assert found["held_out"] == "public.sold_packed_test" and found["importances"] == found["dependences"] == []
    one = output["confusion"]
    counted = {(row["actual"], row["predicted"]): row["n_rows"] for row in rows_of(
        user, "SELECT * FROM madlib_mop.confusion_matrix('sold', 'sold_packed_test')")}  # fmt: skip
    pairs = [(actual, predicted) for actual in one["classes"] for predicted in one["classes"]]
    assert dict(zip(pairs, [count for row in one["counts"] for count in row], strict=True)) == counted
    (curve,) = output["curves"]
    roc = rows_of(user, "SELECT * FROM madlib_mop.roc_curve('sold', 'sold_packed_test')")
    assert (curve["of_class"], curve["area"], len(curve["points"])) == ("yes", roc[0]["auc"], len(roc))
    same = {"threshold": "threshold", "false_positive_rate": "false_positive_rate", "recall": "true_positive_rate"}
    for name, column in same.items():
        assert [point[name] for point in curve["points"]] == [row[column] for row in roc]
    precision = rows_of(user, "SELECT * FROM madlib_mop.precision_recall_curve('sold', 'sold_packed_test')")
    assert [point["precision"] for point in curve["points"]] == [row["precision"] for row in precision]
    for one, calibrated in zip(output["reliability"], ("false", "true"), strict=True):
        bins = rows_of(user, "SELECT * FROM madlib_mop.reliability('sold', 'sold_packed_test', n_bins => 10,"
                             f" calibrated => {calibrated})")  # fmt: skip
        assert one["error"] == pytest.approx(bins[0]["calibration_error"])
        assert [part["share"] for part in one["bins"]] == pytest.approx([row["share"] for row in bins])
    assert [one["calibration"] for one in output["reliability"]] == [None, "temperature"]
    numbers = user.value(FINDINGS, "price")
    assert numbers["outputs"] == [] and numbers["held_out"] == "public.price_packed_test"
    user.rows("SELECT madlib_mop.register('plain', 'sold_models')")
    assert user.value(FINDINGS, "plain") is None


def run_of(user, name: str) -> int:
    return user.value("SELECT run_id FROM madlib_mop.registry WHERE name = %s LIMIT 1", name)


def test_a_report_shows_what_was_recorded_and_how_the_rest_is(user):
    page = Page(user.value("SELECT madlib_mop.report(%s)", run_of(user, "price")))
    assert "has a record of its columns" in page.text
    call = page.code["SQL that registers the best model"]
    assert "register('my_model', 'public.price_models', held_out =>" in call
    user.rows("SELECT madlib_mop.register('why', 'price_models', held_out => 'price_packed_test',"
              " explained => 'houses')")  # fmt: skip
    page = Page(user.value("SELECT madlib_mop.report(%s)", run_of(user, "price")))
    bars = page.data("column-importance")["bars"]
    by_table = rows_of(user, "SELECT * FROM madlib_mop.importance('price', 'price_packed_test', max_rows => 2000)")
    assert [bar["p"] for bar in bars] == [row["feature"] for row in by_table] and bars[0]["p"] == "size"
    assert [bar["v"] for bar in bars] == pytest.approx([row["importance"] for row in by_table])
    lines = page.data("dependence-1")["values"]
    assert len(lines) == 12 and lines[-1]["v"] > lines[0]["v"] + 20  # ten times the size is most of the price
    assert "Version 1 of the registered model why" in page.text and "no registered model" not in page.text.lower()
    by_name = Page(user.value("SELECT madlib_mop.report('why@1'::text)"))
    assert by_name.data("column-importance") == page.data("column-importance")
    found = user.value(FINDINGS, "why")
    assert found["importance_of"] == "public.price_packed_test" and found["explained"] == "public.houses"
    page = Page(user.value("SELECT madlib_mop.report(%s)", run_of(user, "sold")))
    cells = {(cell["a"], cell["p"]): cell["n"] for cell in page.data("confusion")["cells"]}
    assert len(cells) == 4 and sum(cells.values()) == 1000  # the newest version's: those of later
    assert {"diagonal", "points"} == set(page.data("roc")) == set(page.data("reliability"))


def test_columns_are_found_without_held_out_rows_too(user, db):
    user.rows("SELECT madlib_mop.register('reasons', 'sold_models', explained => 'later')")
    found = user.value(FINDINGS, "reasons")
    assert found["held_out"] is None and found["outputs"] == [] and found["importance_of"] == "public.later"
    assert {one["of_class"] for one in found["dependences"]} == {"yes"}
    assert {one["feature"] for one in found["dependences"]} == {"age", "size", "kind"}
    page = Page(user.value("SELECT madlib_mop.report(%s)", run_of(user, "sold")))
    assert "Version 1 of the registered model reasons, on 1,000 rows of public.later" in page.text
    assert page.data("confusion")["cells"] and "SQL that registers the best model" not in page.code, "of two versions"
    error = refused(user, "SELECT madlib_mop.register('no', 'sold_models', explained => 'sold_packed')")
    assert "explained" in error.diag.message_primary and error.pgcode == "22023"
    error = refused(user, "SELECT madlib_mop.register('no', 'sold_models', explained => 'nowhere')")
    assert "explained" in error.diag.message_primary
    user.rows("CREATE VIEW no_houses AS SELECT * FROM later WHERE false")
    error = refused(user, "SELECT madlib_mop.register('no', 'sold_models', explained => 'no_houses')")
    assert "explained has no rows" in error.diag.message_primary and error.pgcode == "22023"
    with connect(db.dsn) as client:
        version = client.model("sold_models", 1).register("by_client", explained="later")
    assert user.value(FINDINGS, "by_client") == found and version.name == "by_client@1"


def test_a_role_that_may_see_the_run_alone_sees_nothing_of_the_model(user, db):
    """A value of a column can be a person's name: it is for roles that may see the registered model."""
    role, run_id = "sees_the_run", run_of(user, "price")
    db.cluster.create_role(role)
    db.rows("SELECT madlib_mop.grant_use(%s)", [role])
    db.rows("SELECT madlib_mop.grant_read(%s, current_user)", [role])
    report = db.value("SELECT madlib_mop.report(%s)", [run_id], role=role)
    assert "registered model why" not in report and "column-importance" not in report
    user.rows("SELECT madlib_mop.grant_model('why', %s, 'see')", role)
    report = db.value("SELECT madlib_mop.report(%s)", [run_id], role=role)
    assert "registered model why" in report and "column-importance" in report


def test_a_version_of_another_role_is_not_shown_as_a_model_of_the_run(user, db):
    """Anybody who may train can register a version by hand that names the run, with invented findings."""
    run_id = run_of(user, "price")
    db.cluster.create_role("forges_findings")
    db.rows("SELECT madlib_mop.grant_use(%s)", ["forges_findings"])
    user.rows("SELECT madlib_mop.register('genuine', 'price_models', explained => 'houses')")
    before = Page(user.value("SELECT madlib_mop.report(%s)", run_id))
    findings = user.value(FINDINGS, "genuine")
    findings["importances"][0]["columns"][0]["importance"] = 1e6
    details = {"digest": "", "n_bytes": 0, "model_arch": {}, "run_id": run_id, "findings": findings}
    statement = "INSERT INTO madlib_mop.registry_change (change, name, details) VALUES ('register', %s, %s)"
    db.rows(statement, ["forged", json.dumps(details)], role="forges_findings")
    after = Page(user.value("SELECT madlib_mop.report(%s)", run_id))
    assert after.data("column-importance") == before.data("column-importance")
    for wrong in ({}, [], {**findings, "outputs": 7}, "text"):
        db.rows(statement, ["genuine", json.dumps({**details, "findings": wrong})])
    after = Page(user.value("SELECT madlib_mop.report(%s)", run_id))
    assert after.data("column-importance") == before.data("column-importance"), "of the version before these four"
