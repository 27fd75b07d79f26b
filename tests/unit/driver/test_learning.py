"""Names of the tables that `learn` makes, in the caller's schema or in another one; a baseline that there is not."""

import json
import time
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.names import split_name
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.driver.learning.command import _base, _baselines, _Boosted, _boosted, _of_boosting, _register, _search
from madlib_mop.errors import Cancelled, MopError, NotReady, OutOfResources
from madlib_mop.search import parse_params


@pytest.mark.parametrize(
    ("name", "schema", "base"),
    [
        ("a.b-c", None, "a_b_c"),
        ("9x", "work", "work._9x"),
        ("x", ' "It\'s ""own"""', '"It\'s ""own""".x'),
    ],
)
def test_the_names_of_tables_begin_with_that_of_the_model(name, schema, base):
    assert _base(name, schema) == base
    assert split_name(f"{base}_models")[0] == (schema and split_name(schema)[1])


@pytest.mark.parametrize("schema", ["", "a.b", "pg_temp", "PG_TEMP", "a b", "s" * 64])
def test_what_is_not_the_name_of_a_schema_is_an_error(schema):
    with pytest.raises(MopError, match="^schema") as raised:
        _base("x", schema)
    assert repr(schema) in raised.value.message


def test_the_search_finds_the_configurations_in_any_schema():
    for schema in (None, '"It\'s ""own"""'):
        configs = f"{_base('x', schema)}_configs"
        assert parse_params("asha", _search(4, configs, 1)).given == (configs, (1,))


class Steps:
    """Steps whose statement ends with an error; remembers what the caller was told."""

    def __init__(self, error: MopError):
        self.error, self.told = error, []
        self.call = SimpleNamespace(function="learn", session=SimpleNamespace(notice=self.told.append))

    def written(self, called, given):
        return f"madlib_mop.{called}()"

    def measure(self, called, given):
        raise self.error


@pytest.mark.parametrize("kind", [NotReady, OutOfResources, MopError])
def test_a_baseline_that_there_is_not_is_said_in_one_sentence(kind):
    """A server without scikit-learn, for example: the networks are trained all the same."""
    steps = Steps(kind("gradient_boosting: scikit-learn is not installed at the server. Received: 'customers_packed'"))
    boosted = _boosted(steps, "customers_packed", 1, 4.0)
    assert steps.told == [f"learn: no baseline: {steps.error.message}"]
    row = _of_boosting(boosted)
    assert (row["item"], row["value"]) == ("gradient boosting", None)
    assert row["note"] == f"none: {steps.error.message}" and not boosted.measures()


def test_a_cancel_while_the_baseline_is_measured_ends_the_call():
    with pytest.raises(Cancelled):
        _boosted(Steps(Cancelled("the statement was cancelled")), "customers_packed", 1, 4.0)


def measure(data_set: str, output: str, metric: str, value: float | str) -> dict:
    return {
        "data_set": data_set, "output": output, "metric": metric, "value": value, "baseline": 0.5, "n_rows": 9,
        "seconds": 1.0, "note": "scikit-learn 1.7.2: 540 training rows",
    }  # fmt: skip


TWO_TARGETS = [
    measure("validation", "income", "RMSE", 90.0), measure("validation", "income", "scaled MSE", 0.25),
    measure("validation", "income", "scaled MAE", 0.4), measure("validation", "kind", "accuracy", 0.9),
    measure("validation", "kind", "log loss", 0.5), measure("test", "income", "RMSE", 95.0),
    measure("test", "income", "scaled MSE", 0.3), measure("test", "kind", "accuracy", 0.8),
]  # fmt: skip


def test_the_leaderboard_gets_the_loss_and_the_first_metric_of_networks_on_validation_rows():
    boosted = _Boosted("SELECT;", TWO_TARGETS)
    linear, boosting = _baselines(True, boosted, "predicted_income_mae")
    assert linear == Baseline(name="linear model", mst_key=1)
    assert (boosting.mst_key, boosting.metric_name) == (None, "predicted_income_mae")
    assert (boosting.validation_metric, boosting.validation_loss) == (0.4, 0.75)
    assert boosting.note == "to compare with, not to predict with; scikit-learn 1.7.2: 540 training rows"
    items = [row["item"] for row in boosted.measures()]
    assert items == ["gradient boosting: income: RMSE", "gradient boosting: kind: accuracy"]
    assert _baselines(False, boosted, "x")[0].name == "gradient boosting"
    assert _baselines(False, _Boosted("SELECT;", [], "no scikit-learn"), "x") == []


def test_a_figure_that_is_no_number_is_none_because_json_has_none():
    rows = [measure("validation", "kind", "accuracy", 0.9), measure("validation", "kind", "log loss", "NaN")]
    (found,) = _baselines(False, _Boosted("SELECT;", rows), "accuracy")
    assert (found.validation_metric, found.validation_loss) == (0.9, None)
    json.dumps(found.as_json(), allow_nan=False)


class Registering(Steps):
    """Steps of which register ends with an error if it is to explain the columns."""

    def __init__(self, error: MopError, left_s: float):
        super().__init__(error)
        self.ends_at, self.given = time.monotonic() + left_s, []
        self.session = SimpleNamespace(is_free=True)

    def run(self, called, at_most_s=None, /, **arguments):
        self.given.append((called, arguments.get("explained"), at_most_s is not None))
        if "explained" in arguments:
            raise self.error
        return 3


def test_a_model_whose_columns_cannot_be_explained_is_registered_all_the_same():
    """Rows that came after the packing can have values that cannot be encoded; or the budget is over."""
    steps = Registering(MopError("explained: row 7 has a NULL"), 60.0)
    assert _register(steps, {"name": "m"}, "customers") == 3
    assert steps.given == [("register", "customers", True), ("register", None, False)]
    assert steps.told == ["learn: the columns are not explained: explained: row 7 has a NULL"]
    steps = Registering(MopError("never raised"), 3.0)
    assert _register(steps, {"name": "m"}, "customers") == 3
    assert steps.given == [("register", None, False)] and steps.told == []
    steps = Registering(NotReady("this transaction holds a lock"), 60.0)
    steps.session.is_free = False
    with pytest.raises(NotReady, match="holds a lock"):
        _register(steps, {"name": "m"}, "customers")
    with pytest.raises(Cancelled):
        _register(Registering(Cancelled("the statement was cancelled"), 60.0), {"name": "m"}, "customers")
