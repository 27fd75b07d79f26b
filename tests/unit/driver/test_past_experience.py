"""What a search takes from earlier runs: losses and places, architectures, rights, one clear error for the rest."""

import math
from types import SimpleNamespace

import pytest

from madlib_mop.catalog.rows.run import Metric
from madlib_mop.catalog.rows.states import ModelState
from madlib_mop.driver.experience.configurations import PastConfigurations, newest_losses, past_trials
from madlib_mop.driver.experience.runs import MAX_READ, MAX_RUNS, find_past, names_of_runs
from madlib_mop.errors import InvalidParameter, MopError, NotReady
from madlib_mop.search import WORST, SearchSpace, parse_params
from tests.helpers.unit.documents import dense, keras_3
from tests.helpers.unit.rows import a_model, a_plan, a_run

ARCH = keras_3(dense(3, name="dense"))
SPACE = SearchSpace.read(
    [5, 6],
    "{'loss': ['mse', 'mine'], 'optimizer_params_list': [{'optimizer': ['SGD'], 'lr': [0.001, 0.1, 'log']}]}",
    "{'batch_size': [4, 8], 'class_weight': ['balanced']}",
)
ARCHS = {5: keras_3(dense(2, name="dense")), 6: keras_3(dense(3, name="output"))}
FIT = "batch_size=4, class_weight={0: 1.5, 1: 0.75}"
ME, BOSS, OTHER = 10, 20, 30


def model(mst_key: int, rate: float, arch=ARCH, loss: str = "mse", **columns):
    return a_model(
        mst_key, compile_params=f"loss='{loss}', optimizer='SGD(lr={rate})', metrics=['mae']", fit_params=FIT,
        model_arch=arch, state=ModelState.TRAINED, **columns,
    )  # fmt: skip


def metric(mst_key: int, epoch: int, value: float | None, data_set: str = "validation", ordinal: int = 0):
    return Metric(
        run_id=1, mst_key=mst_key, epoch=epoch, data_set=data_set, ordinal=ordinal, name="m", value=value,
        elapsed_s=0.0, work_s=0.0,
    )  # fmt: skip


class Runs:
    """A record of runs of several roles."""

    def __init__(self, *runs, functions=None):
        self.runs = {run.run_id: (run, models, metrics) for run, models, metrics in runs}
        self.functions = functions or {}
        self.n_read = 0

    def run(self, run_id):
        self.n_read += 1
        return self.runs[run_id][0] if run_id in self.runs else None

    def may_see(self, role, owner):
        return owner in ((ME, BOSS) if role == ME else (role,))

    def models(self, run_id):
        return self.runs[run_id][1]

    def metrics(self, run_id):
        return self.runs[run_id][2]

    def custom_functions(self, run_id):
        return self.functions

    def execute(self, query, parameters):
        """Return all runs as those on tables alike, the newest first."""
        return sorted(((run_id, found[0].owner_oid) for run_id, found in self.runs.items()), reverse=True)


class Session:
    """The caller's session."""

    info = SimpleNamespace(role_oid=ME)

    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


def a_past_run(run_id: int, n: int = 4, owner: int = ME):
    """Return a run with configurations of lower and lower losses."""
    run = a_run(a_plan(class_weight={0: 1.5, 1: 0.75}), run_id=run_id, owner_oid=owner)
    models = [model(key, 0.001 * key) for key in range(1, n + 1)]
    return run, models, [metric(key, 1, 1 / key) for key in range(1, n + 1)]


def of_run(record, run_id: int = 1, functions=None):
    return PastConfigurations(record, SPACE, ARCHS, functions or {}).of_run(record.run(run_id))


def find(record, text: str, session=None, archs=ARCHS):
    params = parse_params("tpe", f"start_from='{text}'")
    source = SimpleNamespace(n_rows=100, independent=["x"], dependent=["y"], num_classes=[2])
    configurations = PastConfigurations(record, SPACE, archs, {})
    return find_past(session or Session(), record, params, configurations, source, True)


def test_a_loss_is_that_of_the_newest_epoch_on_validation_data():
    metrics = [
        metric(1, 1, 0.1), metric(1, 2, 0.3), metric(1, 2, 0.2, "training"), metric(1, 2, 0.9, ordinal=1),
        metric(2, 3, 0.5, "training"), metric(3, 1, math.nan), metric(4, 1, None), metric(5, 1, 0.1, ordinal=1),
    ]  # fmt: skip
    assert newest_losses(metrics) == {1: 0.3, 2: 0.5, 3: math.inf, 4: math.inf}


def test_configurations_have_places_in_the_order_of_their_losses():
    """The texts are those of this search: its model_id, without the weights that were written out, without metrics."""
    found, tally = of_run(Runs(a_past_run(1)))
    assert [(one.run_id, one.mst_key, one.loss, one.place) for one in found] == [
        (1, 4, 0.25, 0.125), (1, 3, 1 / 3, 0.375), (1, 2, 0.5, 0.625), (1, 1, 1.0, 0.875)
    ]  # fmt: skip
    assert (found[0].model_id, found[0].compile_params) == (6, "optimizer='SGD(lr=0.004)',loss='mse'")
    assert found[0].fit_params == "batch_size=4,class_weight='balanced'"
    assert (tally.n_compared, tally.n_other_architecture, tally.n_outside) == (4, 0, 0)
    assert [trial.place for trial in past_trials(found, SPACE, [])] == [0.125, 0.375, 0.625, 0.875]


def test_places_count_configurations_that_do_not_lie_in_the_space():
    """The best of a run that was better with other parameters is not a good one."""
    run, models, metrics = a_past_run(1)
    models[3] = model(4, 0.5)
    models[2] = model(3, 0.01, arch=keras_3(dense(7, name="dense")), model_id=2)
    found, tally = of_run(Runs((run, models, metrics)))
    assert [(one.mst_key, one.place) for one in found] == [(2, 0.625), (1, 0.875)]
    assert (tally.n_compared, tally.n_other_architecture, tally.n_outside) == (4, 1, 1)


def test_models_without_a_finite_loss_are_the_worst_and_failed_ones_are_not_compared():
    run, models, metrics = a_past_run(1)
    models[0] = a_model(1, model_arch=ARCH, state=ModelState.FAILED)
    metrics[1] = metric(2, 1, math.nan)
    found, _ = of_run(Runs((run, models, metrics)))
    assert [(one.mst_key, one.loss, one.place) for one in found] == [
        (4, 0.25, 0.25), (3, 1 / 3, 0.75), (2, None, WORST)
    ]  # fmt: skip


def test_a_custom_loss_counts_only_with_the_same_code():
    run, models, metrics = a_past_run(1, n=1)
    record = Runs((run, [model(1, 0.01, loss="mine")], metrics), functions={"mine": b"code"})
    assert len(of_run(record, functions={"mine": b"code"})[0]) == 1
    assert of_run(record, functions={"mine": b"other"})[0] == [] == of_run(record)[0]


def test_named_runs_are_taken_together_best_first():
    found = find(Runs(a_past_run(1), a_past_run(2, n=2, owner=BOSS)), "runs 2, 1")
    assert [(one.run_id, one.place) for one in found] == [
        (1, 0.125), (2, 0.25), (1, 0.375), (1, 0.625), (2, 0.75), (1, 0.875)
    ]  # fmt: skip


@pytest.mark.parametrize("run_id", [2, 999])
def test_a_run_of_another_role_is_like_one_that_is_not_there(run_id):
    with pytest.raises(InvalidParameter) as caught:
        find(Runs(a_past_run(1), a_past_run(2, owner=OTHER)), f"runs 1, {run_id}")
    assert caught.value.message == f"automl_params: start_from: you have no run with this run_id. Received: {run_id}"
    assert "madlib_mop.progress" in caught.value.hint


def test_a_named_run_without_metrics_is_an_error():
    run, models, _ = a_past_run(2)
    with pytest.raises(NotReady, match="start_from: run 2 has no metrics") as caught:
        find(Runs(a_past_run(1), (run, models, [])), "runs 1, 2")
    assert "leaderboard" in caught.value.hint


def test_a_space_in_which_nothing_lies_is_an_error_that_says_why():
    run, models, metrics = a_past_run(2)
    models[0] = model(1, 0.5, arch=keras_3(dense(7, name="dense")), model_id=2)
    models[1:] = [model(one.mst_key, 0.5) for one in models[1:]]
    with pytest.raises(InvalidParameter) as caught:
        find(Runs((run, models, metrics)), "runs 2")
    assert caught.value.message == "automl_params: start_from: no configuration of run 2 lies in this search space"
    assert caught.value.detail == (
        "Configurations with metrics: 4. With another architecture than those of model_id_list: 1. With parameters that"
        " are not in the grids: 3."
    )
    assert "Widen the grids" in caught.value.hint


def test_similar_runs_are_those_of_the_caller_and_of_roles_that_he_acts_as():
    record = Runs(a_past_run(1), a_past_run(2, owner=BOSS), a_past_run(3, owner=OTHER))
    assert {one.run_id for one in find(record, "similar")} == {1, 2}


def test_only_the_newest_similar_runs_are_taken():
    record = Runs(*(a_past_run(run_id, n=1) for run_id in range(1, 31)))
    assert {one.run_id for one in find(record, "similar")} == set(range(31 - MAX_RUNS, 31))


def test_without_similar_runs_the_search_starts_with_a_notice():
    """Only so many runs are read in vain."""
    session = Session()
    record = Runs(*(a_past_run(run_id, n=1) for run_id in range(1, 2 * MAX_READ)))
    assert find(record, "similar", session, {5: ARCHS[5]}) == () and record.n_read == MAX_READ
    assert session.notices == [
        "start_from='similar': none of your runs is similar and has configurations in this search space; the search"
        " starts without earlier results"
    ]
    assert find(Runs(), "similar", Session()) == ()


def test_without_the_argument_nothing_is_read():
    assert find_past(None, None, parse_params("tpe", None), None, None, True) == ()


def test_a_plan_that_does_not_fit_its_space_is_an_internal_error():
    found, _ = of_run(Runs(a_past_run(1)))
    narrow = SearchSpace.read([6], "{'loss': ['mae'], 'optimizer': ['sgd']}", None)
    with pytest.raises(MopError, match="internal error"):
        past_trials(found, narrow, [])


def test_runs_are_named_in_messages():
    assert names_of_runs([12]) == "run 12" and names_of_runs([12, 15]) == "runs 12, 15"
