"""The page: one file without external resources, complete in dark mode, on a phone, and with a screen reader."""

import re
import sys
from html.parser import HTMLParser

import pytest
from report.__main__ import main
from report.columns import GROUPS
from report.gantt import gantts, merged
from report.measurement import Comparison, Failure
from report.names import look
from report.page import page
from report.plots import spread
from report.svg import Palette
from ways.contract import Span

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


def test_it_loads_nothing(html, read):
    assert not {tag for tag, _ in read.elements} & {"script", "link", "img", "iframe", "object", "image"}
    assert not re.search(r"https?://|@import|src=|url\((?!#)", html.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    links = {a["href"] for tag, a in read.elements if tag == "a" and not a["href"].startswith("#")}
    assert links == {"table.csv", "runs.csv", "epochs.csv", "stages.csv"}, "only those that lie beside it"


def test_it_has_every_way_and_each_column_s_note(read):
    for way in synthetic.WAYS:
        assert look(way).name in read.text
    for group in GROUPS:
        for column in group.columns:
            assert column.note in read.text
    assert "failed: SyntheticError: a made-up reason <why> it failed" in read.text, "and what was said is no HTML"
    for words in ("Synthetic CPU 1000", "8.00 GB", "0123456789ab", "10.73×", "190.0", "2,000 GB"):
        assert words in read.text


def test_every_plot_has_an_alternative_in_words(html):
    plots = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(plots) == 2 * (1 + 4 + 1 + 2) + (8 + 1) + (7 + 1)
    for plot in plots:
        assert 'role="img"' in plot and re.search(r"<title [^>]*>[^<]+</title><desc [^>]*>[^<]{40,}</desc>", plot)
    assert "plain Keras 24.6 MB; Celery tasks 49.2 MB" in html


def test_plots_take_their_colours_from_the_page(html):
    """Light and dark pages have their own colours; each variable is defined."""
    assert "prefers-color-scheme: dark" in html and "#01" not in "".join(re.findall(r"<svg.*?</svg>", html, re.S))
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.S))
    assert not re.findall(r"(?:fill|stroke): #", drawn)
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    assert used <= set(re.findall(r"(--[\w-]+):", html))


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
    (plot, begin) = gantts(Palette(["hopper"]), "test", {"hopper": [run]})
    assert len(plot.svg) < 300_000 and len(begin.svg) < 60_000


def test_spans_join_only_where_nothing_is_between_that_could_be_seen():
    spans = [Span(1, 0, 0, 1), Span(1, 0, 1.1, 2), Span(1, 0, 3, 4), Span(1, 1, 0, 1), Span(2, 0, 2, 2.9)]
    assert merged(spans, 0.2) == [Span(1, 0, 0, 2), Span(2, 0, 2, 2.9), Span(1, 0, 3, 4), Span(1, 1, 0, 1)]
    assert merged([Span(1, 0, 0, 1), Span(1, 0, 1, 2, "evaluate")], 1)[0].kind == "evaluate", "kinds stay apart"


def test_labels_keep_apart():
    places = spread([10, 10, 10, 50], low=0, high=100, apart=12)
    assert all(b - a > 11.9 for a, b in zip(places, places[1:], strict=False))
    assert places[0] >= 0 and places[-1] <= 100
    assert spread([20, 60], 0, 100, 12) == [20, 60]


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
