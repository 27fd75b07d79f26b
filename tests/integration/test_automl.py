"""madlib_keras_automl on MADlib's iris example: the models that it trains, its output, and rejected calls."""

import json
from contextlib import closing
from itertools import pairwise

import psycopg
import psycopg2
import pytest

from madlib_mop.catalog.facts.models import read_all_models
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.facts.tracked import read_tracked
from madlib_mop.driver.planning.search import plan_search
from madlib_mop.driver.session.call import Call
from madlib_mop.models.parameters.search_grid import DRAWING
from tests.helpers.database import OneSession
from tests.helpers.direct import record_on
from tests.helpers.direct_session import DirectSession
from tests.helpers.searches import COMPILE, arguments, decisions, prepare, results, search, statement, states
from tests.helpers.training import assert_configurations_in_parts, one_thread, weights

pytestmark = [pytest.mark.timeout(600), pytest.mark.one_session]
HYPERBAND = "R=9, eta=3"


@pytest.fixture(scope="module")
def iris(db):
    one_thread()
    with closing(OneSession(db)) as iris:
        prepare(iris)
        yield iris


@pytest.fixture(scope="module")
def found(iris):
    """The search that MADlib's manual shows, with R=9."""
    options = {"random_state": 1, "name": "iris", "description": "perceptrons"}
    return search(iris, "hb", "hyperband", HYPERBAND, **options)


def test_every_round_trains_as_many_as_the_schedule_says_for_as_long(iris, found):
    """sql_api section 8: the exact schedule; a round's iterations follow those of the earlier rounds."""
    iris.rows("SELECT madlib.hyperband_schedule('schedule', 9)")
    schedule = {}
    for s, n_i, r_i in iris.rows("SELECT s, n_i, r_i FROM schedule ORDER BY s, i"):
        schedule.setdefault(s, []).append((n_i, r_i))
    assert schedule == {2: [(9, 1), (3, 3), (1, 9)], 1: [(3, 3), (1, 9)], 0: [(3, 9)]}
    info = iris.rows("SELECT s, i, metrics_iters FROM hb_info")
    for s, rounds in schedule.items():
        for i, (n_i, _) in enumerate(rounds):
            assert len([row for row in info if row[0] == s and row[1] >= i]) == n_i
        ends = [sum(r for _, r in rounds[: i + 1]) for i in range(len(rounds))]
        assert all(iters == ends[: i + 1] for bracket, i, iters in info if bracket == s)
    assert iris.value("SELECT count(*) FROM hb") == 15


def test_the_best_of_a_round_go_on(iris, found):
    for s, i in iris.rows("SELECT DISTINCT s, i FROM hb_info WHERE i < s"):
        left, gone = (
            iris.value(f"SELECT {pick}(validation_loss[{i + 1}]) FROM hb_info WHERE s = {s} AND i {op} {i}")
            for pick, op in (("max", ">"), ("min", "="))
        )
        assert left is None or left <= gone


def test_the_selection_table_has_the_best_row_alone(iris, found):
    best = iris.rows(
        "SELECT mst_key, model_id, compile_params, fit_params FROM hb_info ORDER BY validation_loss_final LIMIT 1"
    )
    assert iris.rows("SELECT * FROM hb_mst") == best
    assert iris.rows("SELECT model_arch_table, object_table FROM hb_mst_summary") == [("arch", None)]
    assert f"the model with the lowest loss is mst_key {best[0][0]}" in found.notices


def test_it_finds_a_good_model_that_predicts_and_evaluates(iris, found):
    """The expected accuracy on the validation rows is at least 0.93."""
    key = iris.value("SELECT mst_key FROM hb_mst")
    iris.rows("SELECT madlib.madlib_keras_evaluate('hb', 'valid', 'hb_eval', mst_key := %s)", [key])
    loss, accuracy = iris.rows("SELECT loss, metric FROM hb_eval")[0]
    assert accuracy >= 0.93
    assert loss == pytest.approx(iris.value("SELECT validation_loss_final FROM hb_info WHERE mst_key = %s", [key]))
    call = "SELECT madlib.madlib_keras_predict('hb', 'iris_test', 'id', 'attributes', 'hb_pred', 1, mst_key := %s)"
    iris.rows(call, [key])
    right = "SELECT avg((class_value = class_text)::integer)::float8 FROM hb_pred JOIN iris_test USING (id)"
    assert iris.value(right) == pytest.approx(accuracy)


def test_the_output_tables_have_the_columns_of_madlib(iris, found):
    def columns(table):
        query = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
        return dict(iris.rows(query, [table]))

    assert list(columns("hb")) == ["mst_key", "model_weights", "model_arch", "__dist_key__", "weights_digest"]
    keys = iris.rows("SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'p' AND conrelid IN"
                     " ('hb'::regclass, 'hb_info'::regclass) ORDER BY 1")  # fmt: skip
    assert keys == [("hb",), ("hb_info",)]
    info = columns("hb_info")
    assert (info["metrics_iters"], info["s"], info["i"]) == ("ARRAY", "integer", "integer")
    row = iris.rows(
        "SELECT source_table, validation_table, model, model_info, model_arch_table, model_selection_table,"
        " automl_method, automl_params, random_state, object_table, use_gpus, name, description, num_classes,"
        " class_text_class_values, start_training_time <= end_training_time, metrics_compute_frequency"
        " FROM hb_summary"
    )
    classes = ["Iris-setosa", "Iris-versicolor", "Iris-virginica"]
    assert row == [
        ("train", "valid", "hb", "hb_info", "arch", "hb_mst", "hyperband", HYPERBAND, "1", None, False, "iris",
         "perceptrons", [3], classes, True, 9)
    ]  # fmt: skip


def test_asha_frees_places_at_once_and_a_replay_has_the_same_bits(iris):
    """The record repeats searches whose decisions depend on the order of results."""
    run = search(iris, "asha", "asha", "R=4, eta=2, num_configs=5", random_state=3)
    iris.rows("SELECT madlib_mop.replay(%s, 'asha_again')", [run.run_id])
    again = iris.value("SELECT max(run_id) FROM madlib_mop.run")
    assert weights(iris, "asha") == weights(iris, "asha_again") and len(weights(iris, "asha")) == 5
    assert states(iris, run.run_id) == states(iris, again)
    figures = "mst_key, validation_loss, training_metrics, metrics_iters, status, compile_params"
    assert iris.rows(f"SELECT {figures} FROM asha_info ORDER BY 1") == iris.rows(
        f"SELECT {figures} FROM asha_again_info ORDER BY 1"
    )
    assert decisions(iris, run.run_id) == decisions(iris, again)
    rungs = {iters[-1] for (iters,) in iris.rows("SELECT metrics_iters FROM asha_info")}
    assert 1 in rungs and rungs <= {1, 2, 4} and len(rungs) > 1
    added = "SELECT max(ordinal) FROM madlib_mop.search_history WHERE run_id = %s AND action = 'add'"
    assert iris.value(added, [run.run_id]) > 0


@pytest.mark.slow
def test_a_replay_repeats_what_asha_decides_near_the_end_of_its_budget(iris):
    run = search(iris, "short", "asha", "R=9, num_configs=1000, budget_s=6", random_state=3)
    budget = "SELECT epoch FROM madlib_mop.search_event WHERE run_id = %s AND event = 'budget' ORDER BY ordinal"
    *near, (end,) = iris.rows(budget, [run.run_id])
    assert end is None and all(0 <= left <= 3 for (left,) in near)
    assert ("the rest of the time budget is too short for a new model" in run.notices) == bool(near)
    iris.rows("SELECT madlib_mop.replay(%s, 'short_again')", [run.run_id])
    again = iris.value("SELECT max(run_id) FROM madlib_mop.run")
    assert weights(iris, "short") == weights(iris, "short_again")
    assert states(iris, run.run_id) == states(iris, again)


@pytest.mark.slow
def test_pbt_copies_states_and_a_replay_copies_them_again(iris):
    run = search(iris, "pbt", "pbt", "population=4, num_iterations=3, interval=1", random_state=3)
    exploits = iris.rows(
        "SELECT mst_key, taken_over ->> 'mst_key', taken_over ->> 'epoch' FROM madlib_mop.model"
        " WHERE run_id = %s AND taken_over IS NOT NULL",
        [run.run_id],
    )
    assert exploits
    for mst_key, source, epoch in exploits:
        copied = iris.rows(
            "SELECT (SELECT digest_in FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s AND epoch = %s"
            " AND position = 1), (SELECT digest_out FROM madlib_mop.visit WHERE run_id = %s AND mst_key = %s"
            " AND epoch = %s AND position = 2)",
            [run.run_id, mst_key, int(epoch) + 1, run.run_id, int(source), int(epoch)],
        )
        assert copied[0][0] == copied[0][1]
    iris.rows("SELECT madlib_mop.register('pbt', 'pbt', %s)", [exploits[0][0]])
    visits = iris.rows("SELECT mst_key, digest_in, digest_out FROM madlib_mop.version_lineage ORDER BY ended_at")
    assert int(exploits[0][1]) in {key for key, _, _ in visits}
    assert all(one[2] == next_one[1] for one, next_one in pairwise(visits)) and len(visits) == 6
    iris.rows("SELECT madlib_mop.replay(%s, 'pbt_again')", [run.run_id])
    again = iris.value("SELECT max(run_id) FROM madlib_mop.run")
    assert weights(iris, "pbt") == weights(iris, "pbt_again") and len(weights(iris, "pbt")) == 4
    for recorded in (run.run_id, again):
        assert_configurations_in_parts(iris, recorded)
    assert results(iris, run.run_id) == results(iris, again)
    assert decisions(iris, run.run_id) == decisions(iris, again)


@pytest.mark.slow
def test_hyperopt_by_position_trains_one_batch_after_the_other(iris):
    """As MADlib's suite calls it: five configurations on two segments, no validation table, data cached."""
    params = "num_configs=5, num_iterations=2, algorithm=rand"
    iris.rows(
        "SELECT madlib.madlib_keras_automl('train', 'rand', 'arch', 'rand_mst', ARRAY[1], %s,"
        " $$ {'batch_size': [40], 'epochs': [1]} $$, 'hyperopt', %s, NULL, NULL, FALSE, NULL, 1, 'a name', 'a descr',"
        " TRUE)",
        [COMPILE.replace("[['accuracy']]", "['categorical_accuracy']").replace("['Adam']", "['Adam', 'SGD']"), params],
    )
    rows = iris.rows(
        "SELECT mst_key, metrics_iters, metrics_elapsed_time, training_loss_final = training_loss[2], validation_loss,"
        " metrics_type FROM rand_info ORDER BY mst_key"
    )
    assert [(row[0], row[1], *row[3:]) for row in rows] == [
        (key, [1, 2], True, None, ["categorical_accuracy"]) for key in range(1, 6)
    ]
    first, second, third = (rows[number][2] for number in (0, 2, 4))
    assert first[0] < first[1] < second[0] < second[1] < third[0] < third[1]
    best = "SELECT mst_key FROM rand_info ORDER BY training_loss_final LIMIT 1"
    assert iris.rows("SELECT mst_key FROM rand_mst") == iris.rows(best)
    assert iris.rows("SELECT mst_key FROM rand ORDER BY 1") == [(key,) for key in range(1, 6)]
    assert iris.rows(
        "SELECT automl_method, automl_params, random_state, validation_table, metrics_compute_frequency, name,"
        " description FROM rand_summary"
    ) == [("hyperopt", params, None, None, 1, "a name", "a descr")]


@pytest.mark.slow
def test_hyperopt_with_20_configurations_finds_a_good_model(iris):
    """The other example of MADlib's manual, with a custom metric."""
    iris.rows("SELECT madlib.load_top_k_accuracy_function('automl_functions', 2)")
    search(
        iris, "tpe", "hyperopt", "num_configs=20, num_iterations=10, algorithm=tpe", random_state=1,
        object_table="automl_functions",
        compile_params_grid=COMPILE.replace("'accuracy'", "'accuracy', 'top_2_accuracy'"),
    )  # fmt: skip
    names = "SELECT DISTINCT metrics_type, object_table FROM tpe_info, tpe_summary"
    assert iris.rows(names) == [(["accuracy", "top_2_accuracy"], "madlib.automl_functions")]
    best = "SELECT validation_metrics_final FROM tpe_info JOIN tpe_mst USING (mst_key)"
    assert iris.value(best) >= 0.93
    assert iris.rows("SELECT count(*), min(metrics_iters), max(metrics_iters) FROM tpe_info") == [(20, [10], [10])]


@pytest.mark.slow
def test_a_search_that_commands_reopened_keeps_its_tables(iris):
    """Their rows are replaced, so views and rights on them stay."""
    run = search(iris, "kept", "hyperopt", "num_configs=2, num_iterations=1, algorithm=rand", random_state=1)
    iris.rows("GRANT SELECT ON kept_mst, kept_mst_summary TO PUBLIC; CREATE VIEW best_kept AS SELECT * FROM kept_mst")
    iris.rows(f"SELECT madlib_mop.extend({run.run_id}, 2)")
    iris.rows(f"SELECT madlib_mop.resume({run.run_id})")
    assert iris.rows("SELECT metrics_iters FROM kept_info LIMIT 1") == [([1, 3],)]
    best = "SELECT mst_key FROM kept_info ORDER BY validation_loss_final LIMIT 1"
    assert iris.rows("SELECT mst_key FROM best_kept") == iris.rows(best)
    assert iris.value("SELECT count(*) FROM kept_mst_summary") == 1
    for table in ("kept", "kept_mst_summary"):
        right = iris.value("SELECT has_table_privilege('public', %s, 'SELECT')", [table])
        assert right is (table != "kept")


def test_a_budget_that_is_spent_before_anything_is_trained_leaves_empty_tables(iris):
    run = search(iris, "poor", "hyperopt", "num_configs=4, algorithm=rand, budget_s=0.01", random_state=1)
    assert iris.rows("SELECT event FROM madlib_mop.search_event WHERE run_id = %s ORDER BY ordinal", [run.run_id]) == [
        ("start",), ("budget",)
    ]  # fmt: skip
    assert iris.value("SELECT count(*) FROM poor") == iris.value("SELECT count(*) FROM poor_mst") == 0
    assert iris.rows("SELECT DISTINCT status FROM poor_info") == [("stopped",)]
    assert "the time budget was used up" in run.notices and "no model was trained" in run.notices


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        (None, None, ("hyperband", "R=6, eta=3, skip_last=0", 6)),
        ("hyperband", "R=5, eta=5, skip_last=1", ("hyperband", "R=5, eta=5, skip_last=1", 1)),
        ("hyperopt", None, ("hyperopt", "num_configs=20, num_iterations=5, algorithm=tpe", 5)),
    ],
)
def test_what_is_left_out_is_in_the_summary_as_in_madlibs(iris, method, params, expected):
    """Planned in this process without training; the frequency is the maximum number of iterations of a round."""
    connection, catalog = iris.connect(autocommit=False), iris.connect()
    session = DirectSession(connection)
    call = Call.read("madlib_keras_automl", arguments("planned", method, params), session)
    plan = plan_search(call, record_on(catalog)).run.plan
    summary = plan.summary
    assert plan.search.drawing == DRAWING, "a new search draws in the present way"
    names = ("automl_method", "automl_params", "metrics_compute_frequency")
    assert tuple(getattr(summary, name) for name in names) == expected
    assert summary.random_state is summary.object_table is call.arguments["name"] is None
    assert call.arguments["use_gpus"] is False
    connection.close()
    catalog.close()


def test_max_seconds_is_the_budget_of_a_search(iris):
    """Planned in this process; the older name gives the same plan."""
    connection, catalog = iris.connect(autocommit=False), iris.connect()
    plans = []
    for params, options in (("R=9, budget_s=60.0", {}), ("R=9", {"max_seconds": 60})):
        given = arguments("planned", "hyperband", params) | {"random_state": 1} | options
        call = Call.read("madlib_keras_automl", given, DirectSession(connection))
        plans.append(plan_search(call, record_on(catalog)).run.plan)
    assert plans[0].search == plans[1].search and plans[1].time_limit_s is None
    assert (plans[1].search.budget_s, plans[1].search.is_paced) == (60.0, True)
    connection.close()
    catalog.close()


@pytest.fixture(scope="module")
def thrifty(iris):
    """A search with all objectives, of a linear network (15 weights) and one with a hidden layer (83 weights)."""
    objective = "loss, multiplications, size_bytes"
    return search(iris, "thrifty", "hyperopt", "num_configs=8, num_iterations=3", random_state=1, objective=objective)


def test_a_search_with_several_objectives_keeps_the_models_that_no_other_one_surpasses(iris, thrifty):
    best = [
        iris.rows(
            "SELECT mst_key FROM thrifty_info WHERE model_id = %s ORDER BY validation_loss_final, mst_key LIMIT 1", [of]
        )[0][0]
        for of in (1, 2)
    ]
    lowest = iris.value("SELECT mst_key FROM thrifty_info ORDER BY validation_loss_final, mst_key LIMIT 1")
    kept = [key for (key,) in iris.rows("SELECT mst_key FROM thrifty_mst")]
    assert kept == ([lowest] if lowest == best[0] else [best[1], best[0]])
    listed = ", ".join(map(str, kept))
    assert f"no other model surpasses mst_key {listed} in loss and multiplications and size_bytes" in thrifty.notices
    plan = iris.value("SELECT plan -> 'search' FROM madlib_mop.run WHERE run_id = %s", [thrifty.run_id])
    assert plan["objective"] == ["multiplications", "size_bytes"] and plan["costs"] == {"1": [12, 60], "2": [70, 332]}
    assert plan["sampler_version"].startswith("optuna ")


def test_the_record_has_the_multiplications_and_the_size_of_each_model(iris, thrifty):
    figures = "SELECT DISTINCT model_id, multiplications, model_bytes FROM madlib_mop.model WHERE run_id = %s"
    assert sorted(iris.rows(figures, [thrifty.run_id])) == [(1, 12, 60), (2, 70, 332)]
    front = iris.rows("SELECT model_id, ranked_by FROM madlib_mop.pareto WHERE run_id = %s", [thrifty.run_id])
    assert (1, "accuracy") in front and len(front) == len(set(front))


def test_a_study_of_a_search_has_its_objectives(iris, thrifty):
    with closing(psycopg.connect(iris.dsn)) as connection, one_snapshot(connection) as reader:
        assert read_tracked(reader, thrifty.run_id).objective == ("multiplications", "size_bytes")
        sizes = {(m.model_id, m.multiplications, m.size_bytes) for m in read_all_models(reader, thrifty.run_id)}
    assert sizes == {(1, 12, 60), (2, 70, 332)}


def test_a_replay_of_a_search_with_several_objectives_has_the_same_bits(iris, thrifty):
    iris.rows("SELECT madlib_mop.replay(%s, 'thrifty_again')", [thrifty.run_id])
    assert weights(iris, "thrifty_again") == weights(iris, "thrifty")


def test_constraints_leave_architectures_out(iris):
    small = search(
        iris, "small", "hyperopt", "num_configs=3, num_iterations=1", random_state=1, constraints="size_bytes <= 100"
    )
    assert iris.rows("SELECT DISTINCT model_id FROM small_info") == [(1,)]
    assert "constraints: 1 of 2 architectures are left out: model_id 2 has size_bytes 332" in small.notices


@pytest.mark.parametrize("change", [{"objective": "loss, size_bytes"}, {"constraints": "size_bytes <= 100"}])
def test_a_network_that_cannot_be_counted_is_an_error_of_searches_that_count(iris, change):
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 4], "dtype": "float32", "name": "input"}},
        {"class_name": "PReLU", "config": {"name": "slope"}},
        {"class_name": "Dense", "config": {"name": "out", "units": 3, "activation": "softmax"}},
    ]
    network = json.dumps({"class_name": "Sequential", "config": {"name": "sloped", "layers": layers}})
    iris.rows("DROP TABLE IF EXISTS uncounted")
    iris.rows("SELECT madlib.load_keras_model('uncounted', %s)", [network])
    given = {**arguments("refused", "hyperopt", None), "model_arch_table": "uncounted", "model_id_list": [1], **change}
    with pytest.raises(psycopg2.Error, match="size_bytes of model_id 1 cannot be counted, because of PReLU") as caught:
        iris.rows(statement(given), list(given.values()))
    assert caught.value.pgcode == "22023"


BAD_LOSS = COMPILE.replace("['categorical_crossentropy']", "['mse', 'nonsense']")
REFUSED = [
    ("invalid method", {"automl_method": "hyper"}, "22023", "automl_method"),
    ("R below eta", {"automl_params": "R=2, eta=3"}, "22023", "R must not be less than eta"),
    ("eta of 1", {"automl_params": "R=9, eta=1"}, "22023", "eta must be"),
    ("nothing left", {"automl_params": "R=9, eta=3, skip_last=3"}, "22023", "skip_last"),
    ("no configurations", {"automl_method": "hyperopt", "automl_params": "num_configs=-2"}, "22023", "num_configs"),
    ("no iterations", {"automl_method": "hyperopt", "automl_params": "num_iterations=0"}, "22023", "num_iterations"),
    ("algorithm", {"automl_method": "hyperopt", "automl_params": "algorithm=random"}, "22023", "algorithm"),
    ("another's parameter", {"automl_params": "num_configs=5"}, "22023", "num_configs"),
    ("unreadable", {"automl_params": "R=9 eta=3"}, "22P02", "automl_params"),
    ("code", {"automl_params": "R=__import__('os').getpid()"}, "22P02", "automl_params"),
    ("budget", {"automl_params": "budget_s=0"}, "22023", "budget_s"),
    ("seconds", {"max_seconds": 0}, "22023", "max_seconds must be a number above 0"),
    ("two limits", {"max_seconds": 9, "automl_params": "budget_s=8"}, "22023", "two names of one limit"),
    ("copies", {"copies": 0}, "22023", "copies must be at least 1. Received: 0"),
    ("checkpoints", {"checkpoint_every": 0}, "22023", "checkpoint_every must be at least 1. Received: 0"),
    ("objective", {"objective": "accuracy"}, "22023", "objective is unknown. Received: 'accuracy'"),
    ("constraints", {"constraints": "loss <= 1"}, "22023", "constraints must be a list such as"),
    (
        "limits",
        {"constraints": "multiplications <= 11"},
        "22023",
        "no architecture of model_id_list satisfies the constraints: model_id 1 has multiplications 12;",
    ),
    ("source table", {"source_table": "nowhere"}, "42P01", "source_table"),
    ("validation table", {"validation_table": "nowhere"}, "42P01", "validation_table"),
    ("architecture table", {"model_arch_table": "nowhere"}, "42P01", "model_arch_table"),
    ("object table", {"object_table": "nowhere"}, "42P01", "object_table"),
    ("model id", {"model_id_list": [2, -1]}, "22023", "model_id_list"),
    ("output exists", {"model_output_table": "iris"}, "42P07", "model_output_table"),
    ("selection exists", {"model_selection_table": "iris"}, "42P07", "model_selection_table"),
    ("one name for two", {"model_selection_table": "refused"}, "22023", "different tables"),
    ("frequency", {"metrics_compute_frequency": 99}, "22023", "metrics_compute_frequency"),
    ("random state", {"random_state": -1}, "22023", "random_state"),
    ("a value that no model can have", {"compile_params_grid": BAD_LOSS}, "22023", "nonsense"),
    ("grid", {"fit_params_grid": "{'batch_size': 4}"}, "22023", "batch_size"),
    (
        "stops",
        {"fit_params_grid": "{'batch_size': [4], 'early_stopping': ['patience=1']}"},
        "22023",
        "a search decides itself when to stop a model",
    ),
]


@pytest.mark.parametrize("change, sqlstate, words", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_input_is_refused_before_any_work(iris, change, sqlstate, words):
    """Promise 8; calls that MADlib's own tests reject are rejected here too."""
    given = {**arguments("refused", "hyperband", None), **change}
    before = iris.value("SELECT count(*) FROM madlib_mop.run")
    with pytest.raises(psycopg2.Error) as caught:
        iris.rows(statement(given), list(given.values()))
    assert caught.value.pgcode == sqlstate and words in str(caught.value) and "Traceback" not in str(caught.value)
    assert iris.value("SELECT count(*) FROM madlib_mop.run") == before


def test_a_schedule_table_that_exists_is_refused_and_bad_numbers_too(iris):
    iris.rows("SELECT madlib.hyperband_schedule('schedule_81', 81)")
    assert iris.value("SELECT count(*) FROM schedule_81") == 15
    for call, sqlstate in (
        ("'schedule_81', 81", "42P07"), ("'other', 2, 3", "22023"), ("'other', 9, 1", "22023"),
        ("'other', 9, 3, 3", "22023"), ("'other', NULL", "22023"),
    ):  # fmt: skip
        with pytest.raises(psycopg2.Error) as caught:
            iris.rows(f"SELECT madlib.hyperband_schedule({call})")
        assert caught.value.pgcode == sqlstate
