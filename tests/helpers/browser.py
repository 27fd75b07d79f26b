"""A headless Chromium for tests of pages: colours, widths, messages of the console, requests, axe-core."""

import base64
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
_WAIT_S = 60
_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((found) => done(found.violations.map((v) =>
    `${v.impact}: ${v.id}: ${v.nodes.map((n) => n.html.slice(0, 200)).slice(0, 3).join(" | ")}`)));
"""
_UNDRAWN = """return [...document.querySelectorAll('.chart')]
    .filter(chart => chart.offsetParent && !chart.querySelector('svg')).length"""
# Texts of one figure that cover each other by more than a pixel; the same text twice is its outline.
_COVERED = """
const found = [];
for (const svg of document.querySelectorAll(".chart svg")) {
    const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent && t.getAttribute("opacity") !== "0")
        .map(t => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
        const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (a !== b && wide > 1 && high > 3) found.push(`${svg.closest("figure")?.id}: ${a} / ${b}`);
    }));
    const edge = svg.closest(".chart").getBoundingClientRect().right;
    const beyond = texts.filter(([, p]) => p.right > edge + 2);
    beyond.forEach(([a]) => found.push(`${svg.closest("figure")?.id}: ${a} | edge`));
}
return found;
"""


class Browser:
    """One window, which is closed with `close`."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="madlib_mop_browser_")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (*_ARGUMENTS, f"--user-data-dir={self._profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(_WAIT_S * 2)

    def close(self) -> None:
        """Close the window and remove its profile."""
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path, colours: str = "light", width: int = 1280) -> None:
        """Open a file and wait until its figures are drawn."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what came before
        self.driver.get(path.as_uri())
        self.wait_for_figures()

    def wait_for_figures(self) -> None:
        """Wait until all figures that are shown are drawn."""
        self.wait(lambda: self.run(_UNDRAWN) == 0, "figures that are drawn")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script and return its value."""
        return self.driver.execute_script(script, *arguments)

    def command(self, name: str, **parameters: Any) -> Any:
        """Run a command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def wait(self, condition, what: str) -> None:
        """Wait until a condition is true; fail after a minute."""
        WebDriverWait(self.driver, _WAIT_S, poll_frequency=0.1).until(lambda _: condition(), what)

    def messages(self) -> list[str]:
        """Return what the console has got since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were requested since the page was opened, without those of inline data."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if not address.startswith(("data:", "chrome:", "about:"))]

    def covered_texts(self) -> list[str]:
        """Return pairs of texts of a figure of which one covers the other, and texts beyond the figure's edge."""
        return self.run(_COVERED)

    def violations(self) -> list[str]:
        """Return what axe-core finds, the impact first."""
        import axe_core_python

        self.run((Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        return self.driver.execute_async_script(_AXE)

    def pdf(self) -> bytes:
        """Return the page as it is printed on A4."""
        made = self.command("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(made["data"])
