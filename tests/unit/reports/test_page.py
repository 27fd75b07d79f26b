"""The page of a report: complete, closed to the network, and text where names are code."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from madlib_mop.catalog.facts.data import ClassCount, OutputFacts
from madlib_mop.catalog.facts.history import CommandFacts
from madlib_mop.catalog.facts.models import FailureGroup
from madlib_mop.catalog.facts.run import depends_on_timing
from madlib_mop.catalog.facts.schedule import Schedule
from madlib_mop.dash import reporting
from madlib_mop.dash.parts import Pages
from madlib_mop.reports.figures import SECTIONS, Figure, Section, figures_of
from madlib_mop.reports.page import TEMPLATES, embedded, page
from madlib_mop.schedule import SCHEDULES
from tests.helpers.reports import HOSTILE, a_model, some_facts


@pytest.fixture(scope="module", autouse=True)
def small_bundle():
    """Leave out the JavaScript of Vega: bundling takes seconds, and these tests read only the page around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("madlib_mop.reports.page.vega_bundle", lambda: "window.vegaEmbed = 1;\n")
        yield


class Read(HTMLParser):
    """The elements of a page, its texts, and the contents of its scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict, str]] = []
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in = tag if tag in ("script", "style") else self._in
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._in = "" if tag == self._in else self._in

    def handle_data(self, data):
        if self._in == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._in == "":
            self.texts.append(data)

    def of(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def read():
    return Read(page(some_facts()))


def test_the_page_runs_its_own_scripts_only_and_loads_nothing(read):
    policy = next(m["content"] for m in read.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"]
    assert {rules["base-uri"], rules["form-action"]} == {"'none'"} and rules["img-src"] == "data:"
    run = [text for attrs, text in read.scripts if attrs.get("type") != "application/json"]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in run]
    assert rules["script-src"].split() == hashes and len(run) == 2


def test_nothing_refers_to_elsewhere(read):
    for tag, attrs in read.elements:
        for name in ("src", "href", "action", "poster", "data", "srcset"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)
        assert not any(name.startswith("on") for name in attrs), (tag, attrs)
    for name in ("report.css", "report.js"):
        assert not re.search(r"https?:|@import|url\(|//[a-z]", (TEMPLATES / name).read_text().replace("// ", ""))


def test_every_section_is_there_and_linked(read):
    sections = [s["id"] for s in read.of("section")]
    assert sections == [
        "leaderboard", *(name for name, one in SECTIONS.items() if not one.is_apart), "search", "steering", "lineage",
        "failures", "difference", "data", "repeat",
    ]  # fmt: skip
    links = [a["href"] for a in read.of("a")]
    assert {f"#{name}" for name in sections} <= set(links) and links[0] == "#content"


def test_a_section_without_content_is_left_out():
    bare = some_facts(
        n_models=1, curves=(), search=(), commands=(), policy=None, lineage=(), failures=(), sample=(),
        findings=(), timeline=Schedule(),
    )
    sections = {s["id"] for s in Read(page(bare)).of("section")}
    assert sections == {"leaderboard", "data", "repeat"}


def test_a_run_without_models_has_a_page():
    empty = some_facts(n_models=0, curves=(), makespan_s=None, state="running", ended_at=None)
    texts = " ".join(Read(page(empty)).texts)
    assert "The run has no models yet." in texts


def test_headings_are_in_order_and_unique_ids_name_the_regions(read):
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False)) and levels.count(1) == 1
    ids = [attrs["id"] for _, attrs in read.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert read.of("html")[0]["lang"] == "en" and len(read.of("main")) == len(read.of("h1")) == 1


def test_each_figure_has_words_for_those_who_do_not_see_it(read):
    charts = [attrs for tag, attrs in read.elements if attrs.get("class") == "chart"]
    made = [*figures_of(some_facts())]
    assert len(read.of("figure")) == len(made)
    assert {chart["data-figure"] for chart in charts} == {one.key for one in made if one.spec is not None}
    assert all(chart["role"] == "img" and len(chart["aria-label"]) > 40 for chart in charts)
    specs = {attrs["data-spec"]: text for attrs, text in read.scripts if "data-spec" in attrs}
    assert {chart["data-figure"] for chart in charts} == set(specs)
    assert all(json.loads(text)["datasets"] for text in specs.values())


def test_the_balance_of_classes_is_shown_and_said(read):
    assert "The smallest class has 30 rows, the largest 70: 1 to 2.3." in read.texts
    unknown = OutputFacts("y", (ClassCount("0", None), ClassCount("1", None)), 2, "They are not recorded.")
    texts = Read(page(some_facts(data=replace(some_facts().data, outputs=(unknown,))))).texts
    assert any("They are not recorded." in text for text in texts)


ORDERS = {"rotation": False, "longest_first": True, "breadth_first": True, "auto": True} | dict.fromkeys(
    ("averaging", "recorded"), False
)


@pytest.mark.parametrize("schedule", dict.fromkeys([*SCHEDULES, *ORDERS]))
def test_a_schedule_whose_order_can_depend_on_timing_is_said_to(schedule):
    """A schedule that is not in `ORDERS` has the sentence if it says so of itself."""
    expected = ORDERS[schedule] if schedule in ORDERS else SCHEDULES[schedule].depends_on_timing(3, 2)
    facts = some_facts(n_models=3, schedule=schedule, depends_on_timing=depends_on_timing(schedule, 3, 2))
    sentence = f"With the schedule {schedule}, the order of visits can depend on timing."
    assert (sentence in " ".join(Read(page(facts)).texts)) is expected


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_limit_of_time_is_said_to_depend_on_timing(seconds):
    call = some_facts().call
    facts = some_facts(call=replace(call, arguments={**call.arguments, "max_seconds": seconds}))
    text = " ".join(Read(page(facts)).texts)
    sentence = "With max_seconds, the number of iterations can depend on timing. Only the replay always repeats it."
    assert (sentence in text) is ("Only the replay" in text) is (seconds is not None)


def test_auto_is_rotation_where_models_are_no_more_than_segments():
    assert not depends_on_timing("auto", 3, 3) and depends_on_timing("auto", 4, 3)


@pytest.mark.one_case
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_text_everywhere(text, read):
    models = tuple(
        a_model(key, detail=text, state="stopped", compile_params=text, fit_params=text, metric_name=text,
                hyper_parameters={"architecture": 1, text: text if key % 2 else "x"})
        for key in range(1, 10)  # too few for their importance, which takes a second
    )  # fmt: skip
    facts = some_facts(
        models=models, sample=models, metric_name=text, owner=text, viewer=text, database=text, state_detail=text,
        policy=text, source_table=text, validation_table=text,
        model_output_table=f"public.{text}", versions={text: text},
        curves=tuple(replace(p, name=text if p.name == "accuracy" else p.name) for p in some_facts().curves),
        failures=(FailureGroup("failed", text, 1, (1,)),),
        commands=(
            CommandFacts(1, "stop_model", {"reason": text}, "person", text, datetime.now(UTC), "refused", text),
        ),
        data=replace(
            some_facts().data, inputs=(text,),
            outputs=(OutputFacts(text, (ClassCount(text, 1), ClassCount("b", 2)), 2),),
        ),
        architectures=(replace(some_facts().architectures[0], layers=text),),
    )  # fmt: skip
    plain, hostile = read, Read(page(facts))
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in plain.elements}
    assert not any(name.startswith("on") for _, attrs in hostile.elements for name in attrs)
    run = [text for attrs, text in hostile.scripts if attrs.get("type") != "application/json"]
    assert run == [text for attrs, text in plain.scripts if attrs.get("type") != "application/json"]
    data = next(t for attrs, t in hostile.scripts if attrs.get("id") == "models")
    assert json.loads(data)["1"]["compile_params"] == text
    assert hostile.texts.count(text) > 20


def test_embedded_json_cannot_end_its_element():
    written = str(embedded(json.dumps({"a": "</script><!--\u2028&"}, ensure_ascii=False)))
    assert not set("<>&\u2028") & set(written) and json.loads(written) == {"a": "</script><!--\u2028&"}


def test_a_section_of_figures_is_in_the_report_and_on_the_live_page(monkeypatch):
    """Nothing but its entry in SECTIONS puts it there."""
    facts = some_facts()

    def weights(facts):
        yield Figure(f"weights-{facts.run_id}", "Weights & <b>", "What they are.", "They are equal.", "{}")

    monkeypatch.setitem(SECTIONS, "weights", Section("Weights & biases", weights))
    read = Read(page(facts))
    assert any(attrs.get("href") == "#weights" for attrs in read.of("a"))
    assert any(attrs.get("id") == "weights" for attrs in read.of("section"))
    texts = "".join(read.texts)
    assert texts.count("Weights & biases") == 2 and "They are equal." in texts
    drawn = [one for one in reporting.figures_json(facts) if one["section"] == "weights"]
    assert [one["key"] for one in drawn] == [f"weights-{facts.run_id}"]
    assert ("weights", "Weights & biases") in reporting.section_titles()


def test_a_figure_without_a_chart_is_an_open_table_in_the_report_and_on_the_live_page(monkeypatch):
    facts = some_facts()
    table = Figure("slow", "Slow <b>", "What it is.", "Two rows.", None, ("visit", "seconds <i>"), (("a <u>", 1.5),), 2)
    for name in SECTIONS:
        monkeypatch.setitem(SECTIONS, name, Section("", lambda facts: ()))
    monkeypatch.setitem(SECTIONS, "slow", Section("Slow visits", lambda facts: [table]))
    (drawn,) = reporting.figures_json(facts)
    for text in (page(facts), Pages().figure(drawn)):
        of_figure = Read(re.search(r"<figure.*?</figure>", text, re.DOTALL)[0])
        (region,) = [attrs for attrs in of_figure.of("div") if attrs.get("role") == "region"]
        assert region["class"] == "scroll tall" and region["tabindex"] == "0" and "Slow <b>" in region["aria-label"]
        assert not of_figure.of("details") and not of_figure.scripts
        assert "chart" not in {attrs.get("class") for attrs in of_figure.of("div")}
        texts = [text.strip() for text in of_figure.texts if text.strip()]
        shown = ["Slow <b>", "What it is.", "Two rows.", "visit", "seconds <i>", "a <u>", "1.5"]
        assert texts == [*shown, "The first 1 of 2 rows."]
