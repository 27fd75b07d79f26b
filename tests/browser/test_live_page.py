"""The live page in Chromium: a run is watched while it trains, and steered by its buttons."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from madlib_mop.dash import live
from madlib_mop.dash.reporting import Drawing
from madlib_mop.reports.figures import Figure, figures_of
from tests.conftest import PASSWORD
from tests.helpers.dash import serving
from tests.helpers.faults import wait_for
from tests.helpers.invented import HOSTILE, invent_run
from tests.helpers.reports import record_findings, some_facts, some_findings
from tests.helpers.steering import GATES, N_SEGMENTS, Steered
from tests.helpers.training import ALIKE, load_architectures, load_digits, pack, select_configurations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
STOP = "return document.querySelector(`button[data-verb=stop_model][data-key='${arguments[0]}']`)"
WIDE = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def lab(db):
    load_digits(db)
    load_architectures(db)
    pack(db, N_SEGMENTS)
    select_configurations(db, "mst", ALIKE)
    db.rows(GATES)
    db.cluster.create_role("boss")
    db.rows("ALTER ROLE boss SUPERUSER")
    yield db
    db.rows("DELETE FROM gate")


@pytest.fixture(scope="module")
def dash(lab):
    with serving(lab) as dash:
        yield dash


@pytest.fixture(scope="module")
def browser(dash):
    from tests.helpers.browser import Browser

    window = Browser()
    show(window, dash.url + "/login")
    window.run("document.getElementById('role').value = 'boss'")
    window.run("document.getElementById('password').value = arguments[0]", PASSWORD)
    window.run("document.querySelector('form button').click()")
    window.wait(lambda: window.run("return document.querySelector('h1').textContent") == "Runs", "the list of runs")
    yield window
    window.close()


def show(browser, url: str, colours: str = "light", width: int = 1280) -> None:
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
    browser.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
    )
    browser.driver.get("about:blank")
    for kind in ("browser", "performance"):
        browser.driver.get_log(kind)
    browser.driver.get(url)


def show_run(browser, dash, run_id: int, **how) -> None:
    """Show a run, and wait for its figures."""
    show(browser, f"{dash.url}/runs/{run_id}", **how)
    undrawn = "[...document.querySelectorAll('.chart')].filter(c => c.offsetParent && !c.querySelector('svg')).length"
    browser.wait(lambda: browser.run("return document.getElementById('figures-note').hidden"), "figures")
    browser.wait(lambda: browser.run(f"return {undrawn}") == 0, "figures that are drawn")
    browser.wait(lambda: browser.run("return document.getElementById('live-state').textContent") == "live", "updates")


def keep_picture(browser, name: str) -> None:
    """Write the whole page as a picture into the folder MOP_TEST_PICTURES, if it is set."""
    folder = os.environ.get("MOP_TEST_PICTURES")
    if folder:
        import base64

        made = browser.command("Page.captureScreenshot", captureBeyondViewport=True)
        Path(folder, f"{name}.png").write_bytes(base64.b64decode(made["data"]))


def text(browser, where: str) -> str:
    return browser.run("return document.querySelector(arguments[0]).innerText", where)


def test_a_run_is_watched_and_a_model_is_stopped_by_its_button(browser, dash, lab):
    """No page is loaded again between: what is seen comes by updates."""
    steered = Steered(lab, "browsed", gates=(2,))
    show_run(browser, dash, steered.run_id)
    assert "running" in text(browser, "#part-head")
    browser.wait(lambda: browser.run(STOP, 3) is not None, "the button")
    browser.run(STOP, 3).click()
    assert text(browser, "#dialog-stop_model h2") == "Stop model 3?"
    keep_picture(browser, "dialog")
    assert steered.model(3, "state") == "training", "the dialog asks first"
    browser.run("document.querySelector('#dialog-stop_model [data-close]').click()")
    browser.run(STOP, 3).click()
    browser.run("document.getElementById('reason').value = 'too slow'")
    browser.run("document.querySelector('#dialog-stop_model button.danger').click()")
    wait_for(lambda: steered.model(3, "state") == "stopped", what="the stop")
    assert steered.model(3, "state_detail") == "stopped by boss: too slow"
    browser.wait(lambda: "stopped by boss: too slow" in text(browser, "tr[data-key='3']"), "the stop shown")
    browser.wait(lambda: "stop_model" in text(browser, "#part-commands"), "the stop in the history")
    assert text(browser, "#message") == "Model 3 is stopped."
    keep_picture(browser, "running")
    drawn = browser.run("return document.querySelectorAll('.chart svg').length")
    steered.finish()
    browser.wait(lambda: "finished" in text(browser, "#part-head"), "the end of the run")
    assert "100 %" in text(browser, "#part-progress") and drawn > 0
    assert browser.messages() == []
    assert {address.partition("/runs")[0].partition("/static")[0] for address in browser.requests()} == {dash.url}
    show(browser, dash.url + "/")
    browser.wait(lambda: browser.run("return document.getElementById('live-state').textContent") == "live", "updates")
    keep_picture(browser, "list")
    assert browser.messages() == []
    for colours, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        show_run(browser, dash, steered.run_id, colours=colours, width=width)
        keep_picture(browser, f"run_{colours}_{width}")
        assert browser.run(WIDE), "the page itself does not scroll sideways"
        assert browser.covered_texts() == []
        assert browser.messages() == []


def test_figures_of_a_registered_model_are_shown_or_the_call_that_records_them(browser, dash, lab):
    run_id = invent_run(lab)
    show_run(browser, dash, run_id)
    assert "madlib_mop.register('my_model', 'public.invented'" in text(browser, "#not-recorded")
    record_findings(lab, run_id, some_findings())
    run_id = invent_run(lab)
    record_findings(lab, run_id, replace(some_findings(HOSTILE, HOSTILE, HOSTILE), name="hostile"))
    for colours, width in (("light", 1280), ("dark", 390)):
        show_run(browser, dash, run_id, colours=colours, width=width)
        for key in ("confusion", "roc", "precision-recall", "reliability", "column-importance", "dependence-2"):
            assert browser.run(f"return !!document.querySelector('#figure-{key} .chart svg')"), key
        assert text(browser, "[data-section=held-out] h3") == "Held-out rows"
        assert browser.run("return document.getElementById('not-recorded').hidden")
        covered = [one for one in browser.covered_texts() if not one.startswith("figure-gantt")]  # of an invented run
        assert browser.run(WIDE) and covered == [] and browser.messages() == []
        keep_picture(browser, f"registered_{colours}_{width}")


TABLE = Figure("slow", "Slow", "What it is.", "One.", None, ("visit", "s"), (("first", 1.5), ("next", 1.0)), 9)


def test_a_table_without_a_chart_is_open_and_follows_the_run(browser, dash, lab, monkeypatch):
    """Its rows are replaced, not its place, so a reader can scroll; without a chart, nothing of Vega is loaded."""
    shown = draws(monkeypatch, [TABLE])
    run_id = invent_run(lab, state="running")
    for colours, width in (("light", 1280), ("dark", 390)):
        show_run(browser, dash, run_id, colours=colours, width=width)
        assert "first" in text(browser, "#figure-slow .numbers") and browser.run(WIDE)
        assert text(browser, "#figure-slow .note") == "The first 2 of 9 rows."
        assert not [address for address in browser.requests() if "vega" in address] and browser.messages() == []
        assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []
        keep_picture(browser, f"table_{colours}_{width}")
    browser.run("document.querySelector('#figure-slow .scroll').dataset.same = 'yes'")
    shown[0] = replace(TABLE, rows=(("later", 2.5),), n_rows=1)
    visit(lab, run_id, 1)
    browser.wait(lambda: "later" in text(browser, "#figure-slow .numbers"), "the new row")
    assert "first" not in text(browser, "#figure-slow") and text(browser, "#figure-slow .note") == ""
    assert browser.run("return document.querySelector('#figure-slow .scroll').dataset.same") == "yes"
    browser.run(COUNT_ENDED)
    chart = replace(next(figures_of(some_facts())), key="slow")
    for mst_key, n_ended in ((2, 0), (3, 1)):  # the same chart comes back
        shown[0] = chart
        visit(lab, run_id, mst_key)
        browser.wait(lambda: browser.run("return !!document.querySelector('#figure-slow .chart svg')"), "the chart")
        assert not browser.run("return !!document.querySelector('#figure-slow .numbers')")
        assert browser.run("return window.ended") == n_ended
        shown[0] = TABLE
        visit(lab, run_id, mst_key)
        browser.wait(lambda: browser.run("return !!document.querySelector('#figure-slow .numbers')"), "the table")
        assert not browser.run("return !!document.querySelector('#figure-slow .chart')")
        assert browser.run("return window.ended") == n_ended + 1
    assert browser.messages() == []


#: Counts the views of Vega that are ended, from the moment that Vega is loaded.
COUNT_ENDED = """
let embed;
window.ended = 0;
Object.defineProperty(window, "vegaEmbed", {
  get: () => embed,
  set(made) {
    embed = async (...given) => {
      const result = await made(...given);
      const finalize = result.view.finalize;
      result.view.finalize = function () { window.ended += 1; return finalize.call(this); };
      return result;
    };
  },
});
"""


def test_tables_are_shown_although_vega_cannot_be_loaded(browser, dash, lab, monkeypatch):
    """The page tries again by itself, although nothing of the run changes."""
    shown = draws(monkeypatch, [TABLE])
    run_id = invent_run(lab, state="running")
    show_run(browser, dash, run_id)
    vega = browser.run("return document.getElementById('figures').dataset.vega")
    browser.run("document.getElementById('figures').dataset.vega = '/static/none.js'")
    shown[:] = [next(figures_of(some_facts())), replace(TABLE, rows=(("later", 2.5),), n_rows=1)]
    visit(lab, run_id, 1)
    browser.wait(lambda: "cannot be drawn" in text(browser, "#figures-note"), "the error")
    assert "later" in text(browser, "#figure-slow .numbers")
    assert browser.run("return document.querySelectorAll('.chart').length") == 1
    browser.run("document.getElementById('figures').dataset.vega = arguments[0]", vega)
    browser.wait(lambda: browser.run("return document.querySelector('.chart svg') !== null"), "the figure")
    assert text(browser, "#figures-note") == ""
    assert browser.run("return document.querySelectorAll('script').length") == 2  # dash.js and vega.js


def draws(monkeypatch, shown: list[Figure]) -> list[Figure]:
    """Have live pages show these figures, as soon as they ask for them; return the list, which may change."""

    async def draw(_, facts):
        return [{**asdict(one), "id": f"figure-{one.key}", "section": "schedule", "axis": None} for one in shown]

    monkeypatch.setattr(Drawing, "draw", draw)
    monkeypatch.setattr(live, "_MIN_AGE_S", 0.0)
    monkeypatch.setattr(live, "_AGE_FACTOR", 0)
    return shown


def visit(db, run_id: int, mst_key: int) -> None:
    """Change the visits of a run, and tell live pages of it, which then ask for its figures."""
    db.rows("UPDATE madlib_mop.model SET position = position - 1 WHERE run_id = %s AND mst_key = %s", [run_id, mst_key])
    db.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("page", ["/", "/runs/{}", "/login"])
def test_axe_finds_nothing_serious(browser, dash, lab, page, colours):
    run_id = invent_run(lab, n_models=50, state="running")
    if page.startswith("/runs"):
        show_run(browser, dash, run_id, colours=colours)
        browser.run("document.querySelector('button[data-verb=clone_model]').click()")
    else:
        show(browser, dash.url + page, colours=colours)
    assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []


def test_names_that_are_code_do_nothing(browser, dash, lab):
    run_id = invent_run(lab, n_models=50, state="failed", output=HOSTILE, source=HOSTILE, detail=HOSTILE)
    lab.rows("UPDATE madlib_mop.metric SET name = %s WHERE run_id = %s AND ordinal = 1", [HOSTILE, run_id])
    show_run(browser, dash, run_id)
    assert "<script>alert(1)" in text(browser, "body")
    assert browser.run("return document.querySelectorAll('script').length") == 2  # dash.js and vega.js
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.was = 1\">')")
    browser.wait(lambda: any("Content Security Policy" in message for message in browser.messages()), "the refusal")
    assert browser.run("return window.was") is None


def test_the_keyboard_reaches_everything_and_keeps_its_place(browser, dash, lab):
    """An update of a row does not take the focus from its button."""
    run_id = invent_run(lab, state="running")
    show_run(browser, dash, run_id)
    browser.run("document.querySelector('button[data-verb=extend][data-key=\"4\"]').focus()")
    lab.rows("UPDATE madlib_mop.metric SET value = 0.0 WHERE run_id = %s AND mst_key = 4 AND ordinal = 0", [run_id])
    lab.rows("UPDATE madlib_mop.metric SET value = 0.99 WHERE run_id = %s AND mst_key = 4 AND ordinal = 1", [run_id])
    lab.rows("SELECT pg_notify('madlib_mop_runs', %s)", [str(run_id)])
    first = "return document.querySelector('#rows tr').dataset.key"
    browser.wait(lambda: browser.run(first) == "4", "the new order")
    focused = browser.run("return [document.activeElement.dataset.verb, document.activeElement.dataset.key]")
    assert focused == ["extend", "4"]
