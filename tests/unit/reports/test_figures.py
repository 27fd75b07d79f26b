"""Figures of a run: each shows the facts, says them in words, and repeats them in a table."""

import json
import re
from dataclasses import replace

import altair as alt
import jsonschema
import pytest
import vl_convert

from madlib_mop.catalog.facts.curves import Band
from madlib_mop.catalog.facts.models import Lineage
from madlib_mop.catalog.facts.run import Counts
from madlib_mop.catalog.facts.schedule import BusyBin, LongTask, Schedule, SegmentLoad
from madlib_mop.reports.figures import SECTIONS, Figure, figures_of
from madlib_mop.reports.figures.figure import MAX_ROWS
from tests.helpers.reports import HOSTILE, a_model, some_facts, some_findings

KEYS = {
    *(f"curve-{name}-{axis}" for name in ("metric", "loss") for axis in ("iteration", "seconds", "rows")),
    "importance", "parallel", "slices", "contour", "gantt", "time", "lineage", "search", "confusion", "roc",
    "precision-recall", "reliability", "column-importance", "dependence-1", "dependence-2", "longest",
}  # fmt: skip


@pytest.fixture(scope="module")
def figures():
    return {figure.key: figure for figure in figures_of(some_facts())}


@pytest.fixture(scope="module")
def charts(figures):
    """The figures that are no open tables."""
    return {key: figure for key, figure in figures.items() if figure.spec is not None}


def data_of(figure) -> dict:
    return json.loads(figure.spec)["datasets"]


def of_section(name: str, **fields) -> dict[str, Figure]:
    """Return the figures of one section, by their keys: to make all of them takes longer than most of the tests."""
    return {figure.key: figure for figure in SECTIONS[name].make(some_facts(**fields))}


def test_a_run_with_everything_has_every_figure(figures):
    assert set(figures) == KEYS


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_figure_has_words_and_a_table_beside_it(figures, key):
    figure = figures[key]
    assert figure.title and figure.description.endswith(".") and figure.summary.endswith(".")
    assert 0 < len(figure.rows) <= min(MAX_ROWS, figure.n_rows)
    assert {len(row) for row in figure.rows} == {len(figure.headings)}


def test_a_chart_is_drawn_from_its_own_data_only(charts):
    for key, chart in charts.items():
        document = json.loads(chart.spec)
        assert document["datasets"] and all(document["datasets"].values()), key
        text = json.dumps({name: value for name, value in document.items() if name not in ("datasets", "$schema")})
        assert "http" not in text and '"url"' not in text and '"href"' not in text, key


def test_charts_are_those_of_the_schema_of_vega_lite(charts):
    """Altair would check each chart of a page while it is made."""
    schema = jsonschema.Draft7Validator(alt.load_schema())
    for key, chart in charts.items():
        document = json.loads(chart.spec)
        assert document.pop("datasets") and schema.is_valid(document), key
        assert not schema.is_valid({**document, "mark": "none", "layer": None})


def test_a_run_without_visits_has_no_figures():
    empty = some_facts(
        models=(), sample=(), curves=(), timeline=Schedule(), lineage=(), search=(), failures=(), commands=(),
        findings=(),
    )
    assert list(figures_of(empty)) == []


def test_curves_have_each_point_on_each_axis(figures):
    facts = some_facts()
    own = [p for p in facts.curves if p.name == "loss"]
    for axis, field in (("iteration", "epoch"), ("seconds", "elapsed_s"), ("rows", "rows")):
        drawn = data_of(figures[f"curve-loss-{axis}"])["points"]
        expected = [(p.mst_key, getattr(p, field), p.data_set) for p in own]
        assert [(row["m"], row["x"], row["d"]) for row in drawn] == expected


def test_a_curve_says_where_the_best_model_ended_and_when_it_was_best():
    points = tuple(
        replace(p, value={1: 0.2, 2: 0.3}[p.epoch]) if (p.mst_key, p.name) == (1, "loss") else p
        for p in some_facts().curves
    )
    figure = of_section("curves", curves=points)["curve-loss-iteration"]
    assert "The best model, 1, ended with loss 0.3 on validation data" in figure.summary
    assert "Its best value was 0.2, at iteration 1." in figure.summary


def test_bands_stand_for_the_models_without_curves():
    bands = (Band("validation", "loss", 1, 0.1, 0.2, 0.9, 5000), Band("training", "loss", 1, 0.1, 0.15, 0.8, 5000))
    figure = of_section("curves", bands=bands)["curve-loss-iteration"]
    assert len(data_of(figure)["bands"]) == 2 and "80 % of all models" in figure.description


def test_values_that_span_powers_of_ten_have_a_logarithmic_scale():
    wide = tuple(replace(p, value=p.value * 1000 if p.mst_key == 1 else p.value) for p in some_facts().curves)
    for curves, expected in ((wide, True), (some_facts().curves[:4], False)):
        figure = next(f for key, f in of_section("curves", curves=curves).items() if key.startswith("curve-loss"))
        assert ('"type":"log"' in figure.spec) is expected


def test_of_many_copies_the_first_ones_are_drawn_with_both_ends():
    copies = tuple(Lineage("clone", 60 + key, key, 1, 2, None, float(key)) for key in range(1, 61))
    figure = of_section("history", lineage=copies)["lineage"]
    drawn = data_of(figure)["copies"]
    assert [(row["f"], row["m"]) for row in drawn] == [(key, 60 + key) for key in range(1, 31)]
    assert figure.summary.startswith("30 of 60 copies, the first one from model 1 to model 61.")


def test_a_search_says_how_many_results_it_had_also_if_not_all_are_drawn():
    figure = of_section("history", counts=Counts(9000, 5000))["search"]
    assert figure.summary == "5,000 results; the lowest loss is 0.5."


def test_too_many_bars_become_busy_shares():
    loads = tuple(SegmentLoad(s, 5000, 0, 80.0, 0.0, 20.0) for s in (0, 1))
    bins = tuple(BusyBin(s, float(i), i + 1.0, 0.8) for s in (0, 1) for i in range(100))
    timeline = Schedule((), bins, loads, (), 10_000, 0)
    figure = of_section("schedule", timeline=timeline)["gantt"]
    assert len(data_of(figure)["bins"]) == 200 and "10,000 visits" in figure.description
    assert figure.rows[0] == (0, "5,000", "0", "80 s", "0 s", "20 s")


def test_time_of_the_parts_and_between_tasks_is_the_time_of_the_segments(figures):
    parts = data_of(figures["time"])["bars"]
    facts = some_facts()
    whole = sum(part.seconds for part in facts.timeline.time_spent) + sum(load.idle_s for load in facts.timeline.loads)
    assert sum(row["s"] for row in parts) == pytest.approx(whole)
    assert {row["k"] for row in parts} == {"visits", "no task"}


def test_the_longest_tasks_are_a_table_with_how_many_times_the_median_they_took(figures):
    figure = figures["longest"]
    assert figure.rows == (
        ("visit", 3, 1, 2, "1,234.50", "8.4", "2.8"), ("evaluation", 1, 0, 1, "12.00", "0.5", ""),
    )  # fmt: skip
    assert figure.summary == (
        "The longest is a visit of model 3 at segment 1, iteration 2: 8.4 s, 2.8 times the median of visits."
    )
    timeline = Schedule(longest=(LongTask("evaluation", 1, 0, 1, 12.0, 0.5, None),))
    figure = of_section("schedule", timeline=timeline)["longest"]
    assert figure.summary == "The longest is an evaluation of model 1 at segment 0, iteration 1: 0.5 s."


@pytest.mark.slow
def test_models_with_the_same_parameters_have_no_figures_of_them():
    same = tuple(replace(a_model(key), model_id=1, hyper_parameters={"architecture": 1}) for key in range(1, 13))
    keys = {f.key for f in figures_of(some_facts(sample=same))}
    assert not keys & {"importance", "parallel", "slices", "contour"}


def test_a_failed_model_is_in_no_figure_of_parameters():
    models = tuple(a_model(key, state="failed" if key == 3 else "trained") for key in range(1, 13))
    figure = of_section("parameters", sample=models)["parallel"]
    assert {row["m"] for row in data_of(figure)["lines"]} == set(range(1, 13)) - {3}


def test_two_parameters_with_few_values_are_cells_and_others_a_surface(figures):
    given = {key: {"a": key % 2, "b": key % 3} for key in range(1, 13)}
    few = tuple(a_model(key, model_id=1, hyper_parameters=those) for key, those in given.items())
    cells = of_section("parameters", sample=few)["contour"]
    first, second = cells.headings[:2]
    found = {(c["a"], c["b"]) if first == "a" else (c["b"], c["a"]): c["n"] for c in data_of(cells)["cells"]}
    assert {first, second} == {"a", "b"}
    assert found == {(str(a), str(b)): 2 for a in (0, 1) for b in (0, 1, 2)}
    surface = data_of(figures["contour"])["surface"]
    scores = [m.score for m in some_facts().sample]
    assert min(scores) <= min(c["s"] for c in surface) and max(c["s"] for c in surface) <= max(scores)


@pytest.mark.one_case
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_value_is_data_in_every_figure(text):
    models = tuple(
        replace(a_model(key), hyper_parameters={"optimizer": text if key % 2 else "Adam", text: key})
        for key in range(1, 13)
    )
    charts = [figure for figure in figures_of(some_facts(sample=models)) if figure.spec is not None]
    assert charts
    for figure in charts:
        document = json.loads(figure.spec)
        for name in ("transform", "params"):
            assert text not in json.dumps(document.get(name, ""), ensure_ascii=False)


def test_ticks_are_written_out(figures):
    """Not 5e+1: Vega gives a format without a precision that of the distance between two ticks."""
    points = tuple(replace(p, elapsed_s=50 * p.epoch, value=60 * p.value) for p in some_facts().curves)
    figure = of_section("curves", curves=points)["curve-loss-seconds"]
    svg = vl_convert.vegalite_to_svg(json.loads(figure.spec) | {"width": 400})
    ticks = re.findall(r">([\d.,e+−-]+)</text>", svg)
    assert "50" in ticks and not [tick for tick in ticks if "e" in tick]


def test_a_confusion_matrix_has_the_counts_and_names_the_most_frequent_error(figures):
    cells = {(cell["a"], cell["p"]): (cell["n"], cell["s"]) for cell in data_of(figures["confusion"])["cells"]}
    assert cells[("no", "yes")] == (8, round(8 / 60, 6)) and cells[("yes", "yes")] == (32, 0.8)
    assert figures["confusion"].summary.startswith("The class of 84 of 100 rows is predicted right. The most frequent")
    assert "Version 3 of the registered model churn, on 100 rows of public.packed_test." in figures["roc"].description


def test_curves_of_a_class_begin_and_end_in_the_corners(figures):
    points = data_of(figures["roc"])["points"]
    assert [(p["x"], p["y"]) for p in points] == [(0, 0), (0.0, 0.25), (0.1, 0.8), (1.0, 1.0), (1, 1)]
    assert "Area under the curve: yes 0.93." in figures["roc"].summary
    assert [p["x"] for p in data_of(figures["precision-recall"])["points"]] == [0.25, 0.8, 1.0]
    assert data_of(figures["precision-recall"])["shares"] == [{"l": "yes", "y": 0.4}]
    kinds = {p["l"] for p in data_of(figures["reliability"])["points"]}
    assert kinds == {"of the network", "calibrated (temperature)"}
    assert "of the network 0.064, calibrated (temperature) 0.02" in figures["reliability"].summary


def test_columns_are_drawn_by_importance_with_what_is_not_sure(figures):
    bars = data_of(figures["column-importance"])["bars"]
    assert [(bar["p"], bar["v"], bar["low"], bar["high"]) for bar in bars][1] == ("city", 0.01, -0.02, 0.04)
    assert figures["column-importance"].summary == (
        "age matters most: without it, the log loss of 0.4 grows by 0.3. The intervals of 1 of 2 columns contain 0 or"
        " less."
    )
    numbers = data_of(figures["dependence-1"])["values"]
    assert [row["x"] for row in numbers] == [1.5, 20.0] and figures["dependence-1"].rows[-1][0] == "NULL"
    assert [row["t"] for row in data_of(figures["dependence-2"])["values"]] == ["yes", "NULL"]
    assert figures["dependence-2"].title == "y = yes by city"


def test_values_that_are_no_numbers_after_all_are_drawn_one_by_one():
    found = some_findings()
    first = found.findings.dependences[0]
    for value in ("12:30:00", "NaN", "Infinity", "1.0.0"):
        points = (replace(first.points[0], value=value), *first.points[1:])
        of_columns = replace(found.findings, dependences=(replace(first, points=points),))
        figure = of_section("columns", findings=(replace(found, findings=of_columns),))["dependence-1"]
        assert [row["t"] for row in data_of(figure)["values"]] == [value, "20", "NULL"]


def test_outputs_classes_and_values_of_equal_names_stay_apart():
    found = some_findings()
    (output,) = found.findings.outputs
    confusion = replace(output.confusion, classes=("NULL", None))
    both = replace(found.findings, outputs=(output, replace(output, output="z", confusion=confusion)))
    figures = of_section("held-out", findings=(replace(found, findings=both),))
    assert {"roc-1", "roc-2", "confusion-1", "confusion-2"} <= set(figures) and figures["roc-2"].title.endswith("of z")
    assert {cell["a"] for cell in data_of(figures["confusion-2"])["cells"]} == {"NULL", "NULL (2)"}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_classes_columns_and_tables_are_texts(name):
    found = some_findings(name, name, name)
    figures = of_section("held-out", findings=(found,)) | of_section("columns", findings=(found,))
    assert {"confusion", "roc", "column-importance", "dependence-1", "dependence-2"} <= set(figures)
    for figure in figures.values():
        if figure.key in ("confusion", "roc", "column-importance", "dependence-1", "dependence-2"):
            vl_convert.vegalite_to_vega(figure.spec)
            assert name not in json.dumps(json.loads(figure.spec).get("params", ""))


def test_figures_are_of_the_newest_version_that_has_what_they_show():
    rows, columns = some_findings(), some_findings()
    rows = replace(rows, findings=replace(rows.findings, importances=(), dependences=()))
    columns = replace(columns, version=2, findings=replace(columns.findings, outputs=(), held_out=None))
    figures = of_section("held-out", findings=(rows, columns)) | of_section("columns", findings=(rows, columns))
    assert "Version 3 of" in figures["roc"].description
    assert "Version 2 of" in figures["column-importance"].description
