"""The page of the comparison of benchmarks in Chromium: drawn, readable, closed to the network."""

import pytest
from report.measurement import Comparison
from report.page import write_page

from tests.helpers.unit import benchmarks as synthetic

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def browser():
    from tests.helpers.browser import Browser

    window = Browser()
    yield window
    window.close()


@pytest.fixture(scope="module", params=["all", "one"])
def path(request, tmp_path_factory):
    """The page of all ways, and that of one way, for which nothing is known that is relative to the hopper."""
    alone = Comparison([synthetic.measurement(way="plain", n_epochs=1)], [], synthetic.MACHINE, {})
    told = synthetic.comparison() if request.param == "all" else alone
    return write_page(told, tmp_path_factory.mktemp("comparison"))


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_all_figures_are_drawn_and_their_texts_readable(browser, path, width):
    browser.open(path, width=width)
    assert browser.messages() == [] and browser.requests() == [path.as_uri()]
    assert browser.covered_texts() == []
    wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert browser.run(wide), "the page itself does not scroll sideways"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, path, colours):
    browser.open(path, colours=colours)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert [found for found in browser.violations() if found.startswith(("serious", "critical"))] == []


def test_a_way_has_another_colour_on_a_dark_page(browser, path):
    of = "return getComputedStyle(document.querySelector('[style*=way-plain]')).backgroundColor"
    seen = []
    for colours in ("light", "dark"):
        browser.open(path, colours=colours)
        seen.append(browser.run(of))
    assert seen == ["rgb(51, 56, 63)", "rgb(223, 227, 232)"]
