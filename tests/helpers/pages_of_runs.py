"""Reads the page of a report as a test does: its tables, numbers, texts of code, and the data of its figures."""

import json
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """A parsed report.

    Attributes
    ----------
    text : str
        All texts that a browser shows.
    tags : set of str
    code : dict of str to str
        Texts that can be copied, by name.
    n_scripts : int
        Scripts that run.
    """

    def __init__(self, document: str):
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.code: dict[str, str] = {}
        self.n_scripts = 0
        self._tables: dict[str, list[list[str]]] = {}
        self._figures: dict[str, str] = {}
        self._numbers: dict[str, str] = {}
        self._open: list[tuple[str, dict]] = []
        self._table = self._term = ""
        self.feed(document)
        self.close()

    def table(self, name: str) -> list[list[str]]:
        """Return the rows of a table's body, by the name of its region."""
        return self._tables[name]

    def number(self, term: str) -> str:
        """Return one of the numbers at the top."""
        return self._numbers[term]

    def data(self, key: str) -> dict:
        """Return the data of a figure."""
        return json.loads(self._figures[key])["datasets"]

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        if tag not in _VOID:
            self._open.append((tag, found))
        label = found.get("aria-label", "")
        if label.startswith("Table: "):
            self._table = label.removeprefix("Table: ")
            self._tables[self._table] = []
        if tag == "tr" and self._inside("tbody"):
            self._tables[self._table].append([])
        if tag in ("td", "th") and self._inside("tbody"):
            self._tables[self._table][-1].append("")
        self.n_scripts += tag == "script" and found.get("type") != "application/json"

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attrs = self._open[-1] if self._open else ("", {})
        if tag == "script":
            key = attrs.get("data-spec")
            if key is not None:
                self._figures[key] = self._figures.get(key, "") + data
            return
        if tag == "style":
            return
        self.text += data
        if self._inside("tbody") and (self._inside("td") or self._inside("th")):
            self._tables[self._table][-1][-1] += data
        for _, of in self._open:
            if "data-text" in of:
                self.code[of["data-text"]] = self.code.get(of["data-text"], "") + data
        if tag == "dt":
            self._term = data
        elif tag == "dd" and self._term not in self._numbers:
            self._numbers[self._term] = data

    def _inside(self, tag: str) -> bool:
        return any(name == tag for name, _ in self._open)
