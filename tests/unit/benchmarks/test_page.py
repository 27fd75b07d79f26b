"""The page: one file without external resources, complete in dark mode, on a phone, and with a screen reader."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report import figures
from report.__main__ import main
from report.columns import GROUPS
from report.csv_files import FILES
from report.measurement import Comparison, Failure
from report.names import look
from report.page import page
from report.plots import curves, ratios, sizes, visits
from report.summary import rows_of

from tests.helpers.unit import benchmarks as synthetic

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Elements(HTMLParser):
    """Reads a page: its elements with their attributes, its text, and whether each element is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.texts, self._open, self.unbalanced = [], [], [], []
        self.feed(text)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module", autouse=True)
def small_bundle():
    """Leave out the JavaScript of Vega: bundling takes seconds, and these tests read only the page around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("madlib_mop.reports.page.vega_bundle", lambda: "window.vegaEmbed = 1;\n")
        yield


@pytest.fixture(scope="module")
def html():
    return page(synthetic.comparison(seeds=(1,), repetitions=2, n_epochs=2))


@pytest.fixture(scope="module")
def read(html):
    return Elements(html)


def test_it_is_well_formed(read):
    assert read.unbalanced == []
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for tag, a in read.elements if a.get("href", "").startswith("#")}
    assert targets <= set(ids)
    assert {
        n for words in re.findall(r'aria-labelledby="([^"]+)"', "".join(map(str, read.elements))) for n in words.split()
    } <= set(ids)


def test_it_loads_nothing(read):
    """Its scripts are its own, by the policy that the library's reports have."""
    assert not {tag for tag, _ in read.elements} & {"img", "iframe", "object", "image"}
    (policy,) = [a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    addresses = {a[name] for _, a in read.elements for name in ("src", "href") if not a.get(name, "#").startswith("#")}
    assert addresses == {"data:,", *FILES}, "only those that lie beside it"


def test_it_has_every_way_and_each_column_s_note(read):
    for way in synthetic.WAYS:
        assert look(way).name in read.text
    for group in GROUPS:
        for column in group.columns:
            assert column.note in read.text
    assert "failed: SyntheticError: a made-up reason <why> it failed" in read.text, "and what was said is no HTML"
    for words in ("Synthetic CPU 1000", "8.00 GB", "0123456789ab", "10.73×", "190.0", "2,000 GB"):
        assert words in read.text


def test_every_figure_has_words_and_numbers(read):
    """For a workload: ratios, four curves, two of bytes, one of time, visits of each way, and the hopper's first."""
    charts = [a for _, a in read.elements if "data-figure" in a]
    assert len(charts) == 2 * (1 + 4 + 2 + 1) + (8 + 1) + (7 + 1)
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in charts)
    assert "24.6 MB (plain Keras) to 49.2 MB (Celery tasks)" in read.text
    numbers = [words for words in read.texts if words.startswith("Numbers of")]
    assert len(numbers) == len(charts)


def test_figures_take_their_colours_from_the_page(html):
    """Light and dark pages have their own colours; each variable is defined."""
    specs = "".join(re.findall(r"data-spec=.*?</script>", html, re.S))
    assert "var(--way-plain)" in specs and not re.search(r"#[0-9a-f]{6}", specs)
    assert set(re.findall(r"var\((--[\w-]+)\)", html)) <= set(re.findall(r"(--[\w-]+):", html))
    assert "--way-hopper: light-dark(#c93c00, #ff7a33);" in html


def drawn(figure) -> dict:
    return json.loads(figure.spec)["datasets"]


def test_ratios_are_drawn_with_the_published_ones():
    rows = rows_of(synthetic.comparison(seeds=(1,), repetitions=2, n_epochs=1), "images")
    places = {place["p"]: place for place in drawn(ratios("images", rows))["dots"]}
    assert places["hopper"]["v"] == 1 and "u" not in places["hopper"] and "u" not in places["Ray Tune"]
    server = places["parameter server"]
    assert server["a"] <= server["v"] <= server["b"] and server["T"] == "10.73×"
    assert server["l"] is (server["u"] > server["v"])


def test_visits_are_drawn_to_the_end_of_the_hopper_and_plain_keras():
    """Those of slower ways are cut there, and the words say so; the first ones of the hopper are drawn again."""
    told = synthetic.by_way(synthetic.comparison(seeds=(1,), repetitions=1, n_epochs=2), "images")
    found = {figure.key.removeprefix("images-visits-"): figure for figure in visits("images", told)}
    assert set(found) == {*told, "begin"}
    until_s = max(bar["b"] for bar in drawn(found["parameter_server"])["bars"])
    (hopper,) = told["hopper"]
    bars = drawn(found["hopper"])["bars"]
    assert len(bars) == len(hopper.outcome.spans) and max(bar["b"] for bar in bars) < until_s
    assert "It continues beyond" in found["parameter_server"].summary and "continues" not in found["plain"].summary
    first = drawn(found["begin"])["bars"]
    assert 8 * 2 <= len([bar for bar in first if bar["k"] == "training"]) <= 8 * 2 + 2
    evaluated = [span for span in hopper.outcome.spans if (span.kind, span.worker) == ("evaluate", 0)]
    assert found["hopper"].rows[0][:3] == (1, "32", str(len(evaluated)))


def test_curves_begin_and_end_as_measured():
    told = synthetic.by_way(synthetic.comparison(seeds=(1,), repetitions=1, n_epochs=2), "images")
    best = {figure.key: figure for figure in curves("images", told)}["images-best-epochs"]
    points = [(p["x"], p["y"]) for p in drawn(best)["points"] if p["p"] == "model averaging"]
    expected = figures.errors_by_epoch(told["averaging"])
    assert points == [(point.at, pytest.approx(point.best, abs=1e-5)) for point in expected]
    assert drawn(best)["points"][-1]["p"] == "hopper", "drawn on top"


def test_bytes_that_were_not_counted_have_words_instead_of_a_dot():
    told = [replace(run, socket_bytes=None) for run in synthetic.comparison(seeds=(1,), n_epochs=1).measurements]
    rows = rows_of(Comparison(told, [], synthetic.MACHINE, {}), "images")
    sockets, storage = sizes("images", rows)
    assert {place["t"] for place in drawn(sockets)["dots"]} == {"not counted"} and sockets.summary == "not counted."
    assert all(place["v"] > 0 for place in drawn(storage)["dots"])


def test_a_comparison_in_which_all_failed_is_a_page():
    told = Comparison([], [Failure("images", "plain", "no\nway")], synthetic.MACHINE, {})
    found = Elements(page(told))
    assert found.unbalanced == [] and "failed: no way" in found.text


def test_a_way_alone_is_a_page():
    told = Comparison([synthetic.measurement(way="plain", n_epochs=1)], [], synthetic.MACHINE, {})
    assert "plain Keras" in Elements(page(told)).text


def test_thousands_of_spans_stay_small():
    run = synthetic.measurement(n_configurations=32, n_epochs=40, n_workers=2)
    assert len(run.outcome.spans) > 3500
    (whole, begin) = visits("images", {"hopper": [run]})
    assert len(whole.spec) < 300_000 and len(begin.spec) < 20_000


def test_a_directory_is_reported_again(tmp_path, monkeypatch, capsys):
    told = synthetic.comparison(seeds=(1,), repetitions=1, n_epochs=1)
    Comparison(told.measurements[:2], [], told.machine, told.workloads).write(tmp_path)
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    main()
    said = capsys.readouterr().out
    assert "How long it takes" in said and said.rstrip().endswith("comparison.html")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".html"}


def test_a_directory_that_is_none_is_told_of(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "no report" in capsys.readouterr().err
