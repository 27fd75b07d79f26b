"""The tables: rows of all ways, as text for a terminal and as CSV, with the published figures."""

import csv

import pytest
from report import formats
from report.csv_files import FILES, write_csv_files
from report.measurement import Comparison
from report.names import in_order, look, published_ratio
from report.summary import rows_of, what_of, workloads_of
from report.text import print_tables
from rich.console import Console

from tests.helpers.unit import benchmarks as synthetic


@pytest.fixture(scope="module")
def comparison():
    return synthetic.comparison(seeds=(1, 2), repetitions=2, n_epochs=2)


@pytest.mark.parametrize(
    "way, ratio",
    [("all_reduce", 3.06), ("parameter_server", 10.7), ("averaging", 1.11), ("celery_tasks", 0.97), ("hopper", 1)],
)
def test_published_ratios(way, ratio):
    assert published_ratio(way) == pytest.approx(ratio, rel=0.005)


def test_what_was_not_published_has_no_ratio():
    assert published_ratio("plain") is published_ratio("ray_tune") is None


def test_ways_have_an_order_and_a_name_also_new_ones():
    assert in_order(["new_way", "plain", "a_way", "hopper"]) == ["hopper", "plain", "a_way", "new_way"]
    assert look("new_way").name == "new way"


def test_a_row_a_way_with_ratios_to_the_hopper(comparison):
    rows = {row.way: row for row in rows_of(comparison, "images")}
    assert list(rows) == in_order(synthetic.WAYS)
    hopper, celery = rows["hopper"], rows["celery_tasks"]
    assert hopper.ratio == hopper.hopper_ratio == hopper.same_error_ratio == 1
    assert celery.ratio == pytest.approx(celery.makespan_s / hopper.makespan_s)
    assert celery.hopper_ratio == pytest.approx(1 / celery.ratio)
    assert celery.copies == pytest.approx(2)
    assert celery.makespan_low_s <= celery.makespan_s <= celery.makespan_high_s
    assert (celery.n_runs, celery.n_seeds) == (4, 2)
    assert rows["plain"].points_above_plain == 0 and rows["averaging"].points_above_plain == pytest.approx(9, abs=0.1)
    assert rows["parameter_server"].same_bits is False and hopper.same_bits is True
    assert (rows["plain"].written_bytes, hopper.written_bytes) == (None, 1_900_000_000)


def test_ways_that_failed_are_rows_with_their_error(comparison):
    (row,) = [row for row in rows_of(comparison, "tabular") if row.error]
    assert (row.way, row.makespan_s) == ("ray_tune", None)
    assert row.error == "SyntheticError: a made-up reason <why> it failed"


def test_without_the_hopper_and_plain_there_are_no_ratios(comparison):
    alone = [one for one in comparison.measurements if one.way == "all_reduce"]
    (row,) = rows_of(Comparison(alone, [], comparison.machine, {}), "images")
    assert row.makespan_s > 0 and row.ratio is row.copies is row.points_above_plain is row.same_error_ratio is None


def test_workloads_keep_their_order(comparison):
    assert workloads_of(comparison) == ["images", "tabular"]
    assert what_of(Comparison([], [], comparison.machine, {"images": "images: few"}), "images") == "few"
    turned = Comparison(comparison.measurements, [], comparison.machine, {"tabular": "", "nothing": ""})
    assert workloads_of(turned) == ["tabular", "images"]


def test_the_terminal_s_tables_tell_of_every_way(comparison, capsys):
    print_tables(comparison, Console(width=120, highlight=False))
    said = capsys.readouterr().out
    for workload, what in comparison.workloads.items():
        assert f"{workload}: {what}" in said
    for way in synthetic.WAYS:
        assert said.count(f"\n{look(way).name} ") >= 4, way
    assert "Ray Tune failed: SyntheticError: a made-up reason <why> it failed" in said
    assert said.count("Where the workers’ time goes: hopper") == 2
    whole, later = 0.21 / 1.04, 0.14 / 0.97
    assert formats.percent(whole) in said and formats.percent(later) in said
    line = next(line for line in said.splitlines() if line.startswith("Celery tasks"))
    assert "0.97×" in line, "the published ratio is beside the measured one"
    assert max(len(line.rstrip()) for line in said.splitlines()) <= 120


def test_csv_files_have_all_figures(comparison, tmp_path):
    write_csv_files(comparison, tmp_path)
    read = {name: list(csv.DictReader(open(tmp_path / name, newline=""))) for name in FILES}
    table = {(row["workload"], row["way"]): row for row in read["table.csv"]}
    assert len(table) == 16 and table["tabular", "ray_tune"]["error"].startswith("SyntheticError")
    rows = {row.way: row for row in rows_of(comparison, "images")}
    assert float(table["images", "averaging"]["ratio"]) == rows["averaging"].ratio
    assert table["images", "plain"]["written_bytes"] == ""
    assert len(read["runs.csv"]) == len(comparison.measurements)
    first = comparison.measurements[0]
    (run,) = [
        row for row in read["runs.csv"]
        if (row["workload"], row["way"], row["seed"], row["repetition"]) == ("images", first.way, "1", "1")
    ]  # fmt: skip
    assert float(run["makespan_s"]) == first.makespan_s
    assert len(read["epochs.csv"]) == sum(len(one.outcome.epochs) for one in comparison.measurements)
    assert {row["way"] for row in read["stages.csv"]} == {"hopper"}
    assert {row["of"] for row in read["stages.csv"]} == {"the whole", "after epoch 1"}


@pytest.mark.parametrize(
    "shown, expected",
    [
        (formats.seconds(1503.4), "1,503"),
        (formats.seconds(12.345), "12.3"),
        (formats.seconds(0.0004), "0.000"),
        (formats.seconds(None), "–"),
        (formats.times(12.254), "12.25×"),
        (formats.times(254.6), "255×"),
        (formats.percent(0.0567), "5.7 %"),
        (formats.points(-1.26), "−1.3"),
        (formats.points(1.24), "+1.2"),
        (formats.points(-0.04), "0.0"),
        (formats.size(0), "0 B"),
        (formats.size(999), "999 B"),
        (formats.size(1000), "1.00 kB"),
        (formats.size(64_021_000_000), "64.0 GB"),
        (formats.size(None), "–"),
        (formats.yes(None), "not repeated"),
        (formats.count(1, "run"), "1 run"),
        (formats.count(2, "run"), "2 runs"),
    ],
)
def test_numbers_as_people_read_them(shown, expected):
    assert shown == expected
