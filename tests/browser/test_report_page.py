"""The report of a real run in Chromium: drawn, accessible, closed to the network; names that are code do nothing."""

from dataclasses import replace

import pytest

from madlib_mop.reports.figures import SECTIONS, Figure, Section
from madlib_mop.reports.page import page
from tests.helpers.reports import (
    REASON,
    many_findings,
    record_findings,
    record_large_run,
    some_facts,
    train_hostile_run,
)
from tests.helpers.security.attacks import user

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
OWNER = "owner_of_browsed_report"
HEADS = "return [...document.querySelectorAll('#board thead th')]"
COLUMN = """return [...document.querySelectorAll('#board tbody tr')]
    .map(row => row.cells[arguments[0]].textContent.trim())"""
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser():
    from tests.helpers.browser import Browser

    window = Browser()
    yield window
    window.close()


@pytest.fixture(scope="module")
def reports(db, tmp_path_factory):
    """The report of a real run whose names are code, and that of 10,000 models, as files."""
    user(db, OWNER)
    folder = tmp_path_factory.mktemp("reports")
    runs = {"real": train_hostile_run(db, OWNER), "large": record_large_run(db, 5200, OWNER, 10_000)}
    for name, run_id in runs.items():
        text = db.value("SELECT madlib_mop.report(%s)", [run_id], role=OWNER)
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(params=["real", "large"])
def path(request, reports):
    return reports / f"{request.param}.html"


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_figures_of_a_registered_model_are_drawn_and_readable(browser, db, reports, tmp_path, width):
    run_id = record_large_run(db, 5300 + width, db.cluster.superuser, 20)
    record_findings(db, run_id, replace(many_findings(), name=f"of_{run_id}"))
    path = tmp_path / "found.html"
    path.write_text(db.value("SELECT madlib_mop.report(%s)", [run_id]), encoding="utf-8")
    browser.open(path, width=width)
    keys = browser.run("return [...document.querySelectorAll('.chart svg')].map(s => s.closest('figure').id)")
    wanted = ("confusion", "roc", "precision-recall", "reliability", "column-importance", "dependence-1")
    assert {f"figure-{key}" for key in (*wanted, "dependence-2")} <= set(keys)
    assert browser.covered_texts() == []
    assert browser.messages() == []
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.run(wide), "the page itself does not scroll sideways"
    assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_table_without_a_chart_is_open_and_accessible(browser, tmp_path, monkeypatch, width):
    rows = tuple((f"visit {number}", number) for number in range(100))
    table = Figure("slow", "Slow", "What it is.", "100 visits.", None, ("visit", "seconds"), rows, 300)
    monkeypatch.setitem(SECTIONS, "slow", Section("Slow visits", lambda facts: [table]))
    path = tmp_path / "table.html"
    path.write_text(page(some_facts()), encoding="utf-8")
    browser.open(path, width=width)
    shown, height = browser.run("""const region = document.querySelector("#figure-slow [role=region]");
        return [region.innerText, region.getBoundingClientRect().height]""")
    assert "visit 0" in shown and "visit 99" in shown and 300 < height < 1000, "it is open, and scrolls in its place"
    assert "The first 100 of 300 rows." in browser.run("return document.getElementById('slow').innerText")
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.run(wide) and browser.messages() == []
    assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []


@pytest.mark.parametrize("width", [1280, 390])
def test_all_figures_are_drawn_without_messages_and_requests(browser, path, width):
    browser.open(path, width=width)
    for axis in ("seconds", "rows", "iteration"):
        browser.run("document.querySelector(`input[value='${arguments[0]}']`).click()", axis)
        browser.wait_for_figures()
    assert browser.messages() == []
    assert browser.requests() == [path.as_uri()]
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.run(wide), "the page itself does not scroll sideways"


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_text_of_a_figure_covers_another_one(browser, path, width):
    browser.open(path, width=width)
    assert browser.covered_texts() == []


def test_bars_have_different_labels_where_those_are_shortened(browser, path):
    browser.open(path, width=390)
    texts = "document.querySelectorAll('[data-figure=time] .role-axis-label text')"
    parts = [label for label in browser.run(f"return [...{texts}].map((t) => t.textContent)") if label[0].isalpha()]
    assert any(label.endswith("…") for label in parts) and len(set(parts)) == len(parts)


def test_a_script_that_is_not_the_pages_does_not_run(browser, reports):
    """The content security policy stops what escaping would have let through."""
    browser.open(reports / "real.html")
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.was = 1\">')")
    browser.run("const s = document.createElement('script'); s.textContent = 'window.was = 2'; document.body.append(s)")
    browser.wait(lambda: any("Content Security Policy" in message for message in browser.messages()), "the refusal")
    assert browser.run("return window.was") is None


def test_names_that_are_code_do_nothing(browser, reports):
    browser.open(reports / "real.html")
    assert REASON in browser.run("return document.body.textContent")
    found = browser.run("return document.querySelectorAll('img, b, body script:not([type])').length")
    assert found == 2, "its own scripts"
    browser.run("document.querySelector('#pair [name=second]').selectedIndex = 3;"
                "document.querySelector('#pair').dispatchEvent(new Event('change'))")  # fmt: skip
    assert browser.run("return document.querySelectorAll('img, b').length") == 0


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, path, colours):
    browser.open(path, colours=colours)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []


def test_the_leaderboard_is_sorted_by_the_keyboard(browser, reports):
    from selenium.webdriver.common.keys import Keys

    browser.open(reports / "real.html")
    head = next(one for one in browser.run(HEADS) if one.text.startswith("training loss"))
    number = browser.run("return arguments[0].cellIndex", head)
    for key, order in ((Keys.ENTER, "ascending"), (Keys.SPACE, "descending")):
        button = head.find_element("tag name", "button")
        button.send_keys(key)
        assert head.get_attribute("aria-sort") == order
        losses = [float(text.replace(",", "")) for text in browser.run(COLUMN, number) if text]
        assert losses == sorted(losses, reverse=order == "descending") and len(losses) > 10
    sorted_by = [one for one in browser.run(HEADS) if one.get_attribute("aria-sort")]
    assert sorted_by == [head], "one column only"
    blank = [not text for text in browser.run(COLUMN, number)]
    assert blank == sorted(blank), "models without figures come last"


def test_two_models_are_compared_by_choice(browser, reports):
    browser.open(reports / "real.html")
    choose = """
        const form = document.getElementById('pair');
        form.elements.first.value = '1';
        form.elements.second.value = '3';
        form.elements.all.checked = arguments[0];
        form.dispatchEvent(new Event('change'));
        const rows = [...document.querySelectorAll('#pair-table tbody tr')];
        return Object.fromEntries(
            rows.map(row => [...row.cells].map(cell => cell.textContent)).map(([name, ...both]) => [name, both]));"""
    different = browser.run(choose, False)
    assert different["learning_rate"] == ["0.003", "0.01"] and "optimizer" not in different
    assert browser.run(choose, True)["optimizer"] == ["Adam", "Adam"]
    assert "1 and 3" in browser.run("return document.querySelector('#pair-table caption').textContent")


def test_the_button_changes_the_colours(browser, reports):
    browser.open(reports / "real.html", colours="dark")
    dark = browser.run(BACKGROUND)
    browser.run("document.getElementById('theme').click()")
    light = browser.run(BACKGROUND)
    assert dark != light and browser.run("return document.getElementById('theme').textContent") == "Dark colours"
    browser.open(reports / "real.html")
    assert browser.run(BACKGROUND) == light


def test_it_is_printed_in_light_colours_with_whole_tables(browser, reports):
    browser.open(reports / "real.html", colours="dark")
    browser.command("Emulation.setEmulatedMedia", media="print")
    assert browser.run(BACKGROUND) == "rgb(255, 255, 255)"
    cut = ("return [...document.querySelectorAll('.scroll')].filter(s => s.offsetParent && "
           "(s.scrollHeight > s.clientHeight + 2 || getComputedStyle(s).overflowY !== 'visible')).length")  # fmt: skip
    assert browser.run(cut) == 0
    assert browser.run("return getComputedStyle(document.querySelector('.contents')).display") == "none"
    assert browser.pdf().startswith(b"%PDF")


def test_it_is_complete_without_scripts(browser, reports):
    browser.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.driver.get((reports / "real.html").as_uri())
        assert len(browser.driver.find_elements("css selector", "#board tbody tr")) == 14
        assert browser.driver.find_element("css selector", "#pair-table tbody").text
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)
