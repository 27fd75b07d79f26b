"""The ways' colours are visible on a light and a dark page, and distinguishable, also by the colour-blind."""

import itertools
import re

import numpy as np
import pytest
from report.names import LOOKS

from madlib_mop.reports.page import TEMPLATES

# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0; on linear RGB
SIGHTS = {
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
CSS = (TEMPLATES / "report.css").read_text()


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIE 1976 L*a*b* coordinates; a distance of about 2.3 is just noticeable."""
    x, y, z = np.cbrt(XYZ @ np.clip(rgb, 0.0, 1.0) / (0.9505, 1.0, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_ways_are_told_apart(scheme, sight):
    seen = {way: lab(np.array(SIGHTS[sight]) @ linear(getattr(look, scheme))) for way, look in LOOKS.items()}
    near = {
        (one, other): distance
        for one, other in itertools.combinations(seen, 2)
        if (distance := np.linalg.norm(seen[one] - seen[other])) < 14
    }
    assert not near


@pytest.mark.parametrize("scheme, number", [("light", 0), ("dark", 1)])
def test_ways_are_seen_on_the_page(scheme, number):
    """Contrast of at least 3:1, as WCAG 2.1 (1.4.11) requires of graphics; text never has a way's colour."""
    paper = XYZ[1] @ linear(re.findall(r"--paper: (#\w{6})", CSS)[number])
    for way, look in LOOKS.items():
        luminances = sorted([paper, XYZ[1] @ linear(getattr(look, scheme))])
        assert (luminances[1] + 0.05) / (luminances[0] + 0.05) >= 3, way


def test_ways_differ_in_more_than_colour():
    assert len({look.marker for look in LOOKS.values()}) == len(LOOKS)
