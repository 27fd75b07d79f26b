"""Rows of models that a search proposes: their architectures and parameters."""

from madlib_mop.driver.changes.proposed import ProposedModels
from tests.helpers.unit.rows import a_search

PLAN = a_search()
COMPILE = "loss='mse', optimizer='adam'"


def test_balanced_weights_of_classes_are_written_out():
    models = ProposedModels(PLAN, {0: 1.5, 1: 0.75})
    configuration = models.configuration(1, COMPILE, "batch_size=8, class_weight='balanced'")
    assert configuration.fit_params == "batch_size=8, class_weight={0: 1.5, 1: 0.75}"


def test_a_model_has_its_configuration_in_parts():
    plan = a_search(archs={"2": '{"class_name": "Dropout", "config": {"rate": 0.3}}'})
    models = ProposedModels(plan, {0: 1.5, 1: 0.75})
    configuration = models.configuration(2, COMPILE, "batch_size=8, class_weight='balanced'")
    found = configuration.columns()["hyper_parameters"]
    assert (found["architecture"], found["optimizer"], found["batch_size"], found["dropout"]) == (2, "Adam", 8, 0.3)
    assert found["class_weight"] == "{0: 1.5, 1: 0.75}", "as it is trained"


def test_without_them_parameters_are_as_they_were_proposed():
    assert ProposedModels(PLAN).configuration(1, COMPILE, "batch_size=8").fit_params == "batch_size=8"
