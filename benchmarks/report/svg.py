"""Plots as inline SVG with the page's colours, light or dark by the reader's setting; called by the plots.

It uses matplotlib, where one path can contain all visits of a configuration; a chart of thousands of spans stays small.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH = 360  # of every plot, in CSS pixels: the width of a phone, so that text keeps its size
FONT = 11
MAX_CONFIGURATIONS = 96
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_PLAIN_NAMES = ("ink", "muted", "grid", "lane", "paper")
_RC = {
    "svg.fonttype": "none",
    "font.size": FONT,
    "axes.linewidth": 0.8,
    "axes.labelsize": FONT,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Plot:
    """A plot of the page.

    Attributes
    ----------
    title : str
    svg : str
        Inline, with the alternative inside.
    alternative : str
        Text alternative, with the numbers.
    """

    title: str
    svg: str
    alternative: str


class Palette:
    """Placeholders of the page's colours while a plot is drawn: each CSS variable is a colour that plots do not use."""

    def __init__(self, ways: Sequence[str]):
        names = [*_PLAIN_NAMES, *(f"way-{way}" for way in ways)]
        names += [f"{kind}{number}" for kind in ("c", "t") for number in range(1, MAX_CONFIGURATIONS + 1)]
        self._stand_ins = {name: f"#01{number:04x}" for number, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> str:
        return self._stand_ins[name]

    def way(self, way: str) -> str:
        """Return a way's colour."""
        return self[f"way-{way}"]

    def configuration(self, mst_key: int, kind: str = "c") -> str:
        """Return a configuration's colour, or (kind "t") that of text on it; colours repeat after 96."""
        return self[f"{kind}{(mst_key - 1) % MAX_CONFIGURATIONS + 1}"]

    def as_variables(self, text: str) -> str:
        """Replace the placeholders by the CSS variables."""
        names = {stand_in: name for name, stand_in in self._stand_ins.items()}
        return re.sub(r"#01[0-9a-f]{4}", lambda found: f"var(--{names[found[0]]})", text)


def canvas(palette: Palette, height: float, left=44, right=12, top=8, bottom=36) -> tuple[Figure, Axes]:
    """Return an empty plot; all sizes are in CSS pixels."""
    with rc_context(_RC):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        axes = figure.add_axes(
            (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - top - bottom) / height)
        )
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.tick_params(which="both", length=0, pad=4, labelcolor=palette["muted"])
        axes.xaxis.label.set_color(palette["muted"])
        axes.yaxis.label.set_color(palette["muted"])
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(side == "bottom")
            axes.spines[side].set_color(palette["grid"])
        axes.grid(True, color=palette["grid"], linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, axes


def plot(palette: Palette, figure: Figure, identity: str, title: str, alternative: str) -> Plot:
    """Finish a plot.

    Parameters
    ----------
    identity : str
        Unique in the page; prefix of the ids within the SVG.
    """
    buffer = io.StringIO()
    with rc_context({**_RC, "svg.hashsalt": identity}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    return Plot(title, palette.as_variables(_inline(buffer.getvalue(), identity, title, alternative)), alternative)


def _inline(text: str, identity: str, title: str, alternative: str) -> str:
    """Convert an SVG file to a part of an HTML page: only ids in use, short numbers, the page's font."""
    root = ElementTree.fromstring(text)
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        if (target := element.attrib.pop(_XLINK, None)) is not None:
            element.set("href", target)
        if "style" in element.attrib:
            element.set("style", _short(_without_font(element.get("style"))))
        for name in ("d", "points", "x", "y", "transform", "width", "height"):
            if name in element.attrib:
                element.set(name, _short(element.get(name)))
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    for element in root.iter():
        if element.get("id") is not None and element.get("id") not in used:
            del element.attrib["id"]
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{identity}-title {identity}-text")
    for position, (tag, words) in enumerate((("title", title), ("desc", alternative))):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{identity}-{'title' if tag == 'title' else 'text'}"})
        element.text = words
        root.insert(position, element)
    ElementTree.register_namespace("", _SVG)
    return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode")).replace(f' xmlns="{_SVG}"', "", 1)


def _short(text: str) -> str:
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), text)
    return re.sub(r"\s+", " ", rounded.replace("-0 ", "0 ")).strip()


def _without_font(style: str) -> str:
    style = re.sub(r"font: ([\d.]+)px [^;]*", r"font-size: \1px", style)
    return re.sub(r"font-family:[^;]*;?\s*", "", style)
