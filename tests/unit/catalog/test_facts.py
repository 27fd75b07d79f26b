"""The facts of a run have one home: which rules it has, and that nobody else queries the record to show a run."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from madlib_mop.catalog.facts.models import best_model, in_order
from madlib_mop.catalog.facts.now import RunNow, SegmentFacts
from madlib_mop.catalog.facts.reader import one_snapshot
from madlib_mop.catalog.live.words import best_of, state_of
from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.cli.watching.lines import changes
from madlib_mop.cli.watching.screen import View, draw
from madlib_mop.client.progress import html_of
from madlib_mop.dash.parts import Pages
from madlib_mop.errors import NotReady
from madlib_mop.reports.figures import figures_of
from madlib_mop.reports.importance import ranked
from madlib_mop.reports.page import page
from madlib_mop.trackers.mlflow_runs import _run_tags
from tests.helpers import trackers
from tests.helpers.reports import a_model, a_status, some_facts
from tests.helpers.unit.findings import assert_none

LIBRARY = Path(__file__).resolve().parents[3] / "madlib_mop"
#: Folders that show runs.
SHOW = ("cli", "client", "dash", "exports", "reports", "trackers")
_TABLES = (
    "run|segment|model|visit|evaluation|metric|visit_metric|search_event|change|progress|leaderboard|timeline"
    "|search_history|pareto|steering|metric_series|model_summary|visit_gantt"
)
_QUERY = re.compile(rf"\b(?:FROM|JOIN) madlib_mop\.(?:{_TABLES})\b(?!;)")  # a statement with a semicolon is a hint
#: What is no fact of a run that is shown.
OTHERS = {
    "cli/sessions.py": "the number of the run that a call has begun",
    "client/training.py": "the number of the run that a call has begun",
    "cli/simulate.py": "costs for a forecast",
    "trackers/weights.py": "states",
}


def queries_of(path: Path) -> list[int]:
    """Return the lines of a file that query what is recorded of runs."""
    text = path.read_text()
    return [text.count("\n", 0, found.start()) + 1 for found in _QUERY.finditer(text)]


def test_what_shows_a_run_has_no_queries_of_its_own():
    files = [path for folder in SHOW for path in sorted((LIBRARY / folder).rglob("*.py"))]
    known = {str(path.relative_to(LIBRARY)): queries_of(path) for path in files}
    assert_none(f"{name}:{line}" for name, lines in known.items() if name not in OTHERS for line in lines)
    assert all(known[name] for name in OTHERS)


@pytest.mark.parametrize(
    ("ranked_by", "figures", "score"),
    [
        ("accuracy", {}, 0.99),
        ("loss", {}, 0.1),
        ("accuracy", {"validation_loss": None, "validation_metric": None}, 0.995),
        ("loss", {"validation_loss": math.nan}, None),
        ("accuracy", {"validation_metric": math.inf}, None),
        ("loss", {"validation_loss": None, "training_loss": None}, None),
    ],
)
def test_a_model_is_ranked_by_one_figure(ranked_by, figures, score):
    assert a_model(1, ranked_by=ranked_by, **figures).score == score


def test_figures_on_training_data_do_not_stand_for_those_on_validation_data_that_are_nan():
    models = (a_model(1, ranked_by="loss", validation_loss=math.nan), a_model(2, ranked_by="loss"))
    facts = some_facts(models=models, sample=models, metric_name=None)
    assert [model.mst_key for model in ranked(facts)] == [2]
    text = text_of(page(facts))
    assert "best loss 0.2 model 2, on validation data" in text and " nan " in text
    assert list(figures_of(facts))


def test_every_page_and_tracker_names_the_same_best_model():
    nan = {"validation_metric": math.nan, "rank": 1}
    lines = (trackers.a_model(3, **nan), trackers.a_model(2, rank=2), trackers.a_model(1, rank=3, state="failed"))
    record = trackers.TrackedState(trackers.a_run(), lines, ())
    assert best_model(lines).mst_key == 2 and [model.mst_key for model in in_order(reversed(lines))] == [3, 2, 1]
    assert _run_tags(record)["madlib_mop.best_mst_key"] == "2"
    assert best_of(RunNow(None, lines, (), (), ())).startswith("model 2 leads by accuracy: ")
    none = tuple(trackers.a_model(key, validation_metric=None) for key in (1, 2))
    assert "madlib_mop.best_mst_key" not in _run_tags(trackers.TrackedState(trackers.a_run(), none, ()))
    assert best_of(RunNow(None, none, (), (), ())) is None


def test_the_metric_of_a_baseline_has_its_name_before_a_model_has_figures():
    """A baseline is there as soon as the run has begun."""
    boosting = Baseline(name="boosting", metric_name="acc<uracy", validation_metric=0.9912)
    now = RunNow(a_status(1), (a_model(1, metric_name=None),), (), (), (), (boosting,))
    terminal = Console(file=StringIO(), width=200)
    terminal.print(draw(now, View(), 40, 200))
    assert "valid. acc<uracy" in terminal.file.getvalue()
    assert "Valid. acc<uracy" in text_of(Pages().of_run(now)["columns"])


def test_every_page_shows_what_the_models_are_compared_with_and_names_none_of_it_the_best():
    boosting = Baseline(
        name="<b>boosting", metric_name="accuracy", validation_metric=0.9912, validation_loss=0.0123,
        note="not to predict <i>with",
    )  # fmt: skip
    models = a_model(1, validation_metric=0.5), a_model(2, validation_metric=0.4, baseline="linear <model>")
    now = RunNow(a_status(2), models, (), (), (), (boosting,))
    terminal = Console(file=StringIO(), width=200)
    terminal.print(draw(now, View(), 40, 200))
    pages = {
        "report": text_of(page(some_facts(models=models, sample=models, baselines=(boosting,)))),
        "live": text_of(" ".join(map(str, Pages().of_run(now).values()))),
        "notebook": text_of(html_of(now)),
        "terminal": terminal.file.getvalue(),
    }
    for name, text in pages.items():
        for wanted in ("<b>boosting", "baseline", "0.9912", "0.0123", "linear <model>"):
            assert wanted in text, (name, wanted)
        assert name == "notebook" or "not to predict <i>with" in text, name
    assert best_of(now).startswith("model 1 leads by accuracy: ")
    assert "best accuracy 0.5 model 1" in pages["report"]


HELD_UP = {
    "running": {},
    "paused by bob": {"paused_by": "bob"},
    "running (waits for its turn)": {"waits": True},
    "running (its session has ended)": {"is_lost": True},
}


@pytest.mark.parametrize("words", HELD_UP)
def test_a_report_and_the_live_page_say_in_the_same_words_what_holds_up_a_run(words):
    given = {"state": "running", "ended_at": None, **HELD_UP[words]}
    segment = SegmentFacts(
        "training", 0, None, 50, 4000, None, 2, 3.0, 4, 1, 1.5, 0.5, datetime.now(UTC),
        {"kind": "visit", "mst_keys": [5, 6], "epoch": 2}, datetime.now(UTC),
    )  # fmt: skip
    status = a_status(12, visits_done=12, n_trained=3, n_failed=1, **given)
    facts = some_facts(status=status, data=replace(some_facts().data, segments=(segment,)), **given)
    report = text_of(page(facts))
    live = text_of(" ".join(map(str, Pages().of_run(RunNow(status, (), (segment,), (), ())).values())))
    for text in (words, "12 of 48 visits", "3 trained, 0 stopped, 1 failed"):
        assert text in report, text
    lines = " ".join(changes(None, RunNow(status, (), (segment,), (), ())))
    assert f"run 7 {words}: 25 % (12 of 48 visits)" in lines and f"Run 7 {words}: 25 % (12 of 48 visits)" in live
    assert state_of(facts) == state_of(status) == words
    doing = "visit of models 5, 6, iteration 2", "model 4, iteration 1, 1.5 s"
    assert all(text in live for text in doing)
    assert [text in report for text in doing] == [not status.is_lost] * 2
    assert ("no process trains it: SELECT madlib_mop.resume(7);" in report) is status.is_lost
    assert ("no process trains it: SELECT madlib_mop.resume(7);" in live) is status.is_lost


def text_of(document: str) -> str:
    """Return the text of a page, with single spaces."""
    return unescape(re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", document)))


def test_a_session_that_is_lost_before_a_reading_is_one_clear_error():
    """Who follows a run has heard of the loss before, so that the driver of PostgreSQL says it in its own words."""

    class Lost:
        autocommit = True

        def execute(self, statement: str) -> None:
            raise psycopg.OperationalError("the connection is lost")

    with pytest.raises(NotReady, match="^the connection to the server was lost"), one_snapshot(Lost()):
        pass
