"""The live page: what it shows, updates that are computed once for all viewers, verbs, the report, many models."""

import contextlib
import json
import threading
import time

import psycopg2
import pytest

from madlib_mop.catalog.rows.baseline import Baseline
from madlib_mop.dash import feeds
from tests.helpers.commands import run
from tests.helpers.dash import dsn_of, serving
from tests.helpers.faults import wait_for
from tests.helpers.invented import invent_run
from tests.helpers.iris import ADAM, load_iris, load_perceptrons, pack_iris
from tests.helpers.reports import record_findings, some_findings
from tests.helpers.training import fit

N_VIEWERS = 20


@pytest.fixture(scope="module")
def lab(db):
    """A database with a run that was trained, of superuser boss."""
    load_iris(db)
    pack_iris(db, 2)
    load_perceptrons(db, "arch")
    db.rows(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], %s, ARRAY['batch_size=20'])",
        [[ADAM.format(0.1), ADAM.format(0.01)]],
    )
    db.cluster.create_role("boss")
    db.rows("ALTER ROLE boss SUPERUSER")
    db.trained = fit(db, "trained", "mst", 1, source_table="iris_train_packed", seed=3).run_id
    return db


@pytest.fixture(scope="module")
def dash(lab):
    """A live page that pauses less between two readings of a run than one of users: tests wait for updates."""
    with pytest.MonkeyPatch.context() as patch, serving(lab) as dash:
        patch.setattr(feeds, "_LEAST_S", 0.1)
        patch.setattr(feeds, "_FACTOR", 1.0)
        yield dash


@pytest.fixture
def browser(dash):
    return dash.browser("boss")


def tell(db, run_id: int) -> None:
    """Notify live pages, as the driver of a run does."""
    db.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])


def test_the_pages_show_the_record(browser, lab):
    listed, shown = browser.get("/").text, browser.get(f"/runs/{lab.trained}").text
    assert "public.trained" in listed and "1 finished" in listed
    assert shown.count("<tr data-key=") == 2 and "iris_train_packed" in shown and "Adam(lr=0.01)" in shown


@pytest.mark.slow
def test_figures_and_report_are_those_of_the_run(browser, lab):
    figures = browser.get(f"/runs/{lab.trained}/figures")
    found = {figure["key"]: json.loads(figure["spec"]) for figure in figures.json() if figure["spec"] is not None}
    assert "curve-loss-iteration" in found and all("datasets" in spec for spec in found.values())
    again = browser.get(f"/runs/{lab.trained}/figures", headers={"If-None-Match": figures.headers["etag"]})
    assert again.status_code == 304
    report = browser.get(f"/runs/{lab.trained}/report")
    assert report.headers["content-disposition"] == f'attachment; filename="run-{lab.trained}.html"'
    assert "public.trained" in report.text and "madlib_keras_fit_multiple_model" in report.text


def test_a_page_has_what_was_recorded_of_a_registered_model_or_the_call_that_records_it(browser, lab):
    run_id = invent_run(lab)
    assert "register(&#39;my_model&#39;, &#39;public.invented&#39;, held_out" in browser.get(f"/runs/{run_id}").text
    running = invent_run(lab, state="running")
    record_findings(lab, running, some_findings())
    figures = browser.get(f"/runs/{running}/figures").json()
    keys = {figure["key"]: figure["section"] for figure in figures}
    assert {keys[key] for key in ("confusion", "roc", "precision-recall", "reliability")} == {"held-out"}
    assert {keys[key] for key in ("column-importance", "dependence-1", "dependence-2")} == {"columns"}


def test_verbs_are_commands_in_the_history(browser, lab):
    pinned = browser.command(lab.trained, "pin_model", mst_key="1")
    assert (pinned.status_code, pinned.json()) == (200, {"message": "Model 1 is changed."}), pinned.text
    extended = browser.command(lab.trained, "extend", num_iterations="1", mst_key="2")
    assert extended.status_code == 200 and f"resume({lab.trained})" in extended.json()["message"]
    issued = lab.rows(
        "SELECT command, arguments, issued_by, state FROM madlib_mop.steering WHERE run_id = %s ORDER BY command_id",
        [lab.trained],
    )
    assert [(name, by, state) for name, _, by, state in issued] == [
        ("pin_model", "boss", "obeyed"), ("extend", "boss", "obeyed"),
    ]  # fmt: skip
    assert issued[1][1]["num_iterations"] == 1


@pytest.mark.parametrize(("name", "given", "status", "words"), [
    ("stop_model", {"mst_key": "99"}, None, "99"), ("extend", {"num_iterations": "0"}, None, "num_iterations"),
    ("extend", {"num_iterations": "two"}, 422, "whole number"), ("extend", {}, 422, "needs num_iterations"),
    ("extend", {"num_iterations": "1", "drop": "x"}, 422, "no argument 'drop'"),
    ("pin_model", {"mst_key": "1", "pinned": "maybe"}, 422, "true or false"), ("drop_run", {}, 404, ""),
])  # fmt: skip
def test_a_bad_command_is_refused_with_the_reason(browser, lab, name, given, status, words):
    answer = browser.command(lab.trained, name, **given)
    assert answer.status_code == status if status else 400 <= answer.status_code < 500
    assert words in answer.text.replace("&#39;", "'") and "Traceback" not in answer.text


def test_a_change_is_sent_once_it_is_told(browser, lab):
    run_id = invent_run(lab, state="running")
    with browser.events(f"/runs/{run_id}/events") as events:
        name, _, data = next(events)
        assert name == "state" and json.loads(data)["order"] == ["1", "2", "3", "4"]
        lab.rows("UPDATE madlib_mop.model SET state = 'stopped' WHERE run_id = %s AND mst_key = 2", [run_id])
        began = time.monotonic()
        tell(lab, run_id)
        name, _, data = next(events)
        waited_s, parts = time.monotonic() - began, json.loads(data)
    assert name == "change" and waited_s < 4, "it does not wait for the next look"
    assert list(parts["rows"]) == ["2"] and "stopped" in parts["rows"]["2"], "only what has changed"


def test_what_the_models_are_compared_with_is_a_part_of_the_page(browser, lab):
    run_id = invent_run(lab, state="running")
    boosting = Baseline(name="gradient boosting", metric_name="accuracy", validation_metric=0.9912, note="no model")
    with browser.events(f"/runs/{run_id}/events") as events:
        assert json.loads(next(events)[2])["baselines"].strip() == ""
        document = json.dumps([boosting.as_json()])
        lab.rows("UPDATE madlib_mop.run SET baselines = %s WHERE run_id = %s", [document, run_id])
        tell(lab, run_id)
        name, _, data = next(events)
    part = json.loads(data)["baselines"]
    assert name == "change" and "rows" not in json.loads(data), "the models are as before"
    assert "gradient boosting" in part and "0.9912" in part and "no model" in part and "button" not in part
    assert f'<tfoot id="part-baselines">{part}</tfoot>' in browser.get(f"/runs/{run_id}").text


def test_who_comes_back_gets_what_was_missed(browser, lab):
    run_id = invent_run(lab, state="running")
    with browser.events(f"/runs/{run_id}/events") as events:
        _, first, _ = next(events)
        lab.rows("UPDATE madlib_mop.model SET pinned = true WHERE run_id = %s AND mst_key = 1", [run_id])
        tell(lab, run_id)
        _, second, data = next(events)
    with browser.events(f"/runs/{run_id}/events", last_seen=first) as events:
        assert next(events)[1:] == (second, data)
    with browser.events(f"/runs/{run_id}/events", last_seen="from-another-life") as events:
        assert next(events)[0] == "state"


@pytest.mark.slow
def test_updates_are_computed_once_for_all_viewers(dash, browser, lab):
    run_id = invent_run(lab, state="running")
    got, opened = [], []

    def watch():
        with browser.events(f"/runs/{run_id}/events") as events:
            next(events)
            opened.append(1)
            got.append(next(events)[2])

    threads = [threading.Thread(target=watch, daemon=True) for _ in range(N_VIEWERS)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(opened) == N_VIEWERS, what="viewers")
    (feed,) = [f for (_, number), f in dash.site.feeds._feeds.items() if number == run_id]
    before = feed.n_readings
    lab.rows("UPDATE madlib_mop.model SET pinned = true WHERE run_id = %s AND mst_key = 1", [run_id])
    tell(lab, run_id)
    for thread in threads:
        thread.join(30)
    assert len(got) == N_VIEWERS and len(set(got)) == 1
    assert feed.n_readings <= before + 2, "one reading for all, or one more that was due"


@pytest.mark.slow
def test_without_viewers_nothing_is_read(dash, browser, lab):
    run_id = invent_run(lab, state="running")
    with browser.events(f"/runs/{run_id}/events") as events:
        next(events)
    feeds = dash.site.feeds._feeds
    wait_for(lambda: all(n != run_id or feed.is_over for (_, n), feed in feeds.items()), 40, "the feed's end")


def test_a_session_of_the_server_that_is_ended_leads_to_the_login(dash, lab):
    browser = dash.browser("boss")
    lab.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'madlib-mop dash'")
    wait_for(lambda: browser.get("/").status_code in (303, 503), what="the end")
    wait_for(lambda: browser.get("/").status_code == 303, what="the login")
    assert dash.browser("boss").get("/").status_code == 200


def test_it_leaves_no_session_behind(lab):
    def sessions() -> set[int]:
        of_pages = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'madlib-mop dash'"
        return {pid for (pid,) in lab.rows(of_pages, [lab.name])}

    of_another_page = sessions()
    with serving(lab) as dash:
        dash.browser("boss").get("/")
        opened = sessions() - of_another_page
    assert opened
    wait_for(lambda: not opened & sessions(), what="their end")


@pytest.mark.slow
def test_a_port_that_is_in_use_is_one_clear_error(dash, lab):
    failed = run(lab, "dash", "--port", str(dash.port), dsn=dsn_of(lab))
    assert failed.returncode == 1 and f"port {dash.port}" in failed.stderr and "Traceback" not in failed.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_models_are_shown_within_a_second(dash, browser, lab):
    run_id = invent_run(lab, n_models=10_000, n_segments=4, n_epochs=3, state="running")
    times = []
    for path in (f"/runs/{run_id}", "/"):
        best = float("inf")
        for _ in range(3):
            began = time.monotonic()
            assert browser.get(path).status_code == 200
            best = min(best, time.monotonic() - began)
        times.append(best)
    print(f"first screen of 10,000 models: {times[0]:.2f} s, of the list: {times[1]:.2f} s")
    with contextlib.suppress(psycopg2.Error):
        lab.rows("DELETE FROM madlib_mop.run WHERE run_id = %s", [run_id])
    assert max(times) < 1
